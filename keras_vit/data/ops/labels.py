"""Ops on labels. They may appear anywhere in the preprocessing text; the factory returns a function of one label."""

import tensorflow as tf

from keras_vit.data.ops.registry import op


@op("label")
def one_hot(classes, on=1.0, off=0.0):
    """A label below `classes` as a row (classes,) of `off` with a single `on`; any other label is an error while the
    data is read.

    Losses, mixup and cutmix also take integer labels, and make the rows on the device: only your own code needs this
    op.
    """
    if not isinstance(classes, int) or classes < 1:
        raise ValueError(f"one_hot: expected the number of classes, a positive integer, got {classes}.")

    def apply(label):
        inside = tf.logical_and(label >= 0, label < classes)
        with tf.control_dependencies([tf.debugging.Assert(inside, [f"one_hot({classes}): got the label", label])]):
            return tf.one_hot(label, classes, on, off, dtype=tf.float32)

    return apply
