"""Pixels of the classes in a source's masks: their counts, for class weights, and whether there are any."""

import numpy as np
import tensorflow as tf

from keras_vit.data.ops.decode_mask import decode_mask
from keras_vit.data.sources.base import Source
from keras_vit.data.sources.selection import subset

MOST = 500  # masks to read


def count_pixels(source: Source, most: int = MOST) -> np.ndarray:
    """Counts pixels of each class, (classes,) int64, in at most `most` masks spread over a source; skips broken masks.

    Raises:
        ValueError: if the examples have no masks.
    """
    classes = len(source.class_names)
    if source.void is None or not classes:
        raise ValueError(f"{source.name} has no class masks to count.")
    if most < source.size:
        source = subset(source, np.unique(np.linspace(0, source.size - 1, most).astype(int)))

    def counted(example):
        values = tf.cast(tf.reshape(decode_mask(example["mask"]), [-1]), tf.int32)  # (h * w,)
        return tf.math.bincount(values, minlength=classes, maxlength=classes, dtype=tf.int64)  # void is above

    counts = source.ordered().map(counted, num_parallel_calls=tf.data.AUTOTUNE).ignore_errors()
    return sum(counts.as_numpy_iterator(), np.zeros(classes, "int64"))


def has_classes(source: Source) -> bool:
    """Whether any pixel of a source's masks has a class, and is not void.

    Reads masks until it finds one; skips broken ones.
    """
    classes = len(source.class_names)

    def found(example):
        return tf.reduce_any(tf.cast(decode_mask(example["mask"]), tf.int32) < classes)

    return any(source.ordered().map(found).ignore_errors().as_numpy_iterator())
