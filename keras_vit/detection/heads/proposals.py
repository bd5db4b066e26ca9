"""Two-stage queries (Deformable DETR, arXiv 2010.04159, appendix A.4): the places that look most like objects.

Every place predicts classes and a box, and the places with the highest scores become proposals. Training uses several
groups of queries (Group DETR, arXiv 2207.13085) with separate weights; inference uses only the first.

Boxes are centre x, centre y, width and height as fractions of the image, and are predicted as deltas of other boxes.

Letters: b images, g groups, n places of all maps, q queries, d width, k classes.
"""

import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.layers.arguments import integer
from keras_vit.layers.bilinear import rows_at
from keras_vit.layers.normalization import normalized
from keras_vit.layers.registration import serializable

RARE = -math.log(99)  # the logit of a probability of 1%, at which sigmoid classifiers start
_SIDE = 0.05  # of the boxes that places start from; twice that with each map
_MARGIN = 0.01  # places nearer to the image's edge propose nothing


def moved(boxes: Any, deltas: Any) -> Any:
    """Boxes (..., 4) moved by deltas (..., 4) in units of their sides, and their sides scaled by exponentials."""
    boxes, deltas = ops.cast(boxes, "float32"), ops.cast(deltas, "float32")
    sides = boxes[..., 2:]
    centers = boxes[..., :2] + deltas[..., :2] * sides
    return ops.concatenate([centers, sides * ops.exp(deltas[..., 2:])], axis=-1)


def anchors(sizes: Sequence[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    """The box that each place starts from, (n, 4), and which places are not at the image's edge, (n,): its box is zero.

    Args:
        sizes: (h, w) of each map.
    """
    found = []
    for level, (h, w) in enumerate(sizes):
        y, x = np.meshgrid((np.arange(h) + 0.5) / h, (np.arange(w) + 0.5) / w, indexing="ij")
        side = np.full_like(x, _SIDE * 2**level)
        found.append(np.stack([x, y, side, side], axis=-1).reshape(-1, 4))
    boxes = np.concatenate(found).astype("float32")
    inside = np.all((boxes > _MARGIN) & (boxes < 1 - _MARGIN), axis=1)
    return np.where(inside[:, None], boxes, 0.0).astype("float32"), inside


@serializable
class GroupedDense(keras.layers.Layer):
    """A linear layer for each group: (b, 1 or g, n, d) -> (b, g, n, units).

    A call gives the number g of groups that take part, the first ones.

    Args:
        units: outputs.
        groups: number of groups.
        first_kernel, first_bias: an initializer's name, and the biases' value at the start.
    """

    def __init__(
        self, units: int, groups: int, first_kernel: str = "glorot_uniform", first_bias: float = 0.0, **kwargs: Any
    ):
        super().__init__(**kwargs)
        self.units, self.groups = integer(units, "GroupedDense: units"), integer(groups, "GroupedDense: groups")
        self.first_kernel, self.first_bias = first_kernel, first_bias

    def build(self, input_shape):
        d = input_shape[-1]

        def each(shape, dtype=None):  # an initializer gives the same values at each call
            made = [keras.initializers.get(self.first_kernel) for _ in range(shape[0])]
            return ops.stack([one(shape[1:], dtype=dtype) for one in made])

        self.kernel = self.add_weight(shape=(self.groups, d, self.units), initializer=each, name="kernel")
        bias = keras.initializers.Constant(self.first_bias)
        self.bias = self.add_weight(shape=(self.groups, self.units), initializer=bias, name="bias")

    def call(self, x, groups=1):
        shared = x.shape[1] == 1
        each = [ops.matmul(x[:, 0 if shared else i], self.kernel[i]) + self.bias[i] for i in range(groups)]
        return ops.stack(each, axis=1)  # (b, n, units) of each group -> (b, g, n, units)

    def compute_output_shape(self, input_shape, **_):
        return (*input_shape[:-1], self.units)


@serializable
class GroupedNorm(keras.layers.Layer):
    """Layer normalisation with a gamma and beta for each group: (b, g, n, d) -> (b, g, n, d).

    Args:
        groups: number of groups.
    """

    def __init__(self, groups: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.groups = integer(groups, "GroupedNorm: groups")

    def build(self, input_shape):
        shape = (self.groups, input_shape[-1])
        self.gamma = self.add_weight(shape=shape, initializer="ones", name="gamma")
        self.beta = self.add_weight(shape=shape, initializer="zeros", name="beta")

    def call(self, x, groups=1):
        gamma, beta = self.gamma[:groups, None], self.beta[:groups, None]
        return normalized(x, gamma, beta, 1e-5, self.compute_dtype)

    def compute_output_shape(self, input_shape, **_):
        return input_shape


@serializable
class Proposals(keras.layers.Layer):
    """The best places of maps, best first: [(b, h, w, d), ...] -> boxes (b, g, q, 4), logits (b, g, q, k), features.

    Boxes and logits are float32. Features (b, g, q, d) are those of which both are made.

    Args:
        classes: k.
        queries: q.
        groups: in training; a call gives the number g that take part.
    """

    def __init__(self, classes: int, queries: int, groups: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.classes, self.queries = integer(classes, "Proposals: classes"), integer(queries, "Proposals: queries")
        self.groups = integer(groups, "Proposals: groups")

    def build(self, input_shapes):
        d, policy, exact = input_shapes[0][-1], self.dtype_policy, self.dtype_policy.variable_dtype
        self.anchors, self.inside = anchors([shape[1:3] for shape in input_shapes])
        n, g = len(self.anchors), self.groups
        self.output_dense = GroupedDense(d, g, dtype=policy, name="output")
        self.output_norm = GroupedNorm(g, dtype=policy, name="norm")
        self.classifier = GroupedDense(self.classes, g, first_bias=RARE, dtype=exact, name="classifier")
        last = GroupedDense(4, g, first_kernel="zeros", dtype=exact, name="box_2")
        self.mlp = [*(GroupedDense(d, g, dtype=policy, name=f"box_{i}") for i in range(2)), last]
        for layer in (self.output_dense, self.output_norm, self.classifier, *self.mlp):
            layer.build((None, 1, n, d))

    def call(self, maps, groups=1):
        n, d = len(self.anchors), maps[0].shape[-1]
        x = ops.concatenate([ops.reshape(x, (-1, math.prod(x.shape[1:3]), d)) for x in maps], axis=1)  # (b, n, d)
        x = ops.where(self.inside[:, None], x, ops.zeros_like(x))[:, None]  # (b, 1, n, d)
        x = y = self.output_norm(self.output_dense(x, groups=groups), groups=groups)  # (b, g, n, d)
        for i, layer in enumerate(self.mlp):
            y = layer(ops.relu(y) if i else y, groups=groups)
        boxes = moved(self.anchors, y)  # (b, g, n, 4)
        logits = ops.cast(self.classifier(x, groups=groups), "float32")  # (b, g, n, k)
        scores = ops.where(self.inside, ops.max(ops.stop_gradient(logits), axis=-1), float("-inf"))
        _, best = ops.top_k(ops.reshape(scores, (-1, n)), self.queries)  # (b*g, q)
        chosen = (rows_at(ops.reshape(y, (-1, n, y.shape[-1])), best) for y in (boxes, logits, x))
        return tuple(ops.reshape(y, (-1, groups, self.queries, y.shape[-1])) for y in chosen)
