"""Losses and accuracy on hidden patches, for masked pre-training.

y marks the hidden patches, so these are pure functions of (y, y_pred); an example without a hidden patch counts as 0.
"""

import math
from typing import Any

from keras import ops

from keras_vit.fit.losses import Loss, MeanMetric
from keras_vit.layers.registration import serializable


def _masked_mean(values: Any, counted: Any) -> Any:
    """The mean of the counted values: (b, n), (b, n) of 0 and 1 -> (b,)."""
    return ops.divide_no_nan(ops.sum(values * counted, axis=-1), ops.sum(counted, axis=-1))


def _check_y(name: str, y: Any, expected: tuple) -> None:
    """Refuses y of a shape that would be broadcast silently, such as one label (b,) per image.

    Args:
        name: of the loss or metric.
        y: (b, ...).
        expected: the shape without b; None if unknown.
    """
    given = tuple(y.shape[1:])
    if len(given) != len(expected) or any(None not in pair and pair[0] != pair[1] for pair in zip(given, expected)):
        shape = ", ".join(str(size) for size in ("b", *expected))
        raise ValueError(
            f"{name} expects y of shape ({shape}), the targets of each patch, as model.masked(images) makes them;"
            f" got {tuple(y.shape)}."
        )


@serializable
class MaskedSquaredError(Loss):
    """The mean squared error of hidden patches (MAE, arXiv 2111.06377, section 3).

    y (b, n): 1 for a hidden patch, else 0. y_pred (b, 2, n, v): predicted and true patch values, from
    keras_vit.MaskedAutoencoder. An example's loss is the mean over the values of its hidden patches.
    """

    def __init__(self, name: str = "loss", **kwargs: Any):
        super().__init__(name=name, **kwargs)

    def call(self, y_true, y_pred):
        if len(y_pred.shape) != 4 or y_pred.shape[1] != 2:
            raise ValueError(
                "MaskedSquaredError takes predicted and true values of patches (b, 2, n, v), got outputs of shape"
                f" {y_pred.shape}."
            )
        _check_y("MaskedSquaredError", y_true, (y_pred.shape[2],))
        predicted, true = (ops.cast(y_pred[:, i], "float32") for i in (0, 1))  # (b, n, v)
        return _masked_mean(ops.mean(ops.square(predicted - true), axis=-1), ops.cast(y_true, "float32"))


def _classes_that_count(y, logits):
    """(classes with 0 for -1, whether each counts), both (b, m), from y (b, m...) and logits (b, m..., c)."""
    y = ops.cast(ops.reshape(y, (-1, math.prod(logits.shape[1:-1]))), "int32")
    return ops.maximum(y, 0), ops.cast(y >= 0, "float32")


@serializable
class MaskedCrossEntropy(Loss):
    """The mean softmax cross-entropy of hidden patches (arXiv 2010.11929, appendix B.1.2).

    y (b, n) or (b, n, m): class numbers, -1 where nothing is predicted. y_pred: logits (b, n, c) or (b, n, m, c). An
    example's loss is the mean over its predictions.
    """

    def __init__(self, name: str = "loss", **kwargs: Any):
        super().__init__(name=name, **kwargs)

    def call(self, y_true, y_pred):
        _check_y("MaskedCrossEntropy", y_true, y_pred.shape[1:-1])
        classes, counted = _classes_that_count(y_true, y_pred)
        # (b, m..., c) -> (b, m, c)
        logits = ops.reshape(ops.cast(y_pred, "float32"), (-1, counted.shape[1], y_pred.shape[-1]))
        # (b, m)
        log_likelihood = ops.take_along_axis(ops.log_softmax(logits, axis=-1), classes[..., None], axis=-1)[..., 0]
        return _masked_mean(-log_likelihood, counted)


@serializable
class MaskedAccuracy(MeanMetric):
    """The accuracy on hidden patches; y and y_pred as in MaskedCrossEntropy."""

    _direction = "up"

    def __init__(self, name: str = "accuracy", dtype: str | None = None):
        super().__init__(name, dtype)

    def values(self, y_true, y_pred):
        classes, counted = _classes_that_count(y_true, y_pred)
        chosen = ops.reshape(ops.cast(ops.argmax(y_pred, axis=-1), "int32"), (-1, counted.shape[1]))
        return _masked_mean(ops.cast(chosen == classes, "float32"), counted)
