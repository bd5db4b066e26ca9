"""Losses and accuracy on logits, for integer labels (b,) or rows (b, classes).

Rows contain mixup's proportions, or several labels per image. Label smoothing and class weights apply to both.
"""

import contextlib
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.fit.state import ACTIVATIONS as ACTIVATIONS
from keras_vit.layers.registration import serializable


def as_tensors(*values):
    """Each value as it is, or a nested list of numbers as a tensor."""
    return [ops.convert_to_tensor(value) if isinstance(value, (list, tuple)) else value for value in values]


class Loss(keras.losses.Loss):
    """The base of this package's losses: one value per example, also of nested lists, as in Keras.

    Attributes:
        takes_logits: whether outputs must be logits, not probabilities.
    """

    takes_logits = False

    def __call__(self, y_true, y_pred, sample_weight=None):
        return super().__call__(*as_tensors(y_true, y_pred, sample_weight))


class MeanMetric(keras.metrics.MeanMetricWrapper):
    """The base of this package's metrics: the mean over examples of `values`, also for nested lists.

    A subclass defines `values(y_true, y_pred)` -> (b,), and `_direction`, "up" or "down", for callbacks.
    """

    def __init__(self, name: str, dtype: str | None = None):
        super().__init__(self.values, name=name, dtype=dtype)

    def values(self, y_true: Any, y_pred: Any) -> Any:
        raise NotImplementedError

    def update_state(self, y_true, y_pred, sample_weight=None):
        return super().update_state(*as_tensors(y_true, y_pred, sample_weight))

    def get_config(self) -> dict[str, Any]:
        return {"name": self.name, "dtype": self.dtype}

    @classmethod
    def from_config(cls, config):
        return cls(**config)


def are_numbers(shape, classes: int) -> bool:
    """Whether labels of this shape are class numbers, rather than rows."""
    return classes > 1 and (len(shape) == 1 or shape[-1] == 1)


def label_rows(labels, classes: int, smoothing: float = 0.0):
    """Labels (b,) or (b, classes) as float32 rows (b, classes); `smoothing` is the share spread evenly over classes.

    A class number out of range becomes a row of NaN, so that the loss shows it. ValueError for rows of another width.
    """
    if are_numbers(labels.shape, classes):
        numbers = ops.reshape(labels, (-1,))
        known = ops.logical_and(numbers >= 0, numbers < classes)  # (b,)
        rows = ops.one_hot(ops.cast(numbers, "int32"), classes)
        rows = ops.where(known[:, None], ops.cast(rows, "float32"), float("nan"))
    else:
        rows = ops.cast(ops.reshape(labels, (-1, 1)) if classes == 1 else labels, "float32")
        if rows.shape[-1] != classes:
            raise ValueError(
                f"Expected labels (b,), or rows (b, {classes}) for {classes} classes; got the shape"
                f" {tuple(labels.shape)}."
            )
    return rows * (1.0 - smoothing) + smoothing / classes


def are_wrong(labels, numbers: bool, classes: int):
    """Which labels are impossible: numbers other than 0, 1... classes - 1, shares outside 0 to 1.

    Args:
        labels: floating-point, any shape; NumPy or TensorFlow.
        numbers: whether they are class numbers.
        classes: number of classes.

    Returns:
        Booleans of the same shape.
    """
    if numbers:
        return ~((labels >= 0) & (labels < classes) & (labels % 1 == 0))
    return ~((labels >= 0) & (labels <= 1))


def are_no_shares(sums):
    """Which rows, by their sums, do not add up to one example, as a softmax needs; NumPy or TensorFlow."""
    return abs(sums - 1.0) > _ROUNDING


def message(low, high, numbers: bool, classes: int, hint: str = "") -> str:
    """The message for wrong labels between `low` and `high`, numbers or text."""
    expected = f"whole numbers from 0 to {classes - 1}, for {classes} classes" if numbers else "numbers from 0 to 1"
    return f"The labels should be {expected}, and are from {low} to {high}.{hint}"


