"""Ops on pixel values: a check of their scale, and a factor for images on another scale."""

import tensorflow as tf

from keras_vit.data.ops.registry import op


@op("image")
def check(low=0, high=255):
    """The unchanged image; tf.errors.InvalidArgumentError, while the data is read, if a pixel is out of range or not
    finite.
    """
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
    """Every pixel times `factor`, as float32: multiply(255) for images whose pixels are 0 and 1, such as dSprites'."""
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not factor > 0:
        raise ValueError(f"multiply: expected a positive number, got {factor!r}.")
    return lambda image: tf.cast(image, tf.float32) * factor
