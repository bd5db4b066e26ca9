"""Non-maximum suppression with fixed shapes, from scores of boxes to detections, inside compiled and exported models.

Letters: b images, n boxes, k classes, c candidates, d detections (`limit`).
"""

from typing import Any

import keras
from keras import ops

from keras_vit.layers.arguments import choice, flag, integer, number
from keras_vit.layers.boxes import iou as overlap
from keras_vit.layers.registration import serializable

CANDIDATES = 1000  # pairs of a box and a class, the highest scores of an image
ACTIVATIONS = ("sigmoid", "softmax")

THRESHOLD = 0.3  # of scores, until a run has chosen one


def share(value: Any, what: str) -> float:
    """A number from 0 to 1; ValueError, naming `what`, for another."""
    if not 0.0 <= number(value, what) <= 1.0:
        raise ValueError(f"{what} must be from 0 to 1, got {value!r}.")
    return float(value)


def probabilities(logits: Any, activation: str) -> Any:
    """The scores of boxes: logits (b, n, c) -> (b, n, k), float32.

    Args:
        activation: "sigmoid" for k logits, "softmax" for k + 1 with "no object" last.
    """
    logits = ops.cast(logits, "float32")
    return ops.sigmoid(logits) if activation == "sigmoid" else ops.softmax(logits, axis=-1)[..., :-1]


def _candidates(scores, boxes):
    """The highest scores (b, c), highest first, the earlier box and class first of equal ones; rows (b, c, 5) of their
    boxes and labels.
    """
    _, n, k = scores.shape
    found, place = ops.top_k(ops.reshape(scores, (-1, n * k)), min(CANDIDATES, n * k))
    place = ops.cast(place, "int32")
    of_boxes = ops.take_along_axis(boxes, (place // k)[..., None], axis=1)  # (b, c, 4)
    return found, ops.concatenate([of_boxes, ops.cast(place % k, "float32")[..., None]], axis=2)


def _decayed(scores, overlaps, rival, iou, sigma):
    """The scores left beside a picked box: those of its rivals fall, to 0 unless `sigma` is a number."""
    if sigma is None:
        return ops.where(rival & (overlaps > iou), 0.0, scores)
    return ops.where(rival, scores * ops.exp(-(overlaps**2) / sigma), scores)


def suppressed(
    scores: Any,
    boxes: Any,
    iou: float = 0.6,
    threshold: float = 0.0,
    limit: int = 100,
    soft: bool = False,
    across_classes: bool = False,
    sigma: float = 0.5,
) -> tuple[Any, Any, Any]:
    """Picks the highest score, removes or weakens what overlaps its box, and so on: at most `limit` detections.

    A box can be found once for each class. The 1,000 highest scores of an image take part. Of equal scores the earlier
    box goes first, then the earlier class.

    Args:
        scores: (b, n, k), n and k static.
        boxes: (b, n, 4).
        iou: boxes that overlap a better one by more than this are removed; 1 keeps all. Without effect if `soft`.
        threshold: scores must be above it, after `soft` weakened them.
        limit: d.
        soft: weaken the scores by exp(-IoU^2 / sigma) instead (Soft-NMS, arXiv 1704.04503).
        across_classes: whether boxes of other classes are removed or weakened too.
        sigma: of `soft`.

    Returns:
        Boxes (b, d, 4), scores (b, d) and labels (b, d) int32, highest scores first; empty places have score 0, label
        -1 and a box of zeros.
    """
    scores, boxes = ops.cast(scores, "float32"), ops.cast(boxes, "float32")
    left, rows = _candidates(ops.where(scores > threshold, scores, 0.0), boxes)
    c, decay = left.shape[1], sigma if soft else None
    places = ops.arange(c, dtype="int32")[None]  # (1, c)

    def some_left(i, left, found):
        return ops.logical_and(i < limit, ops.any(left > threshold))

    def pick(i, left, found):
        score = ops.max(left, axis=1, keepdims=True)  # (b, 1)
        # Keras' argmax has operations that ONNX lacks.
        best = places == ops.min(ops.where(left == score, places, c), axis=1, keepdims=True)  # (b, c)
        row = ops.sum(ops.where(best[..., None], rows, 0.0), axis=1, keepdims=True)  # (b, 1, 5)
        new = ops.concatenate([row, score[..., None]], axis=2)  # (b, 1, 6)
        here = (ops.arange(limit, dtype="int32")[None] == i) & (score > threshold)  # (b, d)
        found = ops.where(here[..., None], new, found)
        rival = ops.ones_like(best) if across_classes else row[..., 4] == rows[..., 4]
        left = _decayed(left, overlap(row[..., :4], rows[..., :4]), rival, iou, decay)
        return i + 1, ops.where(best, 0.0, left), found

    empty = ops.concatenate([ops.zeros((1, limit, 4)), -ops.ones((1, limit, 1)), ops.zeros((1, limit, 1))], axis=2)
    empty = empty + ops.zeros_like(left[:, :1, None])  # (b, d, 6)
    _, _, found = ops.while_loop(some_left, pick, (ops.convert_to_tensor(0, "int32"), left, empty))
    return found[..., :4], found[..., 5], ops.cast(found[..., 4], "int32")


@serializable
class Suppression(keras.layers.Layer):
    """From a detector's outputs to detections: logits (b, n, c), boxes (b, n, 4) -> {"boxes", "scores", "labels"}.

    Boxes are clipped to the image, then `suppressed`, which see for arguments and results.

    Args:
        activation: from logits to scores, as in `probabilities`.
        best_class: whether each box can be found for its most probable class alone.
    """

    def __init__(
        self,
        activation: str = "sigmoid",
        iou: float = 0.6,
        threshold: float = 0.0,
        limit: int = 100,
        soft: bool = False,
        across_classes: bool = False,
        best_class: bool = False,
        **kwargs: Any,
    ):
        super().__init__(**{"autocast": False, "dtype": "float32", **kwargs})
        self.activation = choice(activation, "activation", ACTIVATIONS)
        self.iou, self.threshold = share(iou, "iou"), share(threshold, "threshold")
        self.limit = integer(limit, "limit")
        self.soft, self.across_classes = flag(soft, "soft"), flag(across_classes, "across_classes")
        self.best_class = flag(best_class, "best_class")

    def call(self, logits, boxes):
        scores, boxes = probabilities(logits, self.activation), ops.clip(ops.cast(boxes, "float32"), 0.0, 1.0)
        if self.best_class:
            scores = ops.where(scores == ops.max(scores, axis=-1, keepdims=True), scores, 0.0)
        options = (self.iou, self.threshold, self.limit, self.soft, self.across_classes)
        return dict(zip(("boxes", "scores", "labels"), suppressed(scores, boxes, *options)))

    def compute_output_spec(self, logits, boxes):
        b, d = logits.shape[0], self.limit
        shapes = {"boxes": ((b, d, 4), "float32"), "scores": ((b, d), "float32"), "labels": ((b, d), "int32")}
        return {name: keras.KerasTensor(shape, dtype) for name, (shape, dtype) in shapes.items()}
