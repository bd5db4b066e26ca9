"""Keras' Dense, computed in the form that is fastest on the backend."""

import keras
from keras import ops

from keras_vit.layers.backend import affine
from keras_vit.layers.registration import serializable


@serializable
class Dense(keras.layers.Dense):
    """keras.layers.Dense on tokens: (b, n, c) -> (b, n, units)."""

    def call(self, inputs, training=None):
        bias = ops.convert_to_tensor(self.bias) if self.use_bias else None
        return affine(inputs, ops.convert_to_tensor(self.kernel), bias, self.activation)
