"""Ops on labels. They stand in the same text as those on images, anywhere in it: a factory returns a function of one label."""

import tensorflow as tf

from keras_vit.data.ops import label_op


@label_op
def one_hot(classes, on=1.0, off=0.0):
    """The label, a number below `classes`, as a row (classes,) of `off` with one `on`; an error while the data is read if it is not.

    Losses, mixup and cutmix take numbers too, and make the rows on the device: only code of one's own needs this.
    """
    if not isinstance(classes, int) or classes < 1:
        raise ValueError(f"one_hot: expected the number of classes, a positive integer, got {classes}.")

    def apply(label):
        inside = tf.logical_and(label >= 0, label < classes)
        with tf.control_dependencies([tf.debugging.Assert(inside, [f"one_hot({classes}): got the label", label])]):
            return tf.one_hot(label, classes, on, off, dtype=tf.float32)

    return apply
