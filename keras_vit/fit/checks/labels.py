"""The labels that the compiled loss and metrics need: class numbers or rows, one class per row or several.

Keras compares labels of another form silently: "categorical_accuracy" of class numbers is 0, an accuracy of several
labels per image counts one of them.
"""

import dataclasses
from typing import Any

import keras

from keras_vit.fit.checks.compiled import (
    ARGMAX,
    F_SCORES,
    OF_ENTRIES,
    in_order,
    loss_class,
    metrics_in_order,
    output_names,
    resolve_metric,
    unweighted_metrics,
    what_is,
)
from keras_vit.fit.losses import NO_SHARES, FromLogits, are_numbers

_losses, _metrics = keras.losses, keras.metrics
_ENTRIES = (
    _metrics.CosineSimilarity,
    _metrics.Hinge,
    _metrics.LogCoshError,
    _metrics.MeanAbsoluteError,
    _metrics.MeanAbsolutePercentageError,
    _metrics.MeanSquaredError,
    _metrics.MeanSquaredLogarithmicError,
    _metrics.Poisson,
    _metrics.SquaredHinge,
)
_OF_ROWS = (
    *OF_ENTRIES,
    *_ENTRIES,
    _losses.BinaryCrossentropy,
    _losses.BinaryFocalCrossentropy,
    _losses.CategoricalCrossentropy,
    _losses.CategoricalFocalCrossentropy,
    _losses.CategoricalHinge,
    _losses.KLDivergence,
    _metrics.AUC,
    _metrics.BinaryAccuracy,
    _metrics.BinaryCrossentropy,
    _metrics.BinaryIoU,
    _metrics.CategoricalAccuracy,
    _metrics.CategoricalCrossentropy,
    _metrics.CategoricalHinge,
    _metrics.ConcordanceCorrelation,
    _metrics.FBetaScore,
    _metrics.FalseNegatives,
    _metrics.FalsePositives,
    _metrics.KLDivergence,
    _metrics.OneHotIoU,
    _metrics.OneHotMeanIoU,
    _metrics.PearsonCorrelation,
    _metrics.Precision,
    _metrics.PrecisionAtRecall,
    _metrics.R2Score,
    _metrics.Recall,
    _metrics.RecallAtPrecision,
    _metrics.RootMeanSquaredError,
    _metrics.SensitivityAtSpecificity,
    _metrics.SpecificityAtSensitivity,
    _metrics.TopKCategoricalAccuracy,
    _metrics.TrueNegatives,
    _metrics.TruePositives,
)
_FUNCTIONS = {
    keras.losses.cosine_similarity: _metrics.CosineSimilarity,
    keras.losses.hinge: _metrics.Hinge,
    keras.losses.log_cosh: _metrics.LogCoshError,
    keras.losses.mean_absolute_error: _metrics.MeanAbsoluteError,
    keras.losses.mean_absolute_percentage_error: _metrics.MeanAbsolutePercentageError,
    keras.losses.mean_squared_error: _metrics.MeanSquaredError,
    keras.losses.mean_squared_logarithmic_error: _metrics.MeanSquaredLogarithmicError,
    keras.losses.poisson: _metrics.Poisson,
    keras.losses.squared_hinge: _metrics.SquaredHinge,
    _metrics.binary_accuracy: _metrics.BinaryAccuracy,
    _metrics.categorical_accuracy: _metrics.CategoricalAccuracy,
    _metrics.sparse_categorical_accuracy: _metrics.SparseCategoricalAccuracy,
    _metrics.sparse_top_k_categorical_accuracy: _metrics.SparseTopKCategoricalAccuracy,
    _metrics.top_k_categorical_accuracy: _metrics.TopKCategoricalAccuracy,
}
_OF_NUMBERS = (
    _losses.SparseCategoricalCrossentropy,
    _metrics.SparseCategoricalAccuracy,
    _metrics.SparseCategoricalCrossentropy,
    _metrics.SparseTopKCategoricalAccuracy,
)


