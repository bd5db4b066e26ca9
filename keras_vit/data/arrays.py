"""Images that are in memory already."""

import numpy as np
import tensorflow as tf

from keras_vit.data.source import RandomAccess


def from_arrays(images, labels, class_names=None, name="arrays"):
    """A source over arrays.

    Args:
        images: (b, h, w, c), pixels 0..255; floats are rounded to uint8.
        labels: (b,) integers.
        class_names: in the order of the labels; None for "0", "1", ...

    Raises:
        ValueError: for other shapes, lengths that differ, or labels without a name.
    """
    images, labels = np.asarray(images), np.asarray(labels)
    if images.ndim != 4 or labels.ndim != 1 or len(images) != len(labels) or not len(images):
        raise ValueError(f"{name}: expected images (b, h, w, c) and as many labels (b,), got {images.shape} and {labels.shape}.")
    if class_names is None:
        class_names = [str(i) for i in range(int(labels.max()) + 1)]
    if labels.min() < 0 or labels.max() >= len(class_names):
        raise ValueError(f"{name}: labels run from {labels.min()} to {labels.max()}, class_names has {len(class_names)}.")
    if images.dtype != np.uint8:
        images = np.clip(np.round(images), 0, 255).astype("uint8")
    pixels = tf.constant(images)
    return RandomAccess(name, tuple(class_names), labels.astype("int64"), lambda i: pixels[i])
