"""Layer normalisation of tokens (arXiv 1607.06450)."""

from typing import Any

import keras
from keras import ops

from keras_vit.layers.backend import normalization_in_one_kernel
from keras_vit.layers.registration import serializable


@serializable
class LayerNorm(keras.layers.LayerNormalization):
    """keras.layers.LayerNormalization over the last axis, with gamma and beta: (b, n, d) -> (b, n, d). On TPUs, with JAX, by a kernel (layers/tpu)."""

    def __init__(self, epsilon: float = 1e-6, **kwargs: Any):
        super().__init__(epsilon=epsilon, **kwargs)

    def call(self, x):
        return self.fork(x)[1]

    def fork(self, x: Any) -> tuple[Any, Any]:
        """(x, x normalised), with which a residual branch begins: a kernel adds up the gradients of both."""
        kernel = normalization_in_one_kernel(x, self.epsilon)
        if kernel is None:
            return x, super().call(x)
        return kernel(x, ops.convert_to_tensor(self.gamma), ops.convert_to_tensor(self.beta), self._plain)

    def _plain(self, x, gamma, beta):
        return x, ops.cast(ops.layer_normalization(x, gamma, beta, axis=-1, epsilon=self.epsilon), x.dtype)
