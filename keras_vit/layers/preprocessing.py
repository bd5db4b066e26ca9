"""The preprocessing text of evaluation as a layer, in front of a model or in a tf.data pipeline."""

from typing import Any

import keras
import numpy as np

from keras_vit.layers.backend import apply_preprocessing, parse_preprocessing, preprocessed_shape
from keras_vit.layers.registration import serializable


@serializable
class Preprocessing(keras.layers.Layer):
    """Encoded images, or pixels, as the pixels that a model takes: what the text says, as training and an exported model do it.

    Args:
        text: ops joined by "|" (docs/data.md), none of them random, which end in a fixed size: "decode|resize(256)|central_crop(224)".

    Input: strings (b,), encoded JPEG, PNG...; or pixels 0..255, (b, h, w, c). Both also without b, for a dataset of single images. Output:
    whole numbers 0..255, (b, height, width, c), in the layer's dtype. It is TensorFlow's work: on the JAX backend it maps a tf.data dataset
    or takes arrays, and cannot be part of a compiled model.

    Raises:
        ImportError: if TensorFlow is not installed.
        ValueError: for a text that cannot be parsed, or has random ops.
    """

    def __init__(self, text: str, **kwargs: Any):
        if kwargs.pop("autocast", False):
            raise ValueError("Preprocessing: autocast must be False, since a compute dtype of 16 bits would round the pixels.")
        super().__init__(autocast=False, **kwargs)
        self.text = text
        self._preprocess = parse_preprocessing(text)
        if self._preprocess.random:
            raise ValueError(f'Preprocessing: "{text}" has random ops, which are for training. Leave them out.')
        self.supports_jit = False  # strings
        self._shapes = {}

    def __call__(self, images, **options):
        # Keras would convert what is not a tensor of its backend, strings among them.
        return super().__call__(images, **options) if isinstance(images, keras.KerasTensor) else self.call(images)

    def _shape(self, shape):
        """The shape (height, width, c) of what becomes of one image of images of `shape`."""
        channels = shape[-1] if len(shape) > 2 else None
        if channels not in self._shapes:
            self._shapes[channels] = preprocessed_shape(self._preprocess, channels)
        return self._shapes[channels]

    def call(self, images):
        shape = np.shape(images) if getattr(images, "shape", None) is None else images.shape
        if len(shape) not in (0, 1, 3, 4):
            raise ValueError(f"Preprocessing takes strings (b,) or pixels (b, h, w, c), got the shape {tuple(shape)}.")
        return apply_preprocessing(self._preprocess, images, self._shape(shape), self.compute_dtype)

    def compute_output_shape(self, input_shape):
        batch = () if len(input_shape) in (0, 3) else input_shape[:1]
        return (*batch, *self._shape(input_shape))

    def get_config(self):
        return {**super().get_config(), "text": self.text}
