"""Blurs of pixels (h, w, 3), float64 from 0 to 1; see the package's docstring."""

import math

import numpy as np
import tensorflow as tf

from keras_vit.data.ops.corruption.filters import filtered, framed, gaussian, zoomed


def gaussian_blur(x: tf.Tensor, draws, sigma: float) -> tf.Tensor:
    """Applies a Gaussian blur of `sigma` pixels; border pixels repeat."""
    return gaussian(x, sigma)


def disk(radius: int, alias: float) -> np.ndarray:
    """Returns a disk kernel of `radius` pixels and sum 1, its edge blurred by a Gaussian of `alias` pixels (OpenCV)."""
    reach = max(radius, 8)
    offsets = np.arange(-reach, reach + 1)
    kernel = (offsets[:, None] ** 2 + offsets**2 <= radius**2).astype("float32")
    half = 1 if radius <= 8 else 2
    taps = np.exp(-0.5 * np.square(np.arange(-half, half + 1) / alias))
    taps /= taps.sum()
    padded = np.pad(kernel / kernel.sum(), half, mode="reflect")
    rows = sum(tap * padded[i : i + len(kernel)] for i, tap in enumerate(taps))
    return sum(tap * rows[:, i : i + len(kernel)] for i, tap in enumerate(taps))


def defocus_blur(x: tf.Tensor, draws, radius: int, alias: float) -> tf.Tensor:
    """Blurs like a lens out of focus: each point becomes a disk."""
    return filtered(x, disk(radius, alias))


def _shuffled(pixels, offsets, reach):
    """Replaces each pixel by the one at its offset, in one pass from the last pixel to the first.

    The authors' code means to swap the two, but NumPy copies, since both sides are views. If a source pixel was
    replaced earlier in the pass, its new value counts: pointer doubling follows such chains.

    Args:
        pixels: (h * w, c). The image's pixels.
        offsets: (h, w, 2) integers. Right, down.
        reach: int. Width of the border that stays.
    """
    height, width = offsets.shape[:2]
    n = height * width
    place = np.arange(n).reshape(height, width)
    row, column = np.indices((height, width))
    turn = (row > reach) & (row <= height - reach) & (column > reach) & (column <= width - reach)  # (h, w)
    source = tf.where(turn, place + offsets[..., 1] * width + offsets[..., 0], place)  # (h, w)
    had_turn = tf.gather(turn.reshape(-1), source) & (source > place) & turn
    # Nodes 0..n - 1 are pixels after their turn, n..2n - 1 before it.
    nodes = tf.concat([tf.reshape(tf.where(had_turn, source, source + n), [-1]), np.arange(n, 2 * n, dtype="int32")], 0)
    (nodes,) = tf.while_loop(lambda e: tf.reduce_any(e[:n] < n), lambda e: [tf.gather(e, e)], [nodes])
    return tf.gather(pixels, nodes[:n] - n)


def glass_blur(x: tf.Tensor, draws, sigma: float, reach: int, passes: int) -> tf.Tensor:
    """Frosts like glass: blurs, mixes pixels within `reach`, blurs again."""
    height, width, channels = x.shape
    pixels = tf.reshape(tf.floor(gaussian(x, sigma) * 255), (height * width, channels))
    for _ in range(passes):
        pixels = _shuffled(pixels, draws.integers((height, width, 2), -reach, reach), reach)
    return gaussian(tf.reshape(pixels, x.shape) / 255, sigma)


def along(x: tf.Tensor, radius: int, sigma: float, degrees: tf.Tensor) -> tf.Tensor:
    """Smears in one direction by half a Gaussian of 2 * radius + 1 taps (ImageMagick's motion blur); borders repeat."""
    width = 2 * radius + 1
    taps = np.exp(-0.5 * np.square(np.arange(width) / sigma))
    radians = degrees * (math.pi / 180)
    padded, total = framed(x, width, "nearest"), tf.zeros_like(x)
    for i, tap in enumerate(taps / taps.sum()):
        down, right = (tf.cast(tf.math.ceil(i * part - 0.5), tf.int32) for part in (tf.sin(radians), tf.cos(radians)))
        begin = [width + down, width + right, *[0] * (len(x.shape) - 2)]
        total += tap * tf.slice(padded, begin, x.shape)
    return total


def motion_blur(x: tf.Tensor, draws, radius: int, sigma: float) -> tf.Tensor:
    """Blurs like a moving camera, within 45 degrees of the horizontal."""
    return along(x, radius, sigma, draws.uniform((), -45, 45))


def zoom_blur(x: tf.Tensor, draws, last: float, step: float) -> tf.Tensor:
    """Averages the image and its centre enlarged by 1, 1 + step... up to `last`."""
    factors = np.arange(1, last, step)
    return tf.add_n([x, *(zoomed(x, factor) for factor in factors)]) / (len(factors) + 1)
