"""Ops on values: check and scale pixels, make labels one-hot."""

import tensorflow as tf

from keras_vit.data.ops.op_registry import Check, integer, op

_ORDERED = Check("low <= high", lambda bounds: bounds[0] <= bounds[1])
_POSITIVE = Check("a positive number", lambda value: not isinstance(value, bool) and value > 0)


@op("image", checks={"low high": _ORDERED})
def check(low=0, high=255):
    """Checks pixels and returns the image; out of range or non-finite pixels are an error at read time."""
    what = (
        f"check({low}, {high}): expected finite pixels from {low} to {high}, got (lowest, highest, number of wrong"
        " pixels):"
    )

    def apply(image):
        pixels = tf.cast(image, tf.float32)
        good = tf.logical_and(pixels >= low, pixels <= high)  # false for NaN
        wrong = tf.math.count_nonzero(tf.logical_not(good))
        details = [what, tf.reduce_min(pixels), tf.reduce_max(pixels), wrong]
        with tf.control_dependencies([tf.debugging.Assert(tf.equal(wrong, 0), details)]):
            return tf.identity(image)

    return apply


@op("image", checks={"factor": _POSITIVE})
def multiply(factor):
    """Multiplies pixels by `factor`, as float32: multiply(255) for images of zeros and ones, such as dSprites."""
    return lambda image: tf.cast(image, tf.float32) * factor


@op("label", checks={"classes": integer(1)})
def one_hot(classes, on=1.0, off=0.0):
    """Encodes a label as a row (classes,) of `off` with one `on`; a label out of range is an error at read time.

    Only custom code needs this op: losses, mixup and cutmix accept integers and encode them on the device.
    """

    def apply(label):
        inside = tf.logical_and(label >= 0, label < classes)
        what = f"one_hot({classes}): expected a label from 0 to {classes - 1}, got"
        with tf.control_dependencies([tf.debugging.Assert(inside, [what, label])]):
            return tf.one_hot(label, classes, on, off, dtype=tf.float32)

    return apply
