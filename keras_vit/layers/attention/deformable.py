"""Deformable attention: a query attends to a few sampled points instead of all places (arXiv 2010.04159, section 4.1).

Letters: b images, q queries, d width, k heads, c channels of a head, l maps, p points.
"""

import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.layers.arguments import integer
from keras_vit.layers.bilinear import sampled
from keras_vit.layers.registration import serializable


def first_offsets(heads: int, maps: int, points: int) -> np.ndarray:
    """Where heads look before training, x and y: each in another direction, its points one behind the other.

    Returns:
        (k, l, p, 2), the larger of x and y of point i being i + 1.
    """
    angles = 2 * math.pi / heads * np.arange(heads)
    directions = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    directions /= np.abs(directions).max(axis=-1, keepdims=True)  # (k, 2)
    return directions[:, None, None] * np.arange(1, points + 1)[:, None] * np.ones((maps, 1, 1))


@serializable
class DeformableAttention(keras.layers.Layer):
    """Attention of boxes to points of feature maps: queries (b, q, d), boxes (b, q, 4), maps -> (b, q, d).

    Each head of a query samples `points` values from each map, at offsets from the centre of its box, and adds them up
    by weights. Offsets and weights are linear functions of the query; an offset of `points` is half a side of the box.

    Args:
        heads: k.
        points: p, of each map.
        maps: l.

    Boxes are centre x, centre y, width and height as fractions of the image. Maps are a list of (b, h, w, d).
    """

    def __init__(self, heads: int, points: int, maps: int = 1, **kwargs: Any):
        super().__init__(**{"autocast": False, **kwargs})  # boxes stay float32
        self.heads = integer(heads, "DeformableAttention: heads")
        self.points = integer(points, "DeformableAttention: points")
        self.maps = integer(maps, "DeformableAttention: maps")

    def build(self, input_shape, map_shapes):
        d, samples, policy = input_shape[-1], self.heads * self.maps * self.points, self.dtype_policy
        if d % self.heads:
            raise ValueError(f"DeformableAttention: a width of {d} does not divide into {self.heads} heads.")
        around = keras.initializers.Constant(first_offsets(self.heads, self.maps, self.points).reshape(-1))
        self.offsets = keras.layers.Dense(
            2 * samples, kernel_initializer="zeros", bias_initializer=around, dtype=policy, name="offsets"
        )
        self.weighting = keras.layers.Dense(samples, kernel_initializer="zeros", dtype=policy, name="weights")
        self.value = keras.layers.Dense(d, dtype=policy, name="value")
        self.out = keras.layers.Dense(d, dtype=policy, name="out")
        for layer in (self.offsets, self.weighting, self.out):
            layer.build(input_shape)
        self.value.build((None, sum(math.prod(shape[1:3]) for shape in map_shapes), d))

    def _locations(self, queries, boxes):
        """Where each query samples, x and y as fractions of the image: (b, q, k, l, p, 2)."""
        (_, q, _), boxes = queries.shape, ops.cast(boxes, "float32")[:, :, None, None, None]
        offsets = ops.cast(self.offsets(queries), "float32")
        offsets = ops.reshape(offsets, (-1, q, self.heads, self.maps, self.points, 2))
        return boxes[..., :2] + offsets * boxes[..., 2:] * (0.5 / self.points)

    def call(self, queries, boxes, maps: Sequence[Any]):
        (_, q, d), k, p = queries.shape, self.heads, self.points
        weights = ops.softmax(ops.reshape(self.weighting(queries), (-1, q, k, self.maps * p)))
        weights = ops.transpose(ops.reshape(weights, (-1, q, k, self.maps, p)), (3, 0, 2, 1, 4))  # (l, b, k, q, p)
        locations = ops.transpose(self._locations(queries, boxes), (3, 0, 2, 1, 4, 5))  # (l, b, k, q, p, 2)
        total: Any = 0.0
        for i, x in enumerate(maps):
            _, h, w, _ = x.shape
            x = ops.transpose(ops.reshape(self.value(x), (-1, h, w, k, d // k)), (0, 3, 1, 2, 4))  # (b, k, h, w, c)
            x = sampled(ops.reshape(x, (-1, h, w, d // k)), ops.reshape(locations[i], (-1, q * p, 2)))  # (b*k, q*p, c)
            x = ops.reshape(x, (-1, k, q, p, d // k))
            total = total + ops.sum(x * weights[i][..., None], axis=3)  # (b, k, q, c)
        return self.out(ops.reshape(ops.transpose(total, (0, 2, 1, 3)), (-1, q, d)))
