"""Evaluation preprocessing: a model's text, as a layer in front of a model or in a tf.data pipeline."""

from typing import Any

import keras
import numpy as np

from keras_vit.fit.checks.marked import plain_errors
from keras_vit.fit.checks.pixels import PIXELS, assert_range
from keras_vit.layers.registration import serializable


def preprocessing_text(model) -> str:
    """The model's preprocessing text, or a resize to its input size."""
    height, width = model.image_size
    return model.preprocessing or f"decode({model.channels})|resize({height}, {width})"


def parse_preprocessing(text: str):
    """The data.ops.op_registry.Preprocess of `text`.

    Raises:
        ImportError: without TensorFlow, which decodes and resizes images on every backend.
        ValueError: for invalid text.
    """
    from keras_vit.io.missing import tensorflow_missing

    instead = "Without it, give the model pixels 0..255 of its size: model.predict(images)."
    if error := tensorflow_missing("Decoding and resizing images", instead):
        raise error
    from keras_vit.data import parse

    return parse(text)


def _preprocessed_shape(preprocess, channels: int | None) -> tuple:
    """A Preprocess's output shape (height, width, c), from pixels with `channels`, or None for encoded images.

    ValueError if images of different sizes keep different sizes.
    """
    import tensorflow as tf

    given = tf.TensorSpec((), tf.string) if channels is None else tf.TensorSpec((None, None, channels), tf.uint8)
    shape = tuple(preprocess.graph("image").get_concrete_function(given).output_shapes)
    if None in shape:
        raise ValueError(
            f'"{preprocess.text}" gives images of different sizes: end it with one size, such as "resize(224, 224)" or'
            ' "central_crop(224)".'
        )
    return shape


def check_preprocessing(model) -> None:
    """Refuses a model with a random preprocessing text, or with one that gives other images than the model takes."""
    text, expected = preprocessing_text(model), (*model.image_size, model.channels)
    preprocess = parse_preprocessing(text)
    if preprocess.random:
        raise ValueError(f'The preprocessing "{text}" of "{model.name}" has random ops, which are for training.')
    shape = _preprocessed_shape(preprocess, None)
    if shape != expected:
        raise ValueError(
            f'The preprocessing "{text}" of "{model.name}" gives images of {shape}, and the model takes {expected}. Set'
            f' model.preprocessing to a text for these, such as "decode({expected[2]})|resize({expected[0]},'
            f' {expected[1]})".'
        )


def _eight_bits(pixels):
    """16-bit pixels, (..., h, w, c) uint16, on the scale 0..255, if any value needs it; others stay."""
    import tensorflow as tf

    if pixels.dtype != tf.uint16:
        return pixels
    pixels = tf.cast(pixels, tf.int32)
    return tf.cast(tf.where(tf.reduce_max(pixels) > 255, pixels // 256, pixels), tf.uint8)


def _apply(preprocess, images, shape: tuple, dtype: str, check_pixels: bool):
    """Preprocesses encoded images, () or (b,), or pixels, with or without b, to pixels of `shape`, (height, width, c).

    TensorFlow tensors give TensorFlow tensors on every backend, inside tf.data too; arrays give backend tensors.
    """
    import tensorflow as tf

    tensor = tf.convert_to_tensor(images)
    if tensor.shape.rank in (3, 4):
        tensor = _eight_bits(tensor)
        if check_pixels and tensor.dtype != tf.uint8:
            with tf.control_dependencies(assert_range(tensor, PIXELS)):
                tensor = tf.identity(tensor)
    if tensor.shape.rank in (0, 3):
        pixels = tf.ensure_shape(preprocess.image(tensor), shape)
    else:
        pixels = tf.map_fn(preprocess.image, tensor, fn_output_signature=tf.TensorSpec(shape, tf.uint8))
    pixels = tf.cast(pixels, dtype)
    return (
        pixels
        if tf.is_tensor(images) or keras.backend.backend() == "tensorflow"
        else keras.ops.convert_to_tensor(pixels.numpy())
    )


@serializable
class Preprocessing(keras.layers.Layer):
    """Encoded images or pixels to the model's pixels, by a text, the same way as training and exported models.

    Args:
        text: ops joined by "|" (docs/data.md), none random, with a fixed final size:
            "decode|resize(256)|central_crop(224)".
        check_pixels: refuse pixels on another scale, such as [0, 1].

    Input: strings (b,), encoded JPEG, PNG...; or pixels 0..255, (b, h, w, c); or either without b, for a dataset of
    single images. Output: integers 0..255, (b, height, width, c), in the layer's dtype. TensorFlow does the work: on
    the JAX backend the layer maps a tf.data dataset or takes arrays, and cannot be part of a compiled model.

    Raises:
        ImportError: without TensorFlow.
        ValueError: for text that is invalid or has random ops.
    """

    def __init__(self, text: str, check_pixels: bool = True, **kwargs: Any):
        if kwargs.pop("autocast", False):
            raise ValueError(
                "Preprocessing: autocast must be False, since a compute dtype of 16 bits would round the pixels."
            )
        super().__init__(autocast=False, **kwargs)
        self.text, self.check_pixels = text, check_pixels
        self._preprocess = parse_preprocessing(text)
        if self._preprocess.random:
            raise ValueError(f'Preprocessing: "{text}" has random ops, which are for training. Leave them out.')
        self.supports_jit = False  # strings
        self._shapes = {}

    def __call__(self, images, **options):
        # Keras would convert anything but its backend's tensors, also strings.
        return super().__call__(images, **options) if isinstance(images, keras.KerasTensor) else self.call(images)

    def _shape(self, shape):
        """The output shape (height, width, c) for one image of images of `shape`."""
        channels = shape[-1] if len(shape) > 2 else None
        if channels not in self._shapes:
            self._shapes[channels] = _preprocessed_shape(self._preprocess, channels)
        return self._shapes[channels]

    def call(self, images):
        shape = np.shape(images) if getattr(images, "shape", None) is None else images.shape
        if len(shape) not in (0, 1, 3, 4):
            raise ValueError(f"Preprocessing takes strings (b,) or pixels (b, h, w, c), got the shape {tuple(shape)}.")
        with plain_errors():
            return _apply(self._preprocess, images, self._shape(shape), self.compute_dtype, self.check_pixels)

    def compute_output_shape(self, input_shape):
        batch = () if len(input_shape) in (0, 3) else input_shape[:1]
        return (*batch, *self._shape(input_shape))
