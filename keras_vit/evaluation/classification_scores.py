"""Evaluation of classifiers: accuracy, loss, and results per class."""

import dataclasses
from collections.abc import Callable

import keras
import numpy as np
from absl import logging
from keras import ops

from keras_vit.data.sources.base import RandomAccess
from keras_vit.evaluation.classes import check_classes
from keras_vit.evaluation.data import OnSource, open_data
from keras_vit.evaluation.loss_and_metrics import (
    check_head,
    check_preprocessing,
    class_numbers,
    counted_rows,
    evaluate_metrics,
)
from keras_vit.evaluation.registry import Evaluation, Setting, register
from keras_vit.evaluation.reliability import CalibrationError
from keras_vit.fit.losses import Accuracy, SoftmaxCrossEntropy
from keras_vit.fit.model import Model
from keras_vit.io.suggest import counted, listed

MOST_CLASSES = 1000  # largest number of classes with a confusion matrix, which grows quadratically
WHOLE_MATRIX = 100  # largest number of classes with the whole matrix in the details; above, the most confused pairs
PAIRS = 100


def confused_pairs(confusion, count: int = PAIRS) -> list[list[int]]:
    """The most frequent mistakes as [true class, predicted class, examples], most frequent first.

    Args:
        confusion: (classes, classes). Rows are true classes, columns predicted ones.
        count: largest number of pairs.
    """
    wrong = np.array(confusion, "int64")
    wrong[np.eye(*wrong.shape, dtype=np.bool_)] = 0
    order = np.argsort(-wrong, axis=None, kind="stable")[:count]
    pairs = zip(*np.unravel_index(order, wrong.shape))
    return [
        [int(true), int(predicted), int(wrong[true, predicted])] for true, predicted in pairs if wrong[true, predicted]
    ]


def _shares(parts, wholes):
    """parts / wholes as a list, None where the whole is 0."""
    return [float(part / whole) if whole else None for part, whole in zip(parts, wholes)]


class ClassCounts(keras.metrics.Metric):
    """Balanced accuracy: the mean recall over classes with examples.

    Counts predictions by true and predicted class; without `confusion`, only examples, correct predictions and
    predictions of each class. Labels outside the classes raise a ValueError where their values are known, and give NaN
    inside compiled functions.
    """

    _direction = "up"

    def __init__(self, classes, confusion=True, name="mean_recall", dtype=None):
        super().__init__(name=name, dtype=dtype)
        self.classes, self.confusion = classes, confusion
        shape = (classes, classes) if confusion else (classes, 3)
        self.counts = self.add_variable(shape=shape, initializer="zeros", name="counts")

    def update_state(self, y_true, y_pred, sample_weight=None):
        labels, known = class_numbers(y_true, self.classes, sample_weight)
        best = ops.cast(ops.argmax(y_pred, axis=-1), "int32")
        rows = counted_rows(labels, self.classes, sample_weight)  # (b, c)
        if self.confusion:
            counts = ops.matmul(ops.transpose(rows), ops.one_hot(best, self.classes))  # (c, b) (b, c)
        else:
            right = ops.cast(ops.equal(best, labels), rows.dtype)[:, None]
            predicted = counted_rows(best, self.classes, sample_weight)  # (b, c)
            counts = ops.stack([ops.sum(part, axis=0) for part in (rows, rows * right, predicted)], axis=1)  # (c, 3)
        self.counts.assign_add(ops.cast(counts * known, self.counts.dtype))

    def _sums(self, counts):
        """(examples, correct predictions, predictions) per class, each (c,), from the counts."""
        if self.confusion:
            return ops.sum(counts, axis=1), ops.diagonal(counts), ops.sum(counts, axis=0)
        return counts[:, 0], counts[:, 1], counts[:, 2]

    def result(self):
        examples, right, _ = self._sums(ops.convert_to_tensor(self.counts))
        recalls = ops.divide_no_nan(right, examples)
        return ops.sum(recalls) / ops.maximum(ops.sum(ops.cast(examples > 0, recalls.dtype)), 1.0)  # NaN stays NaN

    def details(self) -> dict[str, list]:
        """Results per class, and confusions; undefined shares are None.

        "per_class" lists recalls, "precision" precisions, "examples_per_class" counts. "confusion" is the matrix, rows
        true, columns predicted; above WHOLE_MATRIX classes "most_confused" replaces it (see confused_pairs).
        """
        counts = ops.convert_to_numpy(self.counts)
        examples, right, predicted = (ops.convert_to_numpy(part).astype("int64") for part in self._sums(counts))
        found = {
            "per_class": _shares(right, examples),
            "precision": _shares(right, predicted),
            "examples_per_class": examples.tolist(),
        }
        if not self.confusion:
            return found
        if self.classes <= WHOLE_MATRIX:
            return {**found, "confusion": counts.astype("int64").tolist()}
        return {**found, "most_confused": confused_pairs(counts)}


def both_ways(model: Model) -> Model:
    """A model that averages logits over each image and its mirror image: slightly more accurate in twice the time."""
    mirrored = model(ops.flip(model.input, axis=2))  # (b, h, w, c), left to right
    mean = Model(model.input, (model.output + mirrored) / 2)
    mean.jit_compile = model.jit_compile
    return mean


def _warn_of_unread_classes(source, counted_examples):
    """Warns about classes in the source without a readable image."""
    if not isinstance(source, RandomAccess) or source.labels is None:
        return
    rows = zip(source.class_names, source.class_counts(), counted_examples)
    unread = [name for name, there, read in rows if there and not read]
    if unread:
        logging.warning(
            "%s: no evaluation image of %s could be read: %s. The measures say nothing about %s. Fix or remove the"
            " skipped files, so that others are held out instead.",
            *(source.name, counted(len(unread), "class"), listed(unread), "it" if len(unread) == 1 else "them"),
        )


@register("classification")
@dataclasses.dataclass(frozen=True)
class Classification(OnSource):
    """Top-1 and top-5 accuracy, softmax cross-entropy in nats, mean recall, calibration, and results per class.

    Attributes:
        source, split, preprocess: as in OnSource.
        flips: whether to average logits over each image and its mirror image; report it with the accuracy.
    """

    flips: bool = False

    def prepare(self, setting: Setting) -> Callable[[], Evaluation]:
        setting, source, preprocess = open_data(self, setting)
        model = setting.model
        classes = model.output_shape[-1]
        check_classes(model, source)
        check_preprocessing(preprocess, source, model, setting.select)

        def evaluate():
            check_head(model)
            with setting.strategy.scope():
                counts, calibration = ClassCounts(classes, classes <= MOST_CLASSES), CalibrationError()
                top = [Accuracy(name="top1"), *([Accuracy(k=5, name="top5")] if classes > 5 else [])]
                loss = SoftmaxCrossEntropy()
                seen = dataclasses.replace(setting, model=both_ways(model)) if self.flips else setting
            measures = evaluate_metrics(seen, source, preprocess, loss, [*top, counts, calibration])
            n = measures["examples"]
            # Undoes float32 rounding.
            shares = {name: round(measures[name] * n) / n for name in ("top1", "top5") if name in measures}
            details = {"classes": list(source.class_names), **counts.details(), **calibration.details()}
            details |= {"flips": True} if self.flips else {}
            _warn_of_unread_classes(source, details["examples_per_class"])
            return Evaluation({**measures, **shares}, details)

        return evaluate
