"""Images by which a static quantisation learns how large the values inside a model are."""

from typing import Any

import keras
import numpy as np

from keras_vit.training.checks.inputs import InputChecks

FEWEST = 16


def _of_dataset(dataset):
    """The pixels of a tf.data dataset of images or batches, with labels or without."""
    images = [np.asarray(keras.utils.unpack_x_y_sample_weight(element)[0]) for element in dataset]
    if not images:
        return np.zeros((0,), "float32")
    return np.concatenate(images) if images[0].ndim == 4 else np.stack(images)


def calibration_pixels(model: keras.Model, images: Any) -> np.ndarray:
    """The pixels (n, h, w, c) float32, 0..255, of images to calibrate with.

    Args:
        images: an array of pixels (n, h, w, c); a list of what `model.preprocess` takes: paths, bytes, PIL images...;
            or a finite tf.data dataset of pixels, in batches or not.

    Raises:
        ValueError: for fewer than 16 images, another size, or pixels on another scale.
    """
    if hasattr(images, "element_spec"):
        pixels = _of_dataset(images)
    else:
        pixels = np.asarray(model.preprocess(list(images)) if isinstance(images, (list, tuple)) else images)
    expected = (*model.image_size, model.channels)
    if pixels.ndim != 4 or pixels.shape[1:] != expected and len(pixels):
        raise ValueError(
            f"calibration: expected pixels of shape (n, {', '.join(map(str, expected))}), got {pixels.shape}."
        )
    if len(pixels) < FEWEST:
        raise ValueError(
            f"calibration: expected at least {FEWEST} images like those that the model will see, got {len(pixels)}. 100"
            " or more are better."
        )
    if not np.isfinite(pixels).all():
        raise ValueError("calibration: the pixels have values that are not finite.")
    InputChecks.of(model).arrays(pixels)
    return pixels.astype("float32")
