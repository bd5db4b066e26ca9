"""Scores of a class per pixel: mean intersection over union and accuracies, from one confusion matrix.

A class that neither the masks nor the predictions have is left out of the mean IoU, one that the masks lack out of the
mean accuracy. Void pixels count nowhere. Scores of no pixels are 0.
"""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.fit.losses import as_tensors, concrete
from keras_vit.io.target_values import VOID
from keras_vit.layers.backend import count_values
from keras_vit.layers.registration import serializable
from keras_vit.segmentation.mask_rules import MaskRules


def count_where(values: Any, where: Any, n: int) -> Any:
    """How often each of 0, 1... n - 1 occurs among the values that are true in `where`: int32 (n,)."""
    return count_values(ops.reshape(ops.where(where, values, n), (-1,)), n + 1)[:n]


def confusion(masks: Any, predicted: Any, classes: int, void: int = VOID) -> Any:
    """Pixels of each true class (rows) by predicted class (columns): (classes, classes) int32 tensor.

    Args:
        masks: (b, h, w) or (b, h, w, 1) integers; values other than classes count nowhere.
        predicted: (b, h, w) classes.
        classes: their number.
        void: value of pixels without a class.
    """
    predicted = ops.cast(predicted, "int32")
    masks = ops.reshape(ops.cast(masks, "int32"), ops.shape(predicted))
    counts = ops.logical_and(ops.logical_and(masks >= 0, masks < classes), masks != void)
    found = count_where(masks * classes + predicted, counts, classes * classes)
    return ops.reshape(found, (classes, classes))


def class_scores(counts: Any, xp: Any = np) -> tuple[Any, Any, Any, Any]:
    """(IoU, accuracy, where the IoU is defined, where the accuracy is), each (classes,), of a confusion matrix.

    `xp` is the module of its array functions, NumPy or keras.ops. Undefined scores are 0.
    """
    right, true, predicted = xp.diagonal(counts), xp.sum(counts, axis=1), xp.sum(counts, axis=0)
    union = true + predicted - right
    return right / xp.maximum(union, 1), right / xp.maximum(true, 1), union > 0, true > 0


def mean_where(values: Any, defined: Any, xp: Any = np) -> Any:
    """The mean of the values that are defined, 0 if none is."""
    ones = xp.where(defined, 1.0, 0.0)
    return xp.sum(values * ones) / xp.maximum(xp.sum(ones), 1.0)


def scores(counts: Any, xp: Any = np) -> dict[str, Any]:
    """{"miou", "pixel_accuracy", "mean_accuracy"} of a confusion matrix; `xp` as in `class_scores`."""
    iou, accuracy, found, labelled = class_scores(counts, xp)
    return {
        "miou": mean_where(iou, found, xp),
        "pixel_accuracy": xp.sum(xp.diagonal(counts)) / xp.maximum(xp.sum(counts), 1),
        "mean_accuracy": mean_where(accuracy, labelled, xp),
    }


_BASE = 2**12
_POWERS = (_BASE**0, _BASE**1, _BASE**2)


class CountingMetric(keras.metrics.Metric):
    """A metric of exact counts, up to 2**36 on each of 4,096 replicas.

    float32 represents integers to 2**24 only, which an epoch's pixels exceed, and neither JAX by default nor TPUs have
    int64 or float64. So each count is three digits to the base 4096, in float32, as every strategy sums it.

    Args:
        shape: of the counts.
    """

    def __init__(self, shape: tuple[int, ...], name: str, dtype: str | None = None):
        super().__init__(name=name, dtype=dtype)
        self.digits = self.add_variable((len(_POWERS), *shape), "zeros", dtype="float32", name="digits")

    def add(self, counts: Any) -> None:
        """Adds int32 counts of the metric's shape."""
        new = [ops.floor_divide(counts, power) % _BASE for power in _POWERS[:-1]]
        new = ops.cast(ops.stack([*new, ops.floor_divide(counts, _POWERS[-1])]), "float32")
        self.digits.assign(_carried(ops.convert_to_tensor(self.digits) + new))

    def totals(self) -> Any:
        """The counts as float32, rounded from the exact ones: alike, whichever replicas counted."""
        digits = _carried(ops.convert_to_tensor(self.digits))
        return sum(digits[i] * float(power) for i, power in reversed(list(enumerate(_POWERS))))

    def counts(self) -> np.ndarray:
        """The exact counts, int64."""
        digits = np.asarray(ops.convert_to_numpy(self.digits)).astype("int64")
        return np.tensordot(np.array(_POWERS), digits, 1)


