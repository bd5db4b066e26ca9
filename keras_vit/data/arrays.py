"""Images that are in memory already."""

import numpy as np
import tensorflow as tf

from keras_vit.data.source import RandomAccess


def _as_tensor(images, name):
    """Images as a uint8 tensor (b, h, w, c), or encoded ones as a string tensor (b,)."""
    if isinstance(images, list | tuple) and images and all(isinstance(image, bytes) for image in images):
        return tf.constant(images)
    images = np.asarray(images)
    if images.ndim != 4:
        raise ValueError(f"{name}: expected images (b, h, w, c), or a list of encoded ones (bytes), got shape {images.shape}.")
    if images.dtype != np.uint8:
        images = np.clip(np.round(images), 0, 255).astype("uint8")
    return tf.constant(images)


def from_arrays(images, labels, class_names=None, name="arrays"):
    """A source over arrays.

    Args:
        images: (b, h, w, c), pixels 0..255; floats are rounded to uint8. Or a list of encoded images, bytes.
        labels: (b,) integers.
        class_names: in the order of the labels; None for "0", "1", ...

    Raises:
        ValueError: for other shapes, lengths that differ, or labels without a name.
    """
    images, labels = _as_tensor(images, name), np.asarray(labels)
    if labels.ndim != 1 or len(images) != len(labels) or not len(images):
        raise ValueError(f"{name}: expected as many labels (b,) as images, got {labels.shape} for {len(images)} images.")
    if class_names is None:
        class_names = [str(i) for i in range(int(labels.max()) + 1)]
    if labels.min() < 0 or labels.max() >= len(class_names):
        raise ValueError(f"{name}: labels run from {labels.min()} to {labels.max()}, class_names has {len(class_names)}.")
    return RandomAccess(name, tuple(class_names), labels.astype("int64"), lambda i: images[i])
