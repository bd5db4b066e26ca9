"""Layer normalisation of tokens (arXiv 1607.06450)."""

from typing import Any

import keras
from keras import ops

from keras_vit.layers.backend import compiles_parts, normalization_in_one_kernel
from keras_vit.layers.normalized import normalized, normalized_in_training
from keras_vit.layers.registration import serializable


@serializable
class LayerNormalization(keras.layers.LayerNormalization):
    """keras.layers.LayerNormalization over the last axis, with gamma and beta: (b, n, d) -> (b, n, d). On TPUs, with
    JAX, by a kernel (layers/tpu); on TensorFlow's CPUs in fewer passes over memory (layers/normalized.py).
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
