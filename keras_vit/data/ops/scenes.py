"""Ops for scenes with class masks: scale, crop, pad, and the photometric distortion of mmsegmentation's recipes.

Like the ops in geometry.py, they move image, mask and boxes together. Padding is black in the image, and in the mask
the example's void, or else 0.
"""

import tensorflow as tf

from keras_vit.data.ops.geometry import as_size, check_pixels, crop, resize_example
from keras_vit.data.ops.op_registry import INTERVAL, Check, as_uint8, is_integer, op

_TRIES = 10  # windows to check, as in mmsegmentation


@op("image", "mask", "boxes", random=True, checks={"low high": INTERVAL})
def random_scale(low, high, method="bilinear", antialias=True):
    """random_scale(0.5, 2.0) scales both sides by one factor, uniform between the two.

    A result above LARGE pixels is an error at read time.
    """

    def apply(example, seed):
        factor = tf.random.stateless_uniform((), seed, low, high)
        shape = tf.shape(example["image"])[:2]
        target = tf.maximum(tf.cast(tf.round(tf.cast(shape, tf.float32) * factor), tf.int32), 1)
        with tf.control_dependencies([check_pixels(f"random_scale({low}, {high})", shape, target)]):
            target = tf.identity(target)
        return resize_example(example, target, method, antialias)

    return apply


@op("image", "mask", "boxes", reads=("void",))
def pad_to(height, width=None):
    """pad_to(512) pads to 512 x 512, below and on the right; a larger image is an error at read time."""
    size = as_size(height, width)

    def apply(example):
        shape = tf.shape(example["image"])[:2]
        fits = tf.debugging.Assert(
            tf.reduce_all(shape <= size), [f"pad_to{size}: expected an image of at most that size, got", shape]
        )
        with tf.control_dependencies([fits]):
            begin = tf.zeros_like(shape)
        return crop(example, begin, size, size)

    return apply


def _is_mixed(mask, void, max_share):
    """Whether a mask (h, w, 1) has several classes, each with less than `max_share` of the pixels; ignores void."""
    values = tf.cast(tf.reshape(mask, [-1]), tf.int32)
    if void is not None:
        values = tf.boolean_mask(values, values != tf.cast(void, tf.int32))
    counts = tf.math.bincount(values)
    largest, total = tf.reduce_max(tf.concat([counts, [0]], 0)), tf.reduce_sum(counts)
    share = tf.cast(largest, tf.float32) / tf.cast(tf.maximum(total, 1), tf.float32)
    return (largest < total) & (share < max_share)


_SHARE = Check("a share above 0 and at most 1", lambda value: 0 < value <= 1)


@op("image", "mask", "boxes", random=True, reads=("void",), checks={"max_share": _SHARE})
def scene_crop(height, width=None, max_share=0.75):
    """Crops a random height x width window in which every class has less than `max_share` of the pixels.

    Void does not count. Takes the first suitable of 10 random windows, else an 11th, like mmsegmentation's
    RandomCrop(cat_max_ratio=0.75); without a mask, or with max_share=1, the first. Pads images smaller than the window
    below and on the right.
    """
    size = as_size(height, width)

    def apply(example, seed):
        shape = tf.shape(example["image"])[:2]
        kept, margins = tf.minimum(shape, size), tf.maximum(shape - size, 0)
        samples = tf.random.stateless_uniform((_TRIES + 1, 2), seed)
        offsets = tf.minimum(tf.cast(samples * tf.cast(margins + 1, tf.float32), tf.int32), margins)  # (11, 2)

        def choose(mask):
            """Returns the index of the first suitable window, or 10."""

            def goes_on(i):
                window = tf.slice(mask, tf.concat([offsets[i], [0]], 0), tf.concat([kept, [-1]], 0))
                return (i < _TRIES) & ~_is_mixed(window, example.get("void"), max_share)

            return tf.while_loop(goes_on, lambda i: (i + 1,), (tf.constant(0),))[0]

        limited = max_share < 1 and "mask" in example and example["mask"].dtype != tf.string
        return crop(example, offsets[choose(example["mask"]) if limited else 0], size, size)

    return apply


def _truncated(pixels):
    """Clips floats to 0..255, then truncates them to whole numbers, as mmsegmentation does; still floats."""
    return tf.floor(tf.clip_by_value(pixels, 0.0, 255.0))


def _hue_and_saturation(pixels, turn, factor):
    """Rotates the hue of float pixels (h, w, 3), 0..255, by `turn` of the circle and scales the saturation."""
    hue, saturation, value = tf.unstack(tf.image.rgb_to_hsv(pixels / 255.0), axis=-1)
    hsv = tf.stack([(hue + turn) % 1.0, tf.minimum(saturation * factor, 1.0), value], -1)
    return tf.round(tf.image.hsv_to_rgb(hsv) * 255.0)


_FACTORS = Check("0 <= low <= high", lambda bounds: 0 <= bounds[0] <= bounds[1])
_DISTORTION = {
    "contrast": _FACTORS,
    "saturation": _FACTORS,
    "brightness": Check("levels from 0 to 255", lambda value: 0 <= value <= 255),
    "hue": Check("an integer from 0 to 90", lambda value: is_integer(value, 0) and value <= 90),
}


@op("image", random=True, checks=_DISTORTION)
def photometric_distortion(brightness=32, contrast=(0.5, 1.5), saturation=(0.5, 1.5), hue=18):
    """Applies mmsegmentation's PhotoMetricDistortion: four colour changes, each with probability 1/2.

    In order: adds -brightness to `brightness` levels; multiplies by a factor in `contrast`; multiplies the saturation
    by a factor in `saturation`; rotates the hue by whole steps of 2 degrees, from -hue to hue - 1. With probability 1/2
    the contrast comes last instead. OpenCV's 8-bit hue and saturation are coarser, so single levels differ. Grey images
    keep hue and saturation.
    """

    def apply(image, seed):
        samples = tf.random.stateless_uniform((9,), seed)
        chosen, amounts = samples[:5] < 0.5, samples[5:]

        def between(low, high, sample):
            return low + (high - low) * sample

        def with_contrast(pixels, applies):
            factor = between(*contrast, amounts[1])
            return tf.cond(applies, lambda: _truncated(pixels * factor), lambda: pixels)

        pixels = tf.cast(as_uint8(image), tf.float32)
        added = between(-brightness, brightness, amounts[0])
        pixels = tf.cond(chosen[0], lambda: _truncated(pixels + added), lambda: pixels)
        pixels = with_contrast(pixels, chosen[1] & chosen[4])
        if image.shape[-1] == 3:
            factor = tf.where(chosen[2], between(*saturation, amounts[2]), 1.0)
            steps = tf.where(chosen[3], tf.floor(between(-hue, hue, amounts[3])), 0.0)

            def changed():
                return _hue_and_saturation(pixels, steps / 180.0, factor)

            pixels = tf.cond(chosen[2] | chosen[3], changed, lambda: pixels)
        return tf.ensure_shape(as_uint8(with_contrast(pixels, chosen[1] & ~chosen[4])), image.shape)

    return apply
