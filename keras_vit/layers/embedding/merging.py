"""Patch merging: a map of half the size and twice the width (Swin, arXiv 2103.14030, section 3.1)."""

from typing import Any

import keras
from keras import ops

from keras_vit.layers.arguments import flag, number
from keras_vit.layers.attention.windows import pad
from keras_vit.layers.dense import ComposedLayer, Dense
from keras_vit.layers.normalization import LayerNormalization
from keras_vit.layers.registration import serializable


@serializable
class PatchMerging(ComposedLayer):
    """Joins each 2x2 places of a map and embeds them linearly: (b, h, w, d) -> (b, h/2, w/2, 2d), rounded up.

    Args:
        norm_first: normalise the 4d joined values (Swin), or the 2d new ones (Swin V2).
        epsilon: of the normalisation.

    The joined values are those of the rows 0, 1, 0, 1 and columns 0, 0, 1, 1. Zeros fill odd maps.
    """

    def __init__(self, norm_first: bool = True, epsilon: float = 1e-5, **kwargs: Any):
        super().__init__(**kwargs)
        self.norm_first = flag(norm_first, "PatchMerging: norm_first")
        self.epsilon = number(epsilon, "PatchMerging: epsilon", least=0)
        self.input_spec = keras.layers.InputSpec(ndim=4)

    def build(self, input_shape):
        b, h, w, d = input_shape
        out, policy = self.compute_output_shape(input_shape), self.dtype_policy
        joined = (*out[:-1], 4 * d)
        self.norm = LayerNormalization(epsilon=self.epsilon, dtype=policy, name="norm")
        self.norm.build(joined if self.norm_first else out)
        self.reduction = Dense(2 * d, use_bias=False, dtype=policy, name="reduction")
        self.reduction.build(joined)
        self.restore_dense()

    def call(self, x, training=False):
        x = pad(x, (2, 2))
        h, w, d = x.shape[1:]
        x = ops.reshape(x, (-1, h // 2, 2, w // 2, 2, d))  # (b, h, w, d) -> (b, h/2, rows, w/2, columns, d)
        x = ops.transpose(x, (0, 1, 3, 4, 2, 5))  # (b, h/2, w/2, columns, rows, d)
        x = ops.reshape(x, (-1, h // 2, w // 2, 4 * d))
        if self.norm_first:
            return self.reduction(self.norm(x, training=training))
        return self.norm(self.reduction(x), training=training)

    def compute_output_shape(self, input_shape, **_):
        b, h, w, d = input_shape
        return (b, -(-h // 2), -(-w // 2), 2 * d)