_BY_NAME = ("accuracy", "acc")
_ACCURACY = "keras_vit.training.Accuracy()"
_REGRESSION = (
    "To learn one number per image, build the model with classes=1. To learn classes, write"
    " loss=keras_vit.training.SoftmaxCrossEntropy()."
)


@dataclasses.dataclass(frozen=True)
class LabelRules:
    """The rules for the labels of an output (b, classes).

    Attributes:
        classes: number of classes.
        in_range: whether the loss needs class numbers from 0 to `classes` - 1, or rows of shares.
        sums: the error for rows that do not sum to 1; None if they are allowed.
        rows: the error for class numbers; None if they are allowed.
        numbers: the error for rows; None if they are allowed.
        mixed: the error for class numbers that model.mixing turns into rows; None if it does not.
    """

    classes: int
    in_range: bool
    sums: str | None = None
    rows: str | None = None
    numbers: str | None = None
    mixed: str | None = None

    def check_form(self, shape: tuple) -> None:
        """Refuses labels of a shape that the loss or a metric would misread."""
        given = tuple(shape)
        if self.classes == 1 and len(given) == 2 and given[1] not in (None, 1):
            raise ValueError(
                f"The labels have the shape {given}, and the model has one output, with which each of the {given[1]}"
                f" numbers would be compared. Give one label per image, or build the model with classes={given[1]}."
            )
        if self.classes > 1 and self.rows and are_numbers(given, self.classes):
            raise ValueError(f"{self.rows} The labels have the shape {given}.")
        if self.classes > 1 and self.mixed and are_numbers(given, self.classes):
            raise ValueError(self.mixed)
        if self.classes > 1 and self.numbers and not are_numbers(given, self.classes):
            raise ValueError(f"{self.numbers} The labels are rows of shape {given}.")


def label_rules(model: keras.Model, mixes: bool = False) -> dict[str, LabelRules | None]:
    """{output: its LabelRules, or None}; `mixes` says whether model.mixing makes rows of class numbers."""
    names = output_names(model)
    found = in_order(getattr(model, "loss", None), names) or [None] * len(names)
    unweighted = unweighted_metrics(model)
    return {
        name: _rules(loss, metrics, output, mixes, unweighted)
        for name, loss, metrics, output in zip(names, found, metrics_in_order(model), model.outputs)
    }


def _ignores(loss):
    """Whether Keras' loss on class numbers ignores one of them, which may lie outside the classes."""
    loss = keras.losses.get(loss)
    options = loss.get_config() if isinstance(loss, keras.losses.Loss) else getattr(loss, "keywords", {})
    return options.get("ignore_class") is not None


def _rules(loss, metrics, output, mixes, unweighted):
    classes, ours = output.shape[-1], isinstance(loss, FromLogits)
    sums = NO_SHARES if ours and loss.shares else None
    if len(output.shape) != 2 or classes is None or classes < 2:
        of_one = classes == 1 and len(output.shape) == 2 and loss is not None and loss_class(loss)[0] in OF_ENTRIES
        return LabelRules(classes, ours, sums) if ours or of_one else None
    kind, rows, numbers = what_is(output), None, None
    form = None if loss is None or ours else loss_class(loss)[0]
    both = "Write loss=keras_vit.training.SoftmaxCrossEntropy(), which takes both."
    if form is not None and issubclass(form, _OF_ROWS):
        rows = f"The loss {form.__name__} needs rows (b, {classes}). {_REGRESSION if form in OF_ENTRIES else both}"
    if form is not None and issubclass(form, _OF_NUMBERS):
        numbers = f"The loss {form.__name__} needs class numbers (b,). {both}"
    in_range = ours or form is _losses.SparseCategoricalCrossentropy and not _ignores(loss)
    mixed = numbers and f"{numbers} For metrics, that is {_ACCURACY}."
    for metric in metrics:
        metric = _instance(metric)
        argument = "metrics" if metric in unweighted else "weighted_metrics"
        by_name = metric in _BY_NAME and f'The metric "{metric}" cannot read them: write {argument}=[{_ACCURACY}].'
        mixed = mixed or by_name or _needs(metric, _OF_NUMBERS, "class numbers (b,)")
        sums = sums or _several(metric, kind)
        rows = rows or _needs(metric, _OF_ROWS, f"rows (b, {classes})")
        numbers = numbers or _needs(metric, _OF_NUMBERS, "class numbers (b,)")
    mixed = mixes and mixed and f"model.mixing makes rows of labels. {mixed}"
    found = LabelRules(classes, in_range, sums, rows, numbers, mixed or None)
    return found if in_range or sums or rows or numbers or mixed else None


