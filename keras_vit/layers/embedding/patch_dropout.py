"""PatchDropout (arXiv 2208.07220): fewer patches, so less time and memory in every block."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.layers.arguments import integer
from keras_vit.layers.arguments import rate as checked_rate
from keras_vit.layers.blocks.token_merging import rows, with_prefix
from keras_vit.layers.dropout import ReplicaSeedGenerator
from keras_vit.layers.registration import serializable


def kept_patches(patches: int, share: float) -> int:
    """The number of patches left after dropping this share, at least one."""
    return max(1, round(patches * (1 - share)))


@serializable
class PatchDropout(keras.layers.Layer):
    """Drops a random share of the patches.

    Training draws anew for every image and step. Otherwise `seed` draws the same ones for all images, so that a model's
    answers repeat.

    Args:
        rate: share to drop.
        prefix: number of tokens before the patches, which stay.
        seed: of the choice outside training.

    Input (b, n, d); output (b, m, d), m = prefix + round((1 - rate) * patches), in order.
    """

    def __init__(self, rate: float, prefix: int = 0, seed: int = 0, **kwargs: Any):
        super().__init__(**kwargs)
        self.rate = checked_rate(rate, "PatchDropout: rate")
        self.prefix = integer(prefix, "PatchDropout: prefix", least=0)
        self.seed = integer(seed, "PatchDropout: seed", least=0)
        self.seed_generator = ReplicaSeedGenerator() if self.rate else None
        self.input_spec = keras.layers.InputSpec(ndim=3)

    def build(self, input_shape):
        n = input_shape[1]
        if n is None or n <= self.prefix:
            raise ValueError(
                f"PatchDropout: expected a fixed number of tokens, more than the prefix of {self.prefix}, got {n}."
            )

    def call(self, x, training=False):
        if not self.rate:
            return x
        patches = x.shape[1] - self.prefix
        count = kept_patches(patches, self.rate)
        if not training:
            order = np.random.default_rng(self.seed).permutation(patches)[:count]
            places = np.concatenate([np.arange(self.prefix), np.sort(order) + self.prefix])
            return ops.take(x, places.astype("int32"), axis=1)
        draws = keras.random.uniform((ops.shape(x)[0], patches), seed=self.seed_generator)
        return rows(x, with_prefix(ops.argsort(draws, axis=-1)[:, :count], self.prefix))

    def compute_output_shape(self, input_shape):
        b, n, d = input_shape
        return (b, self.prefix + kept_patches(n - self.prefix, self.rate), d)
