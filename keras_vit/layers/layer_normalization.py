"""Keras' LayerNormalization (arXiv 1607.06450), in fewer passes over memory on TensorFlow."""

from typing import Any

import keras
from keras import ops

from keras_vit.layers.backend import compiles_parts
from keras_vit.layers.registration import serializable


def _centred(x, epsilon):
    """(x minus its mean, one over its standard deviation) along the last axis."""
    centred = x - ops.mean(x, axis=-1, keepdims=True)
    return centred, ops.rsqrt(ops.mean(ops.square(centred), axis=-1, keepdims=True) + epsilon)


def normalized(x: Any, gamma: Any, beta: Any, epsilon: float) -> Any:
    """(x - mean) / sqrt(variance + epsilon) gamma + beta along the last axis: (..., d), (d,), (d,) -> (..., d)."""
    centred, inverse = _centred(x, epsilon)
    return centred * (inverse * gamma) + beta


def _gradients(dy, unscaled, inverse, gamma):
    """The gradients of x, gamma and beta, of dy (..., d), the normalised numbers (..., d) and one over their deviations (..., 1)."""
    rows, products, scaled = tuple(range(len(dy.shape) - 1)), dy * unscaled, dy * gamma
    mean = ops.mean(scaled, axis=-1, keepdims=True)
    slope = ops.mean(products * gamma, axis=-1, keepdims=True)
    return (scaled - mean - unscaled * slope) * inverse, ops.sum(products, rows), ops.sum(dy, rows)


def normalized_in_training(x: Any, gamma: Any, beta: Any, epsilon: float) -> Any:
    """`normalized` with a backward pass of its own, which keeps the normalised numbers rather than what led to them."""

    @ops.custom_gradient
    def operation(x, gamma, beta):
        centred, inverse = _centred(x, epsilon)
        unscaled = centred * inverse

        def gradient(*given, upstream=None):
            with keras.name_scope("norm_gradient"):
                return _gradients(given[0] if upstream is None else upstream, unscaled, inverse, gamma)

        return unscaled * gamma + beta, gradient

    return operation(x, gamma, beta)


@serializable
class LayerNormalization(keras.layers.LayerNormalization):
    """keras.layers.LayerNormalization over the last axis. Any shape (..., d); 16 bits compute in float32, as in Keras."""

    def call(self, inputs, training=False):
        if not compiles_parts():  # XLA fuses Keras' operations
            return super().call(inputs)
        x = ops.cast(inputs, keras.backend.result_type(inputs.dtype, "float32"))
        gamma, beta = (ops.cast(weight, x.dtype) for weight in (self.gamma, self.beta))
        y = (normalized_in_training if training else normalized)(x, gamma, beta, self.epsilon)
        return ops.cast(y, self.compute_dtype)