def _instance(metric):
    """A metric as an object, also if given as a function; "accuracy" stays text until Keras has chosen it."""
    function = metric._fn if type(metric) is _metrics.MeanMetricWrapper else metric
    known = _FUNCTIONS.get(function) if callable(function) and hasattr(function, "__hash__") else None
    return resolve_metric(metric) if known is None else known()


def check_same_form(model: keras.Model, training: list, validation: list) -> None:
    """Refuses labels of two forms, each a list of shapes for the outputs, under a metric chosen by name."""
    for metrics, output, *shapes in zip(metrics_in_order(model), model.outputs, training, validation):
        names = [metric for metric in metrics if metric in _BY_NAME]
        classes = output.shape[-1]
        if names and None not in shapes and len({are_numbers(shape, classes) for shape in shapes}) > 1:
            raise ValueError(
                f'Keras chooses the metric "{names[0]}" by the form of the training labels, of shape {shapes[0]}; those'
                f" for validation have the shape {shapes[1]}. Write {_ACCURACY}, which takes both."
            )


def label_shapes(model: keras.Model, x: Any, y: Any) -> list:
    """The shapes of the labels of each output, in arrays or a dataset; None where unknown."""
    names = output_names(model)
    if hasattr(x, "scan"):
        y = keras.utils.unpack_x_y_sample_weight(x.element_spec)[1]
    found = [getattr(labels, "shape", None) for labels in (None if y is None else in_order(y, names)) or names]
    return [None if shape is None or getattr(shape, "rank", 1) is None else tuple(shape) for shape in found]


def _needs(metric, forms, needed):
    """The error for labels of another form than a metric of `forms` needs; None for other metrics."""
    if not isinstance(metric, forms) or not type(metric).__module__.startswith("keras."):
        return None
    if metric.name in ("accuracy", "acc", "crossentropy", "ce"):
        text = f'Keras chose the metric "{metric.name}" for {needed}, the labels of the first call.'
        return f"{text} Compile again, or write keras_vit.training.Accuracy(), which takes both."
    text = f"The metric {type(metric).__name__} needs {needed}."
    if isinstance(metric, ARGMAX):
        k = f"k={metric.k}" if hasattr(metric, "k") else ""
        return f"{text} Write keras_vit.training.Accuracy({k}), which takes both."
    return f"{text} Convert them by keras.ops.one_hot, or by keras.ops.argmax(rows, axis=-1)."


def _several(metric, kind):
    """The error for rows with several classes under a metric of the largest entry; None for other metrics."""
    zero = kind == "logits"
    if metric in _BY_NAME or isinstance(metric, ARGMAX):
        right = f"keras.metrics.BinaryAccuracy(threshold={0.0 if zero else 0.5})"
    elif isinstance(metric, F_SCORES) and metric.threshold is None:
        right = f"keras.metrics.{type(metric).__name__}(threshold={'1e-7' if zero else 0.5})"
        right += ", which counts logits above 0," if zero else ""
    else:
        return None
    name = f'"{metric}"' if isinstance(metric, str) else metric.name if metric.name in _BY_NAME else None
    return (
        f"The metric {name or type(metric).__name__} compares only the largest entries, and some rows of labels do not"
        f" sum to 1: for several labels per image, or none, write {right} instead."
    )
