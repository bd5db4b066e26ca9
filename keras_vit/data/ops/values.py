"""Ops on values: a scale check, a scale factor, one-hot labels."""

import tensorflow as tf

from keras_vit.data.ops.registry import op


@op("image")
def check(low=0, high=255):
    """The image unchanged; raises tf.errors.InvalidArgumentError at read time for pixels out of range or not finite."""
    if not low <= high:
        raise ValueError(f"check: expected low <= high, got {low} and {high}.")
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


@op("image")
def multiply(factor):
    """Pixels times `factor`, as float32: multiply(255) for images of zeros and ones, such as dSprites'."""
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not factor > 0:
        raise ValueError(f"multiply: expected a positive number, got {factor!r}.")
    return lambda image: tf.cast(image, tf.float32) * factor


@op("label")
def one_hot(classes, on=1.0, off=0.0):
    """A label below `classes` as a row (classes,) of `off` with one `on`; any other label is an error at read time.

    Only custom code needs this op: losses, mixup and cutmix accept integers and make the rows on the device.
    """
    if not isinstance(classes, int) or classes < 1:
        raise ValueError(f"one_hot: expected the number of classes, a positive integer, got {classes}.")

    def apply(label):
        inside = tf.logical_and(label >= 0, label < classes)
        with tf.control_dependencies([tf.debugging.Assert(inside, [f"one_hot({classes}): got the label", label])]):
            return tf.one_hot(label, classes, on, off, dtype=tf.float32)

    return apply