ONE_BASED = " They seem to count from 1: subtract 1."
NO_SHARES = (
    "Under SoftmaxCrossEntropy, the labels of an example should sum to 1: shares of one label. Some rows do not sum to"
    " 1. For several labels per image, or none, use keras_vit.training.SigmoidCrossEntropy()."
)
_ROUNDING = 0.02  # of labels in bfloat16


def check_labels(labels, classes: int, weights=None, sums: str | None = None) -> None:
    """Refuses labels that would be ignored, or learned as another class.

    Args:
        labels: array (b,), (b, 1) or (b, classes).
        classes: number of classes.
        sums: the message for rows that do not sum to 1; None if they may.
        weights: (b,) or None for 1. Examples of weight 0 may have any label.

    Raises:
        ValueError: with the labels' range.
    """
    labels, numbers = np.asarray(labels), are_numbers(labels.shape, classes)
    if labels.dtype == object:  # integers mixed with others, a table's column
        with contextlib.suppress(TypeError, ValueError):
            labels = labels.astype("float64")
    if labels.dtype.kind not in "biuf" and labels.dtype.name != "bfloat16":
        raise ValueError(
            f"The labels should be numbers, got {labels.dtype} such as {labels.flat[0]!r}. Number the classes from 0."
        )
    labels = labels.astype("float64").reshape(len(labels), -1)
    if weights is not None and np.shape(weights) in ((len(labels),), (len(labels), 1)):
        labels = labels[np.reshape(weights, (-1,)) != 0]
    if labels.size and are_wrong(labels, numbers, classes).any():
        low, high = labels.min(), labels.max()
        hint = ONE_BASED if numbers and low >= 1 and high == classes else ""
        raise ValueError(message(f"{low:g}", f"{high:g}", numbers, classes, hint))
    if sums and labels.size and labels.shape[-1] == classes > 1 and are_no_shares(labels.sum(axis=-1)).any():
        raise ValueError(sums)


def concrete(tensor) -> np.ndarray | None:
    """A tensor's values as an array; None while a function is traced."""
    if isinstance(tensor, keras.KerasTensor):
        return None
    try:
        return np.asarray(tensor)
    except (TypeError, NotImplementedError):  # errors of JAX and TensorFlow for symbolic tensors
        return None


ONE_LOGIT = (
    "With one class, {}. Use the loss keras_vit.training.SigmoidCrossEntropy() with labels 0 and 1, and the metric "
    "keras.metrics.BinaryAccuracy(threshold=0.0); or two classes."
)


def checked_class_weights(weights):
    """One factor per class as a tuple; ValueError unless a sequence of non-negative numbers."""
    if weights is None:
        return None
    if isinstance(weights, (str, dict)) or not all(w >= 0 for w in weights):
        raise ValueError(
            f"class_weights should be one number per class, in their order, and none below 0; got {weights!r}."
        )
    return tuple(float(w) for w in weights)


