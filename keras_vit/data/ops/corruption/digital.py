"""Contrast, saturation, elasticity, pixelation and JPEG on pixels (h, w, 3), float64 0 to 1; see the package."""

import numpy as np
import tensorflow as tf

from keras_vit.data.ops.corruption.filters import at, gaussian


def rgb_to_hsv(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Pixels (h, w, 3) -> hue, saturation, value, each (h, w)."""
    red, green, blue = tf.unstack(x, axis=-1)
    value = tf.reduce_max(x, -1)
    delta = value - tf.reduce_min(x, -1)
    grey = tf.equal(delta, 0)
    whole = tf.where(grey, tf.ones_like(delta), delta)
    hue = tf.where(red == value, (green - blue) / whole, tf.zeros_like(value))
    hue = tf.where(green == value, 2 + (blue - red) / whole, hue)
    hue = tf.where(blue == value, 4 + (red - green) / whole, hue)
    return tf.where(grey, tf.zeros_like(hue), (hue / 6) % 1), tf.math.divide_no_nan(delta, value), value


def hsv_to_rgb(hue: tf.Tensor, saturation: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    """Inverts rgb_to_hsv: hue, saturation, value, each (h, w) -> pixels (h, w, 3)."""
    sector = tf.floor(hue * 6)
    f = hue * 6 - sector
    p, q, t = value * (1 - saturation), value * (1 - f * saturation), value * (1 - (1 - f) * saturation)
    sectors = [(value, t, p), (q, value, p), (p, value, t), (p, q, value), (t, p, value), (value, p, q)]
    every = tf.stack([tf.stack(channels, -1) for channels in sectors], -2)  # (h, w, 6, 3)
    return tf.gather(every, tf.cast(sector, tf.int32) % 6, batch_dims=2)


def contrast(x: tf.Tensor, draws, factor: float) -> tf.Tensor:
    """Multiplies each channel's distance from its mean by a factor."""
    mean = tf.reduce_mean(x, (0, 1), keepdims=True)
    return (x - mean) * factor + mean


def saturate(x: tf.Tensor, draws, factor: float, addition: float) -> tf.Tensor:
    """Multiplies HSV's saturation by a factor, then adds to it."""
    hue, saturation, value = rgb_to_hsv(x)
    return hsv_to_rgb(hue, tf.clip_by_value(saturation * factor + addition, 0.0, 1.0), value)


def elastic_transform(x: tf.Tensor, draws, stretch: float, sigma: float, skew: float) -> tf.Tensor:
    """Moves three points affinely by up to `skew` pixels, then each pixel by smooth noise times `stretch`."""
    height, width = x.shape[:2]
    middle, reach = np.array([height, width]) // 2, min(height, width) // 3
    points = middle + reach * np.array([[1, 1], [1, -1], [-1, -1]])  # the authors' (x, y), taken from (height, width)
    moved = points + draws.uniform((3, 2), -skew, skew)
    # [x y 1] in the result -> (x, y) in the image.
    back = tf.linalg.solve(tf.concat([moved, np.ones((3, 1))], 1), tf.constant(points, tf.float64))  # (3, 2)
    row, column = (tf.constant(places, tf.float64) for places in np.indices((height, width)))
    beside, below = (column * back[0, i] + row * back[1, i] + back[2, i] for i in (0, 1))
    x = at(x, below, beside, "mirror")
    right, down = (stretch * gaussian(draws.uniform((height, width), -1, 1), sigma, "symmetric", 3.0) for _ in range(2))
    return at(x, row + down, column + right, "symmetric")


def _box_matrix(size: int, target: int) -> np.ndarray:
    """Returns the matrix (target, size) of Pillow's box filter for a row, from `size` to `target` pixels."""
    scale = size / target
    matrix = np.zeros((target, size))
    for i in range(target):
        centre, support = (i + 0.5) * scale, 0.5 * max(scale, 1)
        first, last = max(int(centre - support + 0.5), 0), min(int(centre + support + 0.5), size)
        offset = (np.arange(first, last) - centre + 0.5) / max(scale, 1)
        taps = ((offset > -0.5) & (offset <= 0.5)).astype("float64")
        matrix[i, first:last] = taps / max(taps.sum(), 1)
    return matrix


def _boxed(x, height, width):
    """Resizes levels 0..255 (h, w, c) by Pillow's box filter: rows first, each pass rounded."""
    x = tf.floor(tf.einsum("vw,hwc->hvc", _box_matrix(x.shape[1], width), x) + 0.5)
    return tf.floor(tf.tensordot(_box_matrix(x.shape[0], height), x, 1) + 0.5)


def pixelate(x: tf.Tensor, draws, share: float) -> tf.Tensor:
    """Shrinks the sides to `share`, then enlarges them again, both by a box filter."""
    height, width = x.shape[:2]
    small = _boxed(tf.round(x * 255), max(int(height * share), 1), max(int(width * share), 1))
    return _boxed(small, height, width) / 255


def jpeg_compression(x: tf.Tensor, draws, quality: int) -> tf.Tensor:
    """Encodes as JPEG of quality 1 to 100, with colour at half resolution, and decodes again."""
    encoded = tf.io.encode_jpeg(tf.cast(tf.round(x * 255), tf.uint8), quality=quality)
    decoded = tf.io.decode_jpeg(encoded, channels=3, dct_method="INTEGER_ACCURATE")
    return tf.cast(tf.ensure_shape(decoded, x.shape), x.dtype) / 255
