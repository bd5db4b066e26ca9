"""An op that changes nothing, and refuses pixels on a wrong scale."""

import tensorflow as tf

from keras_vit.data.ops import op


@op
def check(low=0, high=255):
    """The image as it is; an error (tf.errors.InvalidArgumentError, while the data is read) if a pixel is outside or not finite."""
    if not low <= high:
        raise ValueError(f"check: expected low <= high, got {low} and {high}.")
    what = f"check({low}, {high}): expected finite pixels from {low} to {high}, got (lowest, highest, how many are neither):"

    def apply(image):
        pixels = tf.cast(image, tf.float32)
        good = tf.logical_and(pixels >= low, pixels <= high)  # false where a pixel is no number
        wrong = tf.math.count_nonzero(tf.logical_not(good))
        shown = [what, tf.reduce_min(pixels), tf.reduce_max(pixels), wrong]
        with tf.control_dependencies([tf.debugging.Assert(tf.equal(wrong, 0), shown)]):
            return tf.identity(image)

    return apply
