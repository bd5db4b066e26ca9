"""Pixels on another scale in a plain Keras model around one of this package, whose `fit` does not check its data."""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

import keras

from keras_vit.fit.checks.pixel_range import normalisation
from keras_vit.fit.checks.pixel_scale import assert_range, may_be_wrong

_CHECKED = contextvars.ContextVar("whether the images of this call are checked already", default=False)


@contextlib.contextmanager
def checked() -> Iterator[None]:
    """A context in which models do not check their images: `fit` has, or the model around them."""
    token = _CHECKED.set(True)
    try:
        yield
    finally:
        _CHECKED.reset(token)


def checked_images(model: keras.Model, images: Any) -> Any:
    """The images of a model's call in training; in a graph of TensorFlow, those on a wrong scale end the step.

    XLA ignores assertions: on GPUs and TPUs such a model is not checked, nor on JAX.
    """
    if keras.backend.backend() != "tensorflow" or _CHECKED.get():
        return images
    import tensorflow as tf

    scale = None if tf.executing_eagerly() or not tf.is_tensor(images) else normalisation(model)
    if scale is None or scale.is_identity or not may_be_wrong(images.dtype, scale):
        return images
    with tf.control_dependencies(assert_range(images, scale)):
        return tf.identity(images)
