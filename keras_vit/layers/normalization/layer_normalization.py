"""Layer normalisation of tokens (arXiv 1607.06450), in fewer passes over memory than Keras' on TensorFlow."""

import functools
from typing import Any

import keras
from keras import ops

from keras_vit.layers.backend import compiles_parts, normalization_in_one_kernel, one_pass
from keras_vit.layers.registration import serializable


def _exact(x):
    return ops.cast(x, keras.backend.result_type(x.dtype, "float32"))


def _centred(x, epsilon):
    """(x minus its mean, one over its standard deviation) along the last axis."""
    centred = x - ops.mean(x, axis=-1, keepdims=True)
    return centred, ops.rsqrt(ops.mean(ops.square(centred), axis=-1, keepdims=True) + epsilon)


def normalized(x: Any, gamma: Any, beta: Any, epsilon: float, dtype: str) -> Any:
    """(x - mean) / sqrt(variance + epsilon) gamma + beta along the last axis: (..., d), (d,), (d,) -> (..., d) of
    `dtype`.

    16 bits compute in float32, as in Keras.
    """
    with keras.name_scope("norm"):
        centred, inverse = _centred(_exact(x), epsilon)
        return ops.cast(centred * inverse * _exact(gamma) + _exact(beta), dtype)


def _row_gradients(x, gamma, upstream, epsilon):
    """The gradient of x (..., d) and, before it is summed over the rows, that of gamma, of what arrives from above
    (..., d).
    """
    dy, (centred, inverse) = _exact(upstream), _centred(_exact(x), epsilon)
    unscaled, scaled = centred * inverse, dy * gamma
    mean = ops.mean(scaled, axis=-1, keepdims=True)
    slope = ops.mean(scaled * unscaled, axis=-1, keepdims=True)
    return ops.cast((scaled - mean - unscaled * slope) * inverse, x.dtype), dy * unscaled


@functools.cache
def _compiled(epsilon, dtype):
    """`normalized` and `_row_gradients`, each in one pass. Sums over rows are left out: XLA makes them on one
    thread.
    """
    value = functools.partial(normalized, epsilon=epsilon, dtype=dtype)
    return one_pass(value), one_pass(functools.partial(_row_gradients, epsilon=epsilon))


def normalized_in_training(x: Any, gamma: Any, beta: Any, epsilon: float, dtype: str) -> Any:
    """`normalized`, compiled by XLA, with a backward pass that keeps x alone."""
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
    """keras.layers.LayerNormalization over the last axis, with gamma and beta: (b, n, d) -> (b, n, d). On TPUs, with
    JAX, by a kernel (layers/tpu); on TensorFlow's CPUs in fewer passes over memory.
    """

    def __init__(self, epsilon: float = 1e-6, **kwargs: Any):
        super().__init__(epsilon=epsilon, **kwargs)

    def call(self, x, training=False):
        return self.fork(x, training)[1]

    def fork(self, x: Any, training: bool = False) -> tuple[Any, Any]:
        """(x, x normalised), with which a residual branch begins: a kernel adds up the gradients of both."""
        gamma, beta = ops.convert_to_tensor(self.gamma), ops.convert_to_tensor(self.beta)
        kernel = normalization_in_one_kernel(x, self.epsilon)
        if kernel is not None:
            return kernel(x, gamma, beta, self._plain)
        if compiles_parts():
            return x, (normalized_in_training if training else normalized)(
                x, gamma, beta, self.epsilon, self.compute_dtype
            )
        return x, super().call(x)

    def _plain(self, x, gamma, beta):
        return x, ops.cast(ops.layer_normalization(x, gamma, beta, axis=-1, epsilon=self.epsilon), x.dtype)
