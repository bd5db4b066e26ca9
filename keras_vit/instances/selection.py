"""From queries with classes and masks to the best objects, or to one segment per query, with fixed shapes.

Letters: b images, q queries, k classes, h' w' the grid of masks, d objects (`limit`).
"""

from typing import Any

import keras
from keras import ops

from keras_vit.detection.heads.suppress import ACTIVATIONS, probabilities
from keras_vit.layers.arguments import choice, integer
from keras_vit.layers.registration import serializable


def mask_quality(masks: Any) -> Any:
    """The mean probability inside each mask, 0 for an empty one: logits (b, h', w', q) -> (b, q)."""
    inside = ops.cast(masks > 0, "float32")
    return ops.sum(ops.sigmoid(masks) * inside, axis=(1, 2)) / ops.maximum(ops.sum(inside, axis=(1, 2)), 1.0)


def _edges(profile):
    """Where logits (b, d, n), at the centres of n cells, first and last exceed 0, as fractions: (b, d) twice.

    Between two centres the logits are linear, and beyond the outer ones constant, as resized masks are; 0 and 0 if none
    exceeds 0.
    """
    n = profile.shape[-1]
    inside, cells = profile > 0, ops.arange(n, dtype="int32")
    first = ops.min(ops.where(inside, cells, n), axis=-1, keepdims=True)  # (b, d, 1)
    last = ops.max(ops.where(inside, cells, -1), axis=-1, keepdims=True)

    def crossing(cell, step):
        """The place between a cell's centre and its neighbour's where the logits are 0, in cells."""
        cell = ops.clip(cell, 0, n - 1)
        beside = ops.clip(cell + step, 0, n - 1)
        own, other = (ops.take_along_axis(profile, place, axis=-1) for place in (cell, beside))
        share = own / ops.where(other == own, 1.0, own - other)
        reach = ops.where(beside == cell, 0.5, share)  # a mask at the border reaches it
        return ops.cast(cell, "float32") + 0.5 + step * reach

    found = last >= first
    low, high = ops.where(found, crossing(first, -1), 0.0), ops.where(found, crossing(last, 1), 0.0)
    return ops.squeeze(low, -1) / n, ops.squeeze(high, -1) / n


def mask_boxes(masks: Any) -> Any:
    """The boxes around masks (b, d, h', w'), logits, to a fraction of a cell: (b, d, 4) as fractions of the image."""
    top, bottom = _edges(ops.max(masks, axis=3))
    left, right = _edges(ops.max(masks, axis=2))
    return ops.stack([top, left, bottom, right], axis=-1)


def _gathered(masks, queries):
    """The masks (b, h', w', q) of queries (b, d): (b, d, h', w')."""
    _, h, w, q = masks.shape
    rows = ops.transpose(ops.reshape(masks, (-1, h * w, q)), (0, 2, 1))  # (b, q, h'*w')
    found = ops.take_along_axis(rows, queries[..., None], axis=1)  # (b, d, h'*w')
    return ops.reshape(found, (-1, queries.shape[1], h, w))


@serializable
class BestObjects(keras.layers.Layer):
    """The objects with the highest scores: "scores" and "labels" (b, d), "boxes" (b, d, 4), "masks" (b, d, h', w').

    A query can be found once for each class (Mask2Former, arXiv 2112.01527). By softmax, its score for a class is the
    class's probability times the mask's mean probability inside it; by sigmoid, the class's probability. Masks are
    logits, boxes fractions of the image, around the masks unless the model predicts boxes. Empty places have score 0,
    label -1, a box of zeros, and a mask without a pixel.

    Args:
        activation: from logits to scores, as in `probabilities`.
        limit: d; at most q * k.
        ignored: numbers of classes that are not objects, such as stuff.
    """

    def __init__(self, activation: str = "softmax", limit: int = 100, ignored: tuple[int, ...] = (), **kwargs: Any):
        super().__init__(**{"autocast": False, "dtype": "float32", **kwargs})
        self.activation = choice(activation, "activation", ACTIVATIONS)
        self.limit, self.ignored = integer(limit, "limit"), tuple(ignored)

    def call(self, logits, masks, boxes=None):
        masks = ops.cast(masks, "float32")
        scores = probabilities(logits, self.activation)  # (b, q, k)
        _, q, k = scores.shape
        if self.activation == "softmax":
            scores = scores * mask_quality(masks)[..., None]
        things = [0.0 if i in self.ignored else 1.0 for i in range(k)]
        scores = ops.reshape(scores * ops.convert_to_tensor(things, "float32"), (-1, q * k))
        d = min(self.limit, q * k)
        scores, place = ops.top_k(scores, d)
        place = ops.cast(place, "int32")
        chosen = _gathered(masks, place // k)  # (b, d, h', w')
        around = mask_boxes(chosen) if boxes is None else ops.take_along_axis(boxes, (place // k)[..., None], axis=1)
        around = ops.clip(ops.cast(around, "float32"), 0.0, 1.0)
        there = (scores > 0) & ops.all(around[..., 2:] > around[..., :2], axis=-1)
        return {
            "scores": ops.where(there, scores, 0.0),
            "labels": ops.where(there, place % k, -1),
            "boxes": ops.where(there[..., None], around, 0.0),
            "masks": ops.where(there[..., None, None], chosen, -1.0),
        }

    def compute_output_spec(self, logits, masks, boxes=None):
        b, q, k = logits.shape
        k -= self.activation == "softmax"
        d, (_, h, w, _) = min(self.limit, q * k), masks.shape
        shapes = {"scores": (b, d), "labels": (b, d), "boxes": (b, d, 4), "masks": (b, d, h, w)}
        return {
            name: keras.KerasTensor(shape, "int32" if name == "labels" else "float32") for name, shape in shapes.items()
        }


@serializable
class BestClasses(keras.layers.Layer):
    """The most probable class of each query: {"scores" (b, q), "labels" (b, q), "masks" (b, h', w', q)}.

    Labels are -1 where "no object" is more probable.

    Args:
        activation: from logits to scores, as in `probabilities`.
    """

    def __init__(self, activation: str = "softmax", **kwargs: Any):
        super().__init__(**{"autocast": False, "dtype": "float32", **kwargs})
        self.activation = choice(activation, "activation", ACTIVATIONS)

    def call(self, logits, masks):
        p = probabilities(logits, self.activation)  # (b, q, k)
        scores, labels = (ops.squeeze(x, -1) for x in ops.top_k(p, 1))  # ONNX lacks an operation of argmax
        if self.activation == "softmax":
            labels = ops.where(scores > 1.0 - ops.sum(p, axis=-1), labels, -1)
        return {"scores": scores, "labels": labels, "masks": ops.cast(masks, "float32")}
