"""Spatter of water or mud on pixels (h, w, 3), float64 from 0 to 1, and the OpenCV functions that it needs.

The latter take levels 0..255 (h, w), whole numbers as float64.
"""

import numpy as np
import tensorflow as tf

from keras_vit.data.ops.corruption.filters import filtered, gaussian

_WATER, _MUD = (175 / 255, 238 / 255, 238 / 255), (63 / 255, 42 / 255, 20 / 255)
_FARTHEST = 20
_STEPS = {(0, 1): 1.0, (1, 1): 1.4, (1, 2): 2.1969}  # OpenCV's distances of neighbours in a 5 x 5 mask
_TANGENT = 0.4142135623730950488  # of 22.5 degrees


def _filtered(levels, kernel, border):
    return filtered(levels[..., None], np.asarray(kernel), border)[..., 0]


def _moved(x, down, right):
    """Shifts x (h, w): each pixel becomes the one `down` and `right` of it, or 0 outside."""
    height, width = x.shape
    return tf.pad(x, [[2, 2], [2, 2]])[2 + down : 2 + down + height, 2 + right : 2 + right + width]


def _spread(strong, weak):
    """Returns the strong pixels and all weak pixels connected to them through weak ones; masks (h, w) bool."""

    def grown(mask):
        levels = tf.cast(mask, tf.float32)[None, ..., None]
        return ((tf.nn.max_pool2d(levels, 3, 1, "SAME")[0, ..., 0] > 0) & weak) | strong

    def unfinished(mask, before):
        return tf.reduce_any(mask != before)

    mask, _ = tf.while_loop(unfinished, lambda mask, before: (grown(mask), mask), (grown(strong), strong))
    return mask


def edges(levels: tf.Tensor, low: float, high: float) -> tf.Tensor:
    """Finds OpenCV's Canny edges (h, w) bool: 3 x 3 Sobel, |dx| + |dy|, thinning across the edge, two thresholds."""
    sobel = np.outer((1, 2, 1), (-1, 0, 1))
    dx, dy = (_filtered(levels, kernel, "nearest") for kernel in (sobel, sobel.T))
    size = tf.abs(dx) + tf.abs(dy)
    flat, steep = tf.abs(dy) < tf.abs(dx) * _TANGENT, tf.abs(dy) > tf.abs(dx) * (2 + _TANGENT)
    same = (dx >= 0) == (dy >= 0)  # the gradient points to the lower right, or the upper left

    def peak(down, right, also_equal):
        after = _moved(size, down, right)
        return (size > _moved(size, -down, -right)) & ((size >= after) if also_equal else (size > after))

    diagonal = tf.where(same, peak(1, 1, False), peak(1, -1, False))
    thin = tf.where(flat, peak(0, 1, True), tf.where(steep, peak(1, 0, True), diagonal))
    return _spread(thin & (size > high), thin & (size > low))


def distances(mask: tf.Tensor, farthest: int) -> tf.Tensor:
    """Returns distances (h, w) to the nearest true pixel, capped at `farthest`: OpenCV's DIST_L2 with a 5 x 5 mask."""
    offsets = [(i, j) for i in range(-2, 3) for j in range(-2, 3) if tuple(sorted((abs(i), abs(j)))) in _STEPS]
    far = tf.constant(float(farthest), tf.float64)

    def nearer(_, distance):
        close = [_moved(distance - far, i, j) + far + _STEPS[tuple(sorted((abs(i), abs(j))))] for i, j in offsets]
        return distance, tf.reduce_min(tf.stack([distance, *close]), 0)

    start = tf.where(mask, tf.zeros_like(far), far)
    return tf.while_loop(lambda before, now: tf.reduce_any(now < before), nearer, nearer(None, start))[1]


def equalized(levels: tf.Tensor) -> tf.Tensor:
    """Equalizes the histogram, like OpenCV's equalizeHist."""
    counts = tf.math.bincount(
        tf.cast(tf.reshape(levels, [-1]), tf.int32), minlength=256, maxlength=256, dtype=tf.float64
    )
    total, first = tf.reduce_sum(counts), tf.argmax(counts > 0)
    rest = total - counts[first]
    table = tf.round((tf.cumsum(counts) - counts[first]) * 255 / tf.maximum(rest, 1))
    even = tf.gather(tf.maximum(table, 0), tf.cast(levels, tf.int32))
    return tf.where(rest > 0, even, levels)


def _box(levels):
    return _filtered(levels, np.ones((3, 3)), "mirror") / 9


def _drops(layer):
    """Returns the water's intensity (h, w), 0 to 1, bright at the drops' edges."""
    levels = tf.floor(layer * 255)
    distance = equalized(tf.floor(_box(distances(edges(levels, 50, 150), _FARTHEST))))
    relief = tf.clip_by_value(_filtered(distance, [[-2, -1, 0], [-1, 1, 1], [0, 1, 2]], "mirror"), 0.0, 255.0)
    drops = levels * tf.round(_box(relief))
    return tf.math.divide_no_nan(drops, tf.reduce_max(drops))


def spatter(
    x: tf.Tensor, draws, mean: float, deviation: float, sigma: float, least: float, amount: float, is_mud: bool
) -> tf.Tensor:
    """Adds drops where smooth noise exceeds `least`: water times `amount`, or mud with edges blurred by `amount`."""
    layer = gaussian(mean + deviation * draws.normal(x.shape[:2]), sigma)
    inside = layer >= least
    if not is_mud:
        layer = tf.where(inside, layer, tf.zeros_like(layer))
        return x + amount * _drops(layer)[..., None] * tf.constant(_WATER, x.dtype)
    opaque = gaussian(tf.cast(inside, x.dtype), amount)
    opaque = tf.where(opaque < 0.8, tf.zeros_like(opaque), opaque)[..., None]
    return x * (1 - opaque) + opaque * tf.constant(_MUD, x.dtype)
