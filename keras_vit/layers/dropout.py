"""Dropout of activations and of whole residual branches. Both take any shape (b, ...) and return it."""

import keras

from keras_vit.layers.randomness import Drawn, ReplicaSeedGenerator
from keras_vit.layers.registration import serializable


class _Random(keras.layers.Layer):
    """What both share: a rate, a seed of their own, and the choice to be given one."""

    def __init__(self, rate, seed=None, **kwargs):
        super().__init__(**kwargs)
        if not 0.0 <= rate < 1.0:
            raise ValueError(f"{type(self).__name__}: rate must lie in [0, 1), got {rate}.")
        self.rate = float(rate)
        self.seed = seed
        self.seed_generator = ReplicaSeedGenerator(seed) if rate else None

    def noise_shape(self, x):
        """The mask's shape; None for x's own."""
        return None

    def call(self, x, training=False, drawn=None):
        """`drawn` is a seed of (2,) integers to use in place of the layer's next one."""
        if not training or not self.rate:
            return x
        seed = self.seed_generator if drawn is None else Drawn(drawn)
        return keras.random.dropout(x, self.rate, noise_shape=self.noise_shape(x), seed=seed)

    def compute_output_shape(self, input_shape, **_):
        return input_shape

    def get_config(self):
        return {**super().get_config(), "rate": self.rate, "seed": self.seed}


@serializable
class Dropout(_Random):
    """Zeroes elements with probability `rate` and scales the others by 1 / (1 - rate). Its masks differ between replicas."""


@serializable
class DropPath(_Random):
    """Zeroes a residual branch for whole examples (stochastic depth, arXiv 1603.09382), scaled by 1 / (1 - rate)."""

    def noise_shape(self, x):
        return (keras.ops.shape(x)[0],) + (1,) * (len(x.shape) - 1)
