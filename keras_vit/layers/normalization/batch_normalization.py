"""Batch normalisation over all replicas, by the engine's one operation for it where there is one."""

from typing import Any

import keras

from keras_vit.layers.backend import fused_batch_normalization
from keras_vit.layers.registration import serializable


@serializable
class BatchNormalization(keras.layers.BatchNormalization):
    """Keras' layer over the last axis, with the statistics of the global batch on every backend.

    Args:
        momentum: of the running mean and variance, the share of the old values.
        epsilon: added to the variance.

    Input and output (b, h, w, c). The statistics are float32 under every policy.
    """

    def __init__(self, momentum: float = 0.99, epsilon: float = 1e-3, **kwargs: Any):
        # A program on JAX is one for all devices: its batch is the global one, and Keras refuses the argument.
        synchronized = keras.backend.backend() == "tensorflow"
        super().__init__(momentum=momentum, epsilon=epsilon, synchronized=synchronized, **kwargs)

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
