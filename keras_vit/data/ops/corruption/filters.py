"""Linear filters and resampling of float64 pixels (h, w) or (h, w, c) of a fixed size, with NumPy constants."""

import numpy as np
import tensorflow as tf


def folded(places, n: int, border: str):
    """Maps places outside 0..n - 1 inside: "nearest" a a|a b c|c c, "symmetric" b a|a b c|c b, "mirror" c b|a b c|b a.

    Args:
        places: integer array or tensor. Positions along an axis.
        n: int. Length of the axis.
        border: str. "nearest", "symmetric" or "mirror".
    """
    lib = tf if tf.is_tensor(places) else np
    if border == "nearest" or n == 1:
        return tf.clip_by_value(places, 0, n - 1) if lib is tf else np.clip(places, 0, n - 1)
    period = 2 * n if border == "symmetric" else 2 * n - 2
    places = places % period
    return lib.where(places < n, places, period - (border == "symmetric") - places)


def gaussian_matrix(n: int, sigma: float, border: str = "nearest", truncate: float = 4.0) -> np.ndarray:
    """Returns SciPy's gaussian_filter1d of n pixels as a matrix (n, n), truncated at `truncate` deviations."""
    radius = int(truncate * sigma + 0.5)
    offsets = np.arange(-radius, radius + 1)
    taps = np.exp(-0.5 * np.square(offsets / sigma))
    matrix = np.zeros((n, n))
    places = folded(np.arange(n)[:, None] + offsets, n, border)  # (n, taps)
    np.add.at(matrix, (np.arange(n)[:, None], places), taps / taps.sum())
    return matrix


def gaussian(x: tf.Tensor, sigma: float, border: str = "nearest", truncate: float = 4.0) -> tf.Tensor:
    """Applies a Gaussian blur of standard deviation `sigma` pixels."""
    rows, columns = (gaussian_matrix(n, sigma, border, truncate) for n in x.shape[:2])
    blurred = tf.tensordot(rows, x, 1)  # h h, h w ... -> h w ...
    return tf.einsum("vw,hw...->hv...", columns, blurred)


def framed(x: tf.Tensor, radius: int, border: str) -> tf.Tensor:
    """Pads each side by `radius` pixels."""
    for axis in (0, 1):
        n = x.shape[axis]
        x = tf.gather(x, folded(np.arange(-radius, n + radius), n, border), axis=axis)
    return x


def filtered(x: tf.Tensor, kernel: np.ndarray, border: str = "mirror") -> tf.Tensor:
    """Correlates each channel of x (h, w, c) with a square kernel of odd size."""
    kernel = np.asarray(kernel, "float64")
    taps = np.repeat(kernel[:, :, None, None], x.shape[-1], axis=2)  # (size, size, c, 1)
    return tf.nn.depthwise_conv2d(framed(x, len(kernel) // 2, border)[None], taps, (1, 1, 1, 1), "VALID")[0]


def between(x: tf.Tensor, places: np.ndarray, axis: int) -> tf.Tensor:
    """Interpolates pixels linearly at fractional places (m,) of an axis."""
    low = np.clip(np.floor(places).astype("int64"), 0, max(x.shape[axis] - 2, 0))
    share = (places - low).reshape([-1 if i == axis else 1 for i in range(len(x.shape))])
    below, above = (tf.gather(x, np.minimum(index, x.shape[axis] - 1), axis=axis) for index in (low, low + 1))
    return below + share * (above - below)


def zoomed(x: tf.Tensor, factor: float) -> tf.Tensor:
    """Enlarges the centre to full size by a factor of at least 1: SciPy's zoom of order 1, then a central crop."""
    for axis in (0, 1):
        n = x.shape[axis]
        kept = int(np.ceil(n / factor))
        first, size = (n - kept) // 2, round(kept * factor)
        places = np.arange(n) + (size - n) // 2
        x = between(x, first + np.minimum(places * ((kept - 1) / max(size - 1, 1)), kept - 1), axis)
    return x


def at(x: tf.Tensor, rows: tf.Tensor, columns: tf.Tensor, border: str) -> tf.Tensor:
    """Interpolates pixels (h, w, c) bilinearly at fractional rows and columns, each (h', w')."""
    top, left = tf.floor(rows), tf.floor(columns)
    down, right = (rows - top)[..., None], (columns - left)[..., None]
    height, width = x.shape[:2]
    flat = tf.reshape(x, (height * width, x.shape[-1]))

    def pixels(below, beside):
        row = folded(tf.cast(top, tf.int32) + below, height, border)
        column = folded(tf.cast(left, tf.int32) + beside, width, border)
        return tf.gather(flat, row * width + column)  # (h', w', c)

    upper = pixels(0, 0) * (1 - right) + pixels(0, 1) * right
    lower = pixels(1, 0) * (1 - right) + pixels(1, 1) * right
    return upper * (1 - down) + lower * down