class FromLogits(Loss):
    """The base of both losses; a subclass defines `per_example(rows, logits)`, two arrays (b, classes) -> (b,).

    Labels outside the classes raise a ValueError where their values are known, and give a NaN loss inside compiled
    functions (keras_vit.Model checks them first). Examples of weight 0 may have any labels.

    Attributes:
        shares: whether an example's labels must sum to 1.
    """

    shares = False
    takes_logits = True

    def __init__(
        self, label_smoothing: float = 0.0, class_weights: Sequence[float] | None = None, name: str = "loss", **kwargs
    ):
        super().__init__(name=name, **kwargs)
        if not 0.0 <= label_smoothing < 1.0:
            raise ValueError(f"label_smoothing must be in [0, 1), got {label_smoothing}.")
        self.label_smoothing = label_smoothing
        self.class_weights = checked_class_weights(class_weights)

    def __call__(self, y_true, y_pred, sample_weight=None):
        y_true, y_pred, sample_weight = as_tensors(y_true, y_pred, sample_weight)
        if sample_weight is not None:
            y_true, sample_weight = (ops.convert_to_tensor(value, self.dtype) for value in (y_true, sample_weight))
            if len(y_true.shape) in (1, 2) and len(sample_weight.shape) == 1:
                counts = ops.reshape(sample_weight != 0, (-1, *[1] * (len(y_true.shape) - 1)))  # (b,) -> (b,) or (b, 1)
                numbers = are_numbers(y_true.shape, y_pred.shape[-1])
                y_true = ops.where(counts, y_true, 0.0 if numbers or not self.shares else 1.0 / y_true.shape[-1])
        return super().__call__(y_true, y_pred, sample_weight)

    def call(self, y_true, y_pred):
        logits = ops.cast(y_pred, "float32")
        classes = logits.shape[-1]
        values = concrete(y_true)
        if values is not None:
            check_labels(values, classes, sums=NO_SHARES if self.shares else None)
        if self.class_weights is not None and len(self.class_weights) != classes:
            raise ValueError(f"class_weights has {len(self.class_weights)} values for {classes} classes.")
        loss = self.per_example(label_rows(y_true, classes, self.label_smoothing), logits)
        return loss if self.class_weights is None else loss * self._example_weights(label_rows(y_true, classes))

    def _example_weights(self, rows):
        """The mean class weight of each example's labels, 1 without labels: rows (b, classes) -> (b,)."""
        labels = ops.sum(rows, axis=-1)
        summed = ops.matmul(rows, ops.convert_to_tensor(self.class_weights, "float32"))
        return ops.where(labels > 0, summed / ops.where(labels > 0, labels, 1.0), 1.0)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "label_smoothing": self.label_smoothing, "class_weights": self.class_weights}


@serializable
class SoftmaxCrossEntropy(FromLogits):
    """-sum(rows * log softmax(logits)): one class per image.

    Args:
        label_smoothing: share of the label spread evenly over all classes.
        class_weights: one factor per class for the loss of its examples, None for 1. An example with several labels has
            their mean factor, one without labels 1.
    """

    shares = True

    def per_example(self, rows: Any, logits: Any) -> Any:
        if logits.shape[-1] == 1:
            raise ValueError(ONE_LOGIT.format("SoftmaxCrossEntropy is always 0"))
        return -ops.sum(rows * ops.log_softmax(logits, axis=-1), axis=-1)


@serializable
class SigmoidCrossEntropy(FromLogits):
    """Binary cross-entropy summed over classes: AugReg's loss, also for several labels per image.

    Arguments as in SoftmaxCrossEntropy.
    """

    def per_example(self, rows: Any, logits: Any) -> Any:
        losses = rows * ops.log_sigmoid(logits) + (1.0 - rows) * ops.log_sigmoid(-logits)
        return -ops.sum(losses, axis=-1)


LOSSES = {"softmax": SoftmaxCrossEntropy, "sigmoid": SigmoidCrossEntropy}


