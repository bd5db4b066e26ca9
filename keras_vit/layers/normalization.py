"""Normalisation of pixels, of tokens (arXiv 1607.06450) and of batches."""

import functools
from typing import Any

import keras
from keras import ops

from keras_vit.layers.arguments import per_channel
from keras_vit.layers.backend import compiles_parts, fused_batch_normalization, one_pass
from keras_vit.layers.registration import serializable


@serializable
class PixelNormalization(keras.layers.Layer):
    """(pixels - mean) / std, with `mean` and `std` on the 0..255 scale.

    Args:
        mean, std: a number, or one per channel. 127.5 and 127.5 give [-1, 1] (Google's checkpoints).

    Input (b, h, w, c) of any numeric type; output the same shape in the compute dtype. Computes in float32 under every
    policy; autocast is off, since bfloat16 would round the pixels first.
    """

    def __init__(self, mean: float | tuple = 127.5, std: float | tuple = 127.5, **kwargs: Any):
        if kwargs.pop("autocast", False):
            raise ValueError(
                "PixelNormalization: autocast must be False, since a compute dtype of 16 bits would round the pixels."
            )
        super().__init__(autocast=False, **kwargs)
        mean, std = per_channel(mean, "PixelNormalization: mean"), per_channel(std, "PixelNormalization: std")
        self.mean = mean if isinstance(mean, tuple) else float(mean)
        self.std = std if isinstance(std, tuple) else float(std)
        smallest = min(self.std) if isinstance(self.std, tuple) else self.std
        if smallest <= 0:
            raise ValueError(f"PixelNormalization: std must be positive, got {std}.")

    def build(self, input_shape):
        for name, value in (("mean", self.mean), ("std", self.std)):
            if isinstance(value, tuple) and len(value) != input_shape[-1]:
                raise ValueError(
                    f"PixelNormalization: {name} has {len(value)} values, the image has {input_shape[-1]} channels. "
                    "Give one value per channel, or a single number for all."
                )
        self.built = True

    def call(self, x, mask=None):
        if mask is not None:
            raise ValueError(
                "A mask of an image has no effect on a Vision Transformer. Mask its tokens:"
                " keras_vit.models.encode(tokens, spec, mask=mask)."
            )
        x = ops.cast(x, self.variable_dtype)
        mean = ops.convert_to_tensor(self.mean, dtype=self.variable_dtype)
        std = ops.convert_to_tensor(self.std, dtype=self.variable_dtype)
        return ops.cast((x - mean) / std, self.compute_dtype)

    def compute_output_shape(self, input_shape):
        return input_shape


def _exact(x):
    return ops.cast(x, keras.backend.result_type(x.dtype, "float32"))


def _centred(x, epsilon):
    """(x minus its mean, one over its standard deviation) along the last axis."""
    centred = x - ops.mean(x, axis=-1, keepdims=True)
    return centred, ops.rsqrt(ops.mean(ops.square(centred), axis=-1, keepdims=True) + epsilon)


def normalized(x: Any, gamma: Any, beta: Any, epsilon: float, dtype: str) -> Any:
    """(x - mean) / sqrt(variance + epsilon) gamma + beta along the last axis, as `dtype`: (..., d), (d,), (d,).

    16 bits compute in float32, as in Keras.
    """
    with keras.name_scope("norm"):
        centred, inverse = _centred(_exact(x), epsilon)
        return ops.cast(centred * inverse * _exact(gamma) + _exact(beta), dtype)


def _row_gradients(x, gamma, upstream, epsilon):
    """The gradient of x (..., d), and that of gamma before its sum over rows, from the upstream one (..., d)."""
    dy, (centred, inverse) = _exact(upstream), _centred(_exact(x), epsilon)
    unscaled, scaled = centred * inverse, dy * gamma
    mean = ops.mean(scaled, axis=-1, keepdims=True)
    slope = ops.mean(scaled * unscaled, axis=-1, keepdims=True)
    return ops.cast((scaled - mean - unscaled * slope) * inverse, x.dtype), dy * unscaled


