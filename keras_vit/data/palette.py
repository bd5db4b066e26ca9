"""Colour palettes found by k-means on a source's pixels (iGPT, Sec. 3)."""

from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit.data.batches import training_batches
from keras_vit.data.sources.base import Source

_ROWS = 4096  # pixels to compare with all colours at a time
_BATCH = 64  # images to read at a time


def nearest_colors(image: Any, palette: np.ndarray) -> tf.Tensor:
    """Returns the index of each pixel's nearest colour, the first of ties: (h, w, c), (colors, c) -> (n,) int32."""
    palette = tf.constant(palette, tf.float32)
    pixels = tf.reshape(tf.cast(image, tf.float32), (-1, palette.shape[1]))  # (h, w, c) -> (n, c)
    # |x - p|^2 - |x|^2, (n, colors)
    far = tf.reduce_sum(palette**2, -1) - 2.0 * tf.matmul(pixels, palette, transpose_b=True)
    return tf.ensure_shape(tf.argmin(far, axis=-1, output_type=tf.int32), (np.prod(image.shape[:-1]),))


def _assigned(pixels, colors):
    """Returns (index of each pixel's nearest colour, squared distance), each (m,)."""
    numbers, distances = [], []
    for part in (pixels[i : i + _ROWS] for i in range(0, len(pixels), _ROWS)):
        far = (colors**2).sum(-1) - 2.0 * part @ colors.T + (part**2).sum(-1)[:, None]  # (rows, colors)
        numbers.append(far.argmin(-1))
        distances.append(np.maximum(far[np.arange(len(part)), numbers[-1]], 0.0))
    return np.concatenate(numbers), np.concatenate(distances)


def _spread(pixels, counts, colors, rng):
    """Draws initial colours by k-means++: pixels with probability by squared distance to the nearest colour so far."""
    chosen = [rng.choice(len(pixels), p=counts / counts.sum())]
    distance = ((pixels - pixels[chosen[0]]) ** 2).sum(-1)
    while len(chosen) < colors:
        weights = counts * distance
        chosen.append(rng.choice(len(pixels), p=weights / weights.sum()))
        distance = np.minimum(distance, ((pixels - pixels[chosen[-1]]) ** 2).sum(-1))
    return pixels[chosen]


def fit_palette(pixels: np.ndarray, colors: int = 512, seed: int = 0, rounds: int = 20) -> np.ndarray:
    """Finds a palette in pixels by k-means: whole numbers (colors, c) float32, darkest first.

    Args:
        pixels: (..., c), 0..255.
        colors: int. Size of the palette.
        seed: int. Seed of the initial colours, drawn by k-means++.
        rounds: int. Largest number of k-means iterations.

    Raises:
        ValueError: if the pixels have fewer distinct colours.
    """
    pixels = np.asarray(pixels)
    pixels, counts = np.unique(np.rint(pixels.reshape(-1, pixels.shape[-1])), axis=0, return_counts=True)
    pixels, counts = pixels.astype("float64"), counts.astype("float64")
    if len(pixels) < colors:
        raise ValueError(f"Expected pixels of at least {colors} colours, the size of the palette, got {len(pixels)}.")
    found = _spread(pixels, counts, colors, np.random.default_rng(seed))
    numbers = None
    for _ in range(rounds):
        before, (numbers, _) = numbers, _assigned(pixels, found)
        if before is not None and np.array_equal(before, numbers):
            break
        weights = np.bincount(numbers, counts, minlength=colors)
        sums = np.stack([np.bincount(numbers, counts * channel, minlength=colors) for channel in pixels.T], axis=-1)
        found = np.where(weights[:, None] > 0, sums / np.maximum(weights, 1.0)[:, None], found)
    found = np.rint(found)
    return found[np.lexsort((*found.T[::-1], found.sum(-1)))].astype("float32")


def sample_pixels(source: Source, preprocess: str, count: int, seed: int = 0, per_image: int = 64) -> np.ndarray:
    """Samples about `count` pixels (n, c) from random places of preprocessed images; a pure function of the seed."""
    rng, found = np.random.default_rng(seed), []
    images = -(-count // per_image)

    def select(example):
        return (example["image"], tf.zeros(()))

    batches = training_batches(source, preprocess, _BATCH, seed, select=select).take(-(-images // _BATCH))
    for batch, _ in batches.as_numpy_iterator():
        pixels = batch.reshape(len(batch), -1, batch.shape[-1])  # (b, h, w, c) -> (b, n, c)
        places = rng.integers(0, pixels.shape[1], (len(batch), per_image))
        found.append(np.take_along_axis(pixels, places[..., None], axis=1).reshape(-1, batch.shape[-1]))
    return np.concatenate(found)