@serializable
class Accuracy(MeanMetric):
    """Top-k accuracy: the share of images with their label among the `k` largest logits.

    The label of a row (b, classes) is its largest entry. Of equal logits the first class counts as larger, for every k:
    a head of zeros is right about k classes, not about all.
    """

    _direction = "up"

    def __init__(self, k: int = 1, name: str = "accuracy", dtype: str | None = None):
        self.k = k
        super().__init__(name, dtype)

    def values(self, y_true, y_pred):
        if y_pred.shape[-1] == 1:
            raise ValueError(ONE_LOGIT.format("the largest of one logit is always the first"))
        labels = y_true
        if len(y_true.shape) == 2 and y_true.shape[-1] != 1:
            labels = ops.argmax(y_true, axis=-1)
        labels = ops.cast(ops.reshape(labels, (-1,)), "int32")
        if self.k == 1:
            return ops.cast(ops.equal(ops.cast(ops.argmax(y_pred, axis=-1), "int32"), labels), "float32")
        return ops.cast(self._among_the_first(labels, ops.cast(y_pred, "float32")), "float32")

    def _among_the_first(self, labels, logits):
        """Whether fewer than k classes precede the label (b,), by logits (b, c), then by index."""
        classes = ops.arange(logits.shape[-1], dtype="int32")
        own = ops.equal(labels[:, None], classes)  # (b, c)
        own_logit = ops.sum(ops.where(own, logits, 0.0), axis=-1, keepdims=True)  # (b, 1)
        tied_before = ops.logical_and(ops.equal(logits, own_logit), classes < labels[:, None])
        before = ops.logical_or(ops.logical_not(logits <= own_logit), tied_before)  # a NaN precedes all others
        return ops.logical_and(ops.any(own, axis=-1), ops.sum(ops.cast(before, "int32"), axis=-1) < self.k)

    def get_config(self) -> dict[str, Any]:
        return {"k": self.k, **super().get_config()}


def balanced_class_weights(counts: Sequence[int]) -> tuple[float, ...]:
    """N / (classes * count): inverse to each class's count, mean 1 over examples; ValueError for an empty class."""
    empty = [str(number) for number, count in enumerate(counts) if not count]
    if empty:
        shown = ", ".join(empty[:10]) + (", ..." if len(empty) > 10 else "")
        raise ValueError(
            f"Balanced class weights need at least one example of every class; without any, from 0: {shown}."
        )
    return tuple(sum(counts) / (len(counts) * count) for count in counts)


_SOFTMAX_LOSSES = (
    SoftmaxCrossEntropy,
    keras.losses.CategoricalCrossentropy,
    keras.losses.CategoricalFocalCrossentropy,
    keras.losses.SparseCategoricalCrossentropy,
)
_SIGMOID_LOSSES = (SigmoidCrossEntropy, keras.losses.BinaryCrossentropy, keras.losses.BinaryFocalCrossentropy)


def activation_by(loss: Any) -> str | None:
    """Which of ACTIVATIONS turns the logits that a loss trains into probabilities; None for other or several losses."""
    if isinstance(loss, _SIGMOID_LOSSES):
        return "sigmoid"
    return "softmax" if isinstance(loss, _SOFTMAX_LOSSES) else None


def divides_by_weights(loss) -> bool:
    """Whether a compiled loss, or each in a structure, is divided by the sum of the weights."""
    losses = [one for one in keras.tree.flatten(loss) if one is not None]
    return bool(losses) and all(getattr(one, "reduction", None) == "mean_with_sample_weight" for one in losses)


def are_per_example(loss) -> bool:
    """Whether a compiled loss, or each in a structure, gives one value per example, as all of this package do."""
    losses = [one for one in keras.tree.flatten(loss) if one is not None]
    return bool(losses) and all(isinstance(one, Loss) for one in losses)


def sums_over_batch(loss) -> bool:
    """Whether a compiled loss, or each in a structure, is a sum over the batch rather than a mean; ValueError if mixed.

    Sums and means need different shares of a replica and of a micro-batch.
    """
    sums = {getattr(one, "reduction", None) == "sum" for one in keras.tree.flatten(loss) if one is not None}
    if len(sums) > 1:
        raise ValueError(
            "Some losses have reduction='sum' and others are means over the batch: give them all the same reduction."
        )
    return sums == {True}


def sum_of_weights(weights):
    """The sum of examples' weights, by which "mean_with_sample_weight" divides; ValueError for weights per output."""
    each = keras.tree.flatten(weights)
    if len(each) > 1:
        raise ValueError(
            'With reduction="mean_with_sample_weight" and weights for each output, the parts of a batch have no one'
            " share: use the default reduction under several replicas or micro_batches."
        )
    return ops.sum(ops.cast(each[0], "float32"))
