"""Ops for scenes with class masks: scale, crop, pad, and the photometric distortion of mmsegmentation's recipes.

Like the ops in geometry.py, they move image, mask and boxes together. Padding is black in the image, and in the mask
the example's void, or else 0.
"""

import tensorflow as tf

from keras_vit.data.ops.geometry import PADDING, boxes_in_window, check_pixels, fill_of, moved, padded, pair, resized
from keras_vit.data.ops.op_registry import as_uint8, op

_TRIES = 10  # windows to check, as in mmsegmentation


@op("image", "mask", "boxes", random=True)
def random_scale(low, high, method="bilinear", antialias=True):
    """random_scale(0.5, 2.0) scales both sides by one factor, uniform between the two.

    A result above LARGE pixels is an error at read time.
    """
    if not 0 < low <= high:
        raise ValueError(f"random_scale: expected 0 < low <= high, got {low} and {high}.")

    def apply(example, seed):
        factor = tf.random.stateless_uniform((), seed, low, high)
        shape = tf.shape(example["image"])[:2]
        target = tf.maximum(tf.cast(tf.round(tf.cast(shape, tf.float32) * factor), tf.int32), 1)
        with tf.control_dependencies([check_pixels(f"random_scale({low}, {high})", shape, target)]):
            target = tf.identity(target)
        return resized(example, target, method, antialias)

    return apply


def _padded_to(size, pixels, fill=PADDING):
    """Pads pixels (h, w, c) to `size`, below and on the right."""
    missing = tf.constant(size) - tf.shape(pixels)[:2]
    return tf.ensure_shape(padded(pixels, (0, 0), missing, fill), (*size, pixels.shape[-1]))


@op("image", "mask", "boxes", reads=("void",))
def pad_to(height, width=None):
    """pad_to(512) pads to 512 x 512, below and on the right; a larger image is an error at read time."""
    size = pair(height, width)

    def apply(example):
        shape = tf.shape(example["image"])[:2]
        fits = tf.debugging.Assert(
            tf.reduce_all(shape <= size), [f"pad_to{size}: expected an image of at most that size, got", shape]
        )
        with tf.control_dependencies([fits]):
            image = _padded_to(size, example["image"])

        def in_window(boxes):
            return boxes_in_window(boxes, shape, (0, 0), size)

        return moved(example, image, lambda mask: _padded_to(size, mask, fill_of(example)), in_window)

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


@op("image", "mask", "boxes", random=True, reads=("void",))
def scene_crop(height, width=None, max_share=0.75):
    """Crops a random height x width window in which every class has less than `max_share` of the pixels.

    Void does not count. Takes the first suitable of 10 random windows, else an 11th, like mmsegmentation's
    RandomCrop(cat_max_ratio=0.75); without a mask, or with max_share=1, the first. Pads images smaller than the window
    below and on the right.
    """
    size = pair(height, width)
    if not 0 < max_share <= 1:
        raise ValueError(f"scene_crop: expected max_share above 0 and at most 1, got {max_share!r}.")

    def apply(example, seed):
        shape = tf.shape(example["image"])[:2]
        kept, margins = tf.minimum(shape, size), tf.maximum(shape - size, 0)
        samples = tf.random.stateless_uniform((_TRIES + 1, 2), seed)
        offsets = tf.minimum(tf.cast(samples * tf.cast(margins + 1, tf.float32), tf.int32), margins)  # (11, 2)

        def window(pixels, offset):
            part = tf.slice(pixels, tf.concat([offset, [0]], 0), tf.concat([kept, [-1]], 0))
            return tf.ensure_shape(part, (None, None, pixels.shape[-1]))

        def choose(mask):
            """Returns the index of the first suitable window, or 10."""

            def goes_on(i):
                return (i < _TRIES) & ~_is_mixed(window(mask, offsets[i]), example.get("void"), max_share)

            return tf.while_loop(goes_on, lambda i: (i + 1,), (tf.constant(0),))[0]

        limited = max_share < 1 and "mask" in example and example["mask"].dtype != tf.string
        offset = offsets[choose(example["mask"]) if limited else 0]

        def cropped(pixels, fill=PADDING):
            return _padded_to(size, window(pixels, offset), fill)

        def in_window(boxes):
            return boxes_in_window(boxes, shape, offset, size)

        return moved(example, cropped(example["image"]), lambda mask: cropped(mask, fill_of(example)), in_window)

    return apply


def _truncated(pixels):
    """Clips floats to 0..255, then truncates them to whole numbers, as mmsegmentation does; still floats."""
    return tf.floor(tf.clip_by_value(pixels, 0.0, 255.0))


def _hue_and_saturation(pixels, turn, factor):
    """Rotates the hue of float pixels (h, w, 3), 0..255, by `turn` of the circle and scales the saturation."""
    hue, saturation, value = tf.unstack(tf.image.rgb_to_hsv(pixels / 255.0), axis=-1)
    hsv = tf.stack([(hue + turn) % 1.0, tf.minimum(saturation * factor, 1.0), value], -1)
    return tf.round(tf.image.hsv_to_rgb(hsv) * 255.0)


@op("image", random=True)
def photometric_distortion(brightness=32, contrast=(0.5, 1.5), saturation=(0.5, 1.5), hue=18):
    """Applies mmsegmentation's PhotoMetricDistortion: four colour changes, each with probability 1/2.

    In order: adds -brightness to `brightness` levels; multiplies by a factor in `contrast`; multiplies the saturation
    by a factor in `saturation`; rotates the hue by whole steps of 2 degrees, from -hue to hue - 1. With probability 1/2
    the contrast comes last instead. OpenCV's 8-bit hue and saturation are coarser, so single levels differ. Grey images
    keep hue and saturation.
    """
    for name, (low, high) in {"contrast": contrast, "saturation": saturation}.items():
        if not 0 <= low <= high:
            raise ValueError(f"photometric_distortion: expected {name} as 0 <= low <= high, got {low, high}.")
    if not 0 <= brightness <= 255 or not isinstance(hue, int) or not 0 <= hue <= 90:
        raise ValueError(
            f"photometric_distortion: expected a brightness of 0 to 255 and an integer hue of 0 to 90, got"
            f" {brightness} and {hue}."
        )

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
