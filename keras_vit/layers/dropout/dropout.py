"""Dropout of activations and of whole residual branches. Both take any shape (b, ...) and return the same shape."""

from typing import Any

import keras

from keras_vit.layers.arguments import integer
from keras_vit.layers.arguments import rate as checked_rate
from keras_vit.layers.backend import hashes_masks
from keras_vit.layers.dropout.hashed_masks import keep_mask
from keras_vit.layers.dropout.seeds import FixedSeed, ReplicaSeedGenerator
from keras_vit.layers.registration import serializable


class _RandomLayer(keras.layers.Layer):
    """The part that both layers share: a rate, a seed generator, and the option to be called with a seed."""

    def __init__(self, rate: float, seed: int | None = None, **kwargs):
        super().__init__(**kwargs)
        self.rate = checked_rate(rate, f"{type(self).__name__}: rate")
        self.seed = None if seed is None else integer(seed, f"{type(self).__name__}: seed", least=0)
        self.supports_masking = True
        self.seed_generator = ReplicaSeedGenerator(self.seed) if self.rate else None

    def noise_shape(self, x: Any) -> tuple | None:
        """The mask's shape; None for the shape of x."""
        return None

    def call(self, x, training=False, seed=None):
        """With `seed`, (2,) integers, the mask comes from it; otherwise from the layer's own generator."""
        if not training or not self.rate:
            return x
        generator, shape = self.seed_generator if seed is None else FixedSeed(seed), self.noise_shape(x)
        if not hashes_masks(shape or tuple(x.shape)):
            return keras.random.dropout(x, self.rate, noise_shape=shape, seed=generator)
        kept = keep_mask(shape or tuple(x.shape), self.rate, generator.next())
        return keras.ops.where(kept, x / (1.0 - self.rate), keras.ops.zeros_like(x))

    def compute_output_shape(self, input_shape, **_):
        return input_shape

    def get_config(self):
        return {**super().get_config(), "rate": self.rate, "seed": self.seed}


@serializable
class Dropout(_RandomLayer):
    """Zeroes elements with probability `rate` and scales the others by 1 / (1 - rate). Masks differ between
    replicas.
    """


@serializable
class DropPath(_RandomLayer):
    """Zeroes a residual branch for whole examples (stochastic depth, arXiv 1603.09382) and scales the others by 1 / (1
    - rate).
    """

    def noise_shape(self, x: Any) -> tuple | None:
        return (keras.ops.shape(x)[0],) + (1,) * (len(x.shape) - 1)