def _carried(digits):
    """Digits below the base, except for the last."""
    done = []
    carry = 0.0
    for i in range(len(_POWERS) - 1):
        total = digits[i] + carry
        carry = ops.floor(total / _BASE)
        done.append(total - carry * _BASE)
    return ops.stack([*done, digits[len(_POWERS) - 1] + carry])


class MaskMetric(CountingMetric):
    """A CountingMetric of masks and logits; `update_state` takes the arguments of SegmentationScores.

    A subclass defines `counted(masks, predicted)`: both (b, h, w) int32, with `void` for weight 0, to int32 counts of
    the metric's shape.

    Args:
        shape: of the counts.
        classes: number of classes.
        void: value of pixels without a class.
    """

    def __init__(self, shape: tuple[int, ...], classes: int, void: int, name: str, dtype: str | None = None):
        super().__init__(shape, name, dtype)
        self.classes, self.void = classes, void

    def counted(self, masks: Any, predicted: Any) -> Any:
        raise NotImplementedError

    def update_state(self, y_true, y_pred, sample_weight=None):
        y_true, y_pred, sample_weight = as_tensors(y_true, y_pred, sample_weight)
        if y_pred.shape[-1] != self.classes:
            raise ValueError(
                f"{type(self).__name__}({self.classes}) expects logits (b, h, w, {self.classes}), got the shape"
                f" {tuple(y_pred.shape)}."
            )
        predicted = ops.cast(ops.argmax(y_pred, axis=-1), "int32")
        masks = ops.reshape(ops.cast(y_true, "int32"), ops.shape(predicted))
        if sample_weight is not None:
            counts = ops.convert_to_tensor(sample_weight) > 0
            counts = ops.reshape(counts, (*ops.shape(counts), *[1] * (3 - len(counts.shape))))  # (b,) -> (b, 1, 1)
            masks = ops.where(counts, masks, self.void)
        wrong = self._wrong(masks, tuple(predicted.shape[1:]))
        self.add(self.counted(masks, predicted))
        if wrong is not None:
            self.digits.assign(ops.where(wrong, float("nan"), ops.convert_to_tensor(self.digits)))

    def _wrong(self, masks, size):
        """Whether masks have other numbers than classes and void, in compiled functions; ValueError where known."""
        rules, values = MaskRules(self.classes, size, self.void), concrete(masks)
        if values is None:
            return ops.any(rules.are_wrong(masks))
        rules.check(values)
        return None

    def get_config(self) -> dict[str, Any]:
        return {"classes": self.classes, "void": self.void, "name": self.name, "dtype": self.dtype}


@serializable
class SegmentationScores(MaskMetric):
    """Mean IoU, pixel accuracy and mean class accuracy: {"miou", "pixel_accuracy", "mean_accuracy"}.

    y (b, h, w) or (b, h, w, 1): classes, or `void`. y_pred (b, h, w, classes): logits; the largest is the prediction,
    of equal ones the first. Examples or pixels of weight 0 count nowhere, others once. Other values in y raise a
    ValueError where they are known, and make the scores NaN in compiled functions (keras_vit.Model checks them first).

    Args:
        classes: number of classes.
        void: value of pixels without a class.
    """

    _direction = "up"

    def __init__(self, classes: int, void: int = VOID, name: str = "miou", dtype: str | None = None):
        super().__init__((classes, classes), classes, void, name, dtype)

    def counted(self, masks: Any, predicted: Any) -> Any:
        return confusion(masks, predicted, self.classes, self.void)

    def result(self):
        return scores(self.totals(), ops)
