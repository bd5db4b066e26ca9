"""Filled rectangles: Cutout and random erasing."""

import math

import tensorflow as tf

from keras_vit.data.ops.color import choose, flat_rows
from keras_vit.data.ops.op_registry import INTERVAL, PROBABILITY, Check, as_uint8, one_of, op

# Mean and standard deviation of random erasing's noise: ImageNet's per channel, and over all channels.
_MEAN = {3: (123.675, 116.28, 103.53), 1: (114.5,)}
_STD = {3: (58.395, 57.12, 57.375), 1: (57.6,)}
_ATTEMPTS = 10


def _within(start, length, size, repeats):
    """Marks places `start` to `start + length` of `size`, each repeated `repeats` times."""
    place = tf.repeat(tf.range(size), repeats)
    return tf.logical_and(place >= start, place < start + length)


def fill_box(image: tf.Tensor, top, left, height, width, fill) -> tf.Tensor:
    """Fills a box of uint8 `image` (h, w, c) with a number or uint8 pixels (h, w, c), clipped at the border."""
    h, w, c = tf.shape(image)[0], tf.shape(image)[1], image.shape[-1]
    mask = tf.logical_and(_within(top, height, h, 1)[:, None], _within(left, width, w, c)[None])
    rows = flat_rows(image)
    new = tf.fill(tf.shape(rows), tf.cast(fill, tf.uint8)) if isinstance(fill, (int, float)) else flat_rows(fill)
    return tf.ensure_shape(tf.reshape(choose(mask, new, rows), tf.shape(image)), image.shape)


def cutout(image: tf.Tensor, half, row, column, fill=128) -> tf.Tensor:
    """Fills a square of side 2 * `half` around pixel (`row`, `column`), clipped at the border (arXiv 1708.04552)."""
    half = tf.cast(half, tf.int32)
    return fill_box(as_uint8(image), row - half, column - half, 2 * half, 2 * half, fill)


def _box(image, samples, scale, ratio):
    """Returns the first (height, width) that fits among ten samples (10, 2) of area and aspect, or (0, 0)."""
    h, w = tf.cast(tf.shape(image)[0], tf.float32), tf.cast(tf.shape(image)[1], tf.float32)
    area = h * w * (scale[0] + (scale[1] - scale[0]) * samples[:, 0])
    low, high = math.log(ratio[0]), math.log(ratio[1])
    aspect = tf.exp(low + (high - low) * samples[:, 1])  # height / width
    heights, widths = tf.round(tf.sqrt(area * aspect)), tf.round(tf.sqrt(area / aspect))
    fits = tf.logical_and(heights < h, widths < w)
    first = tf.argmax(fits)
    some = tf.cast(tf.reduce_any(fits), tf.float32)
    return tf.cast(heights[first] * some, tf.int32), tf.cast(widths[first] * some, tf.int32)


def _constants(image):
    """Returns ImageNet's mean and standard deviation, each (c,)."""
    kind = 3 if image.shape[-1] == 3 else 1
    return tf.constant(_MEAN[kind], tf.float32), tf.constant(_STD[kind], tf.float32)


_ERASING = {
    "probability": PROBABILITY,
    "scale": Check("0 < low <= high < 1", lambda bounds: 0 < bounds[0] <= bounds[1] < 1),
    "ratio": INTERVAL,
    "mode": one_of(("pixel", "rand", "const")),
}


@op("image", random=True, checks=_ERASING)
def random_erasing(probability=0.25, scale=(0.02, 1 / 3), ratio=(0.3, 10 / 3), mode="pixel"):
    """With `probability`, fills a rectangle with `scale` of the area and an aspect within `ratio` (arXiv 1708.04896).

    `mode`: "pixel" fills each pixel with noise of ImageNet's mean and standard deviation, "rand" all with one such
    colour, "const" with the mean. Normalised, these are timm's standard normal noise and 0. Masks stay.
    """

    def apply(image, seed):
        image = as_uint8(image)
        samples = tf.random.stateless_uniform((2 * _ATTEMPTS + 3,), seed)

        def erased():
            height, width = _box(image, tf.reshape(samples[3:], (_ATTEMPTS, 2)), scale, ratio)
            h, w, c = tf.shape(image)[0], tf.shape(image)[1], image.shape[-1]
            top = tf.cast(samples[1] * tf.cast(h - height + 1, tf.float32), tf.int32)
            left = tf.cast(samples[2] * tf.cast(w - width + 1, tf.float32), tf.int32)
            mean, std = _constants(image)
            shape = {"pixel": (height, width, c), "rand": (1, 1, c), "const": (0, 0, c)}[mode]
            colour = mean + std * tf.random.stateless_normal(shape, seed + 1) if mode != "const" else mean
            box = tf.broadcast_to(as_uint8(colour), (height, width, c))
            around = [[top, h - top - height], [left, w - left - width], [0, 0]]
            return fill_box(image, top, left, height, width, tf.pad(box, around))

        return tf.cond(samples[0] < probability, erased, lambda: image)

    return apply
