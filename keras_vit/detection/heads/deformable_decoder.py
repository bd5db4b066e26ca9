"""The decoder of LW-DETR (arXiv 2406.03459): queries attend to each other, then to points around their boxes.

Boxes are centre x, centre y, width and height as fractions of the image. The positions of queries are made of their
boxes, once, before the first layer.

Letters: b images, g groups, q queries of a group, d width, k heads, c channels of a head.
"""

import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.layers.arguments import integer, rate
from keras_vit.layers.attention.deformable import DeformableAttention
from keras_vit.layers.dropout import Dropout
from keras_vit.layers.normalization import LayerNormalization
from keras_vit.layers.registration import serializable

_EPSILON = 1e-5
_SLOWEST = 10_000  # of the waves' lengths


def box_waves(boxes: Any, width: int) -> Any:
    """Sines and cosines of boxes: (b, q, 4) -> (b, q, 2 * width), those of y first, then x, width and height.

    Args:
        width: a multiple of 4, half of it for each number: sine and cosine of each wave in turn.
    """
    lengths = _SLOWEST ** (np.arange(width // 4) * 4 / width)
    boxes = ops.cast(boxes, "float32")
    angles = ops.stack([boxes[..., i] for i in (1, 0, 2, 3)], axis=-1)[..., None] * (2 * math.pi / lengths)
    waves = ops.stack([ops.sin(angles), ops.cos(angles)], axis=-1)  # (b, q, 4, width / 4, 2)
    return ops.reshape(waves, (-1, boxes.shape[1], 2 * width))


@serializable
class QueryAttention(keras.layers.Layer):
    """Self-attention inside each group; positions count for queries and keys alone: (b, g*q, d) -> (b, g*q, d).

    Args:
        heads: k.
    """

    def __init__(self, heads: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.heads = integer(heads, "QueryAttention: heads")

    def build(self, input_shape):
        d = input_shape[-1]
        if d % self.heads:
            raise ValueError(f"A decoder of width {d} does not divide into {self.heads} heads: change width or heads.")
        names = ("query", "key", "value", "out")
        self.query, self.key, self.value, self.out = (
            keras.layers.Dense(d, dtype=self.dtype_policy, name=name) for name in names
        )
        for layer in (self.query, self.key, self.value, self.out):
            layer.build(input_shape)

    def call(self, x, positions, groups=1):
        _, n, d = x.shape
        k, q = self.heads, n // groups
        at = x + positions

        def split(y):  # (b, g*q, d) -> (b*g, k, q, c)
            return ops.transpose(ops.reshape(y, (-1, q, k, d // k)), (0, 2, 1, 3))

        queries = split(self.query(at)) * ops.cast((d // k) ** -0.5, x.dtype)
        scores = ops.matmul(queries, ops.transpose(split(self.key(at)), (0, 1, 3, 2)))  # (b*g, k, q, q)
        y = ops.matmul(ops.softmax(scores), split(self.value(x)))
        return self.out(ops.reshape(ops.transpose(y, (0, 2, 1, 3)), (-1, n, d)))


@serializable
class DecoderLayer(keras.layers.Layer):
    """x = norm(x + attention(x)); x = norm(x + attention to maps(x)); x = norm(x + mlp(x)): (b, g*q, d) -> the same.

    Args:
        heads: of the attention among queries.
        map_heads, points: of the attention to maps.
        mlp_dim: hidden width of the MLP, with ReLU.
        dropout: rate after each attention and each layer of the MLP.
    """

    def __init__(self, heads: int, map_heads: int, points: int, mlp_dim: int, dropout: float = 0.0, **kwargs: Any):
        super().__init__(**kwargs)
        self.heads, self.map_heads = integer(heads, "heads"), integer(map_heads, "map_heads")
        self.points, self.mlp_dim = integer(points, "points"), integer(mlp_dim, "mlp_dim")
        self.dropout = rate(dropout, "dropout")

    def build(self, input_shape, map_shapes):
        policy, d = self.dtype_policy, input_shape[-1]
        self.attention = QueryAttention(self.heads, dtype=policy, name="attention")
        self.map_attention = DeformableAttention(
            self.map_heads, self.points, len(map_shapes), dtype=policy, name="map_attention"
        )
        self.map_attention.build(input_shape, map_shapes)
        self.hidden = keras.layers.Dense(self.mlp_dim, "relu", dtype=policy, name="hidden")
        self.out = keras.layers.Dense(d, dtype=policy, name="out")
        names = ("attention_norm", "map_norm", "mlp_norm")
        self.attention_norm, self.map_norm, self.mlp_norm = (
            LayerNormalization(_EPSILON, dtype=policy, name=name) for name in names
        )
        for layer in (self.attention, self.hidden, self.attention_norm, self.map_norm, self.mlp_norm):
            layer.build(input_shape)
        self.out.build((*input_shape[:-1], self.mlp_dim))
        self.drops = [Dropout(self.dropout, dtype=policy, name=f"dropout_{i}") for i in range(4)]

    def call(self, x, positions, boxes, maps, groups=1, training=False):
        y = self.attention(x, positions, groups=groups)
        x = self.attention_norm(x + self.drops[0](y, training=training), training=training)
        y = self.map_attention(x + positions, boxes, maps)
        x = self.map_norm(x + self.drops[1](y, training=training), training=training)
        y = self.out(self.drops[2](self.hidden(x), training=training))
        return self.mlp_norm(x + self.drops[3](y, training=training), training=training)
