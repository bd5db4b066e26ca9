"""Losses of images with their texts: SigLIP's (arXiv 2303.15343, section 3.2) and CLIP's (2103.00020, figure 3)."""

from typing import Any

from keras import ops

from keras_vit.fit.losses import Loss, MeanMetric
from keras_vit.layers.backend import replica_id
from keras_vit.layers.registration import serializable


def _positives(rows):
    """Where the partner of each image or text is among all: (b, B) booleans; a replica's follow those before it."""
    b, every = ops.shape(rows)[0], ops.shape(rows)[-1]
    own = replica_id() * b + ops.arange(b)  # (b,)
    return ops.equal(own[:, None], ops.arange(every)[None])


class ContrastiveLoss(Loss):
    """The base of both losses: a value per pair from the logits (b, 2, B) of a `keras_vit.Contrastive`.

    Labels are not read. A subclass defines `per_pair(images, texts, positive)`, three arrays (b, B) -> (b,).
    """

    takes_logits = True

    def __init__(self, name: str = "loss", **kwargs: Any):
        super().__init__(name=name, **kwargs)

    def call(self, y_true, y_pred):
        rows = ops.cast(y_pred, "float32")
        return self.per_pair(rows[:, 0], rows[:, 1], _positives(rows))

    def per_pair(self, images: Any, texts: Any, positive: Any) -> Any:
        raise NotImplementedError


@serializable
class SigmoidContrastive(ContrastiveLoss):
    """SigLIP's loss, which decides each pair by itself: the mean over images of a sum over texts.

    The terms are -log sigmoid(logit) for an image's own text and -log sigmoid(-logit) for others.
    """

    def per_pair(self, images: Any, texts: Any, positive: Any) -> Any:
        return -ops.sum(ops.log_sigmoid(ops.where(positive, images, -images)), axis=-1)


@serializable
class SoftmaxContrastive(ContrastiveLoss):
    """CLIP's loss: the mean cross-entropy of an image's text among all texts and of a text's image among all images."""

    def per_pair(self, images: Any, texts: Any, positive: Any) -> Any:
        found = [ops.sum(ops.where(positive, ops.log_softmax(rows, axis=-1), 0.0), axis=-1) for rows in (images, texts)]
        return -(found[0] + found[1]) / 2


@serializable
class PairAccuracy(MeanMetric):
    """The share of images that fit their own text better than any other of the batch."""

    _direction = "up"

    def __init__(self, name: str = "pair_accuracy", dtype: str | None = None):
        super().__init__(name, dtype)

    def values(self, y_true: Any, y_pred: Any) -> Any:
        rows = y_pred[:, 0]  # (b, B)
        best = ops.one_hot(ops.argmax(rows, axis=-1), ops.shape(rows)[-1])
        return ops.sum(best * ops.cast(_positives(rows), best.dtype), axis=-1)