@functools.cache
def _compiled(epsilon, dtype):
    """`normalized` and `_row_gradients`, each in one pass, without sums over rows: XLA runs these on one thread."""
    value = functools.partial(normalized, epsilon=epsilon, dtype=dtype)
    return one_pass(value), one_pass(functools.partial(_row_gradients, epsilon=epsilon))


def normalized_in_training(x: Any, gamma: Any, beta: Any, epsilon: float, dtype: str) -> Any:
    """`normalized`, compiled by XLA, with a backward pass that keeps only x."""
    value, row_gradients = _compiled(epsilon, dtype)

    @ops.custom_gradient
    def operation(x, gamma, beta):
        def gradient(*given, upstream=None):
            dy = given[0] if upstream is None else upstream
            with keras.name_scope("norm_gradient"):
                dx, products = row_gradients(x, gamma, dy)
                rows = tuple(range(len(x.shape) - 1))
                return dx, ops.sum(products, rows), ops.sum(_exact(dy), rows)

        return value(x, gamma, beta), gradient

    return operation(x, _exact(gamma), _exact(beta))  # as tensors: a custom gradient would ask for those of variables


@serializable
class LayerNormalization(keras.layers.LayerNormalization):
    """keras.layers.LayerNormalization over the last axis, with gamma and beta: (b, n, d) -> (b, n, d).

    Takes fewer passes over memory on TensorFlow's CPUs.
    """

    def __init__(self, epsilon: float = 1e-6, **kwargs: Any):
        super().__init__(epsilon=epsilon, **kwargs)

    def call(self, x, training=False):
        x = ops.cast(x, "float64") if self.compute_dtype == "float64" else x  # Keras' layer casts none of its inputs
        if not compiles_parts():
            return super().call(x)
        gamma, beta = ops.convert_to_tensor(self.gamma), ops.convert_to_tensor(self.beta)
        return (normalized_in_training if training else normalized)(x, gamma, beta, self.epsilon, self.compute_dtype)


def batch_normalizations(model: keras.Model) -> list[keras.layers.Layer]:
    """The trainable layers that normalise by the batch, so that parts of a batch give other results than the whole."""
    layers = model._flatten_layers()
    return [each for each in layers if isinstance(each, keras.layers.BatchNormalization) and each.trainable]


@serializable
class BatchNormalization(keras.layers.BatchNormalization):
    """Keras' layer over the last axis, with the global batch's statistics on every backend.

    Args:
        momentum: of the running mean and variance, the share of old values.
        epsilon: added to the variance.

    Input and output (b, h, w, c). Statistics are float32 under every policy (float64 under "float64"): 16 bits would
    round steps of 1% away.
    """

    def __init__(self, momentum: float = 0.99, epsilon: float = 1e-3, **kwargs: Any):
        # JAX has one program for all devices: its batch is the global one, and Keras refuses the argument.
        synchronized = keras.backend.backend() == "tensorflow"
        super().__init__(momentum=momentum, epsilon=epsilon, synchronized=synchronized, **kwargs)

    def add_weight(self, *args, name=None, dtype=None, **kwargs):
        """Keras' add_weight."""
        if name in ("moving_mean", "moving_variance"):
            dtype = keras.backend.result_type(self.variable_dtype, "float32")
        return super().add_weight(*args, name=name, dtype=dtype, **kwargs)

    def call(self, inputs, training=None, mask=None):
        normalized = None
        if training and self.trainable and mask is None:
            normalized = fused_batch_normalization(inputs, self.gamma, self.beta, self.epsilon)
        if normalized is None:
            return super().call(inputs, training=training, mask=mask)
        outputs, mean, variance = normalized
        self.moving_mean.assign(self.moving_mean * self.momentum + mean * (1.0 - self.momentum))
        self.moving_variance.assign(self.moving_variance * self.momentum + variance * (1.0 - self.momentum))
        return outputs

    def get_config(self):
        return {**keras.layers.Layer.get_config(self), "momentum": self.momentum, "epsilon": self.epsilon}
