"""The compiled losses and metrics in the order of a model's outputs; refuses those that do not suit the outputs:
probabilities for logits or the reverse, softmax over one.

Training would run without an error, and learn nothing or report nonsense.
"""

import functools
from collections.abc import Sequence
from typing import Any

import keras

from keras_vit.fit.losses import ONE_LOGIT, Accuracy, Loss, SoftmaxCrossEntropy

_BINARY = (keras.losses.BinaryCrossentropy, keras.losses.BinaryFocalCrossentropy)
_CATEGORICAL = (
    keras.losses.CategoricalCrossentropy,
    keras.losses.SparseCategoricalCrossentropy,
    keras.losses.CategoricalFocalCrossentropy,
)
# Have no form for logits.
_PROBABILITIES_ONLY = (keras.losses.KLDivergence, keras.losses.Dice, keras.losses.Tversky)
# Compare entry by entry: labels (b, 1) would be compared with every output.
OF_ENTRIES = (
    keras.losses.CosineSimilarity,
    keras.losses.Hinge,
    keras.losses.Huber,
    keras.losses.LogCosh,
    keras.losses.MeanAbsoluteError,
    keras.losses.MeanAbsolutePercentageError,
    keras.losses.MeanSquaredError,
    keras.losses.MeanSquaredLogarithmicError,
    keras.losses.Poisson,
    keras.losses.SquaredHinge,
)
_FUNCTIONS = {
    **{form().fn: form for form in OF_ENTRIES},
    keras.losses.binary_crossentropy: keras.losses.BinaryCrossentropy,
    keras.losses.binary_focal_crossentropy: keras.losses.BinaryFocalCrossentropy,
    keras.losses.categorical_crossentropy: keras.losses.CategoricalCrossentropy,
    keras.losses.sparse_categorical_crossentropy: keras.losses.SparseCategoricalCrossentropy,
    keras.losses.categorical_focal_crossentropy: keras.losses.CategoricalFocalCrossentropy,
    keras.losses.kl_divergence: keras.losses.KLDivergence,
    keras.losses.dice: keras.losses.Dice,
    keras.losses.tversky: keras.losses.Tversky,
}
# {metric with thresholds in [0, 1]: the argument that sets them, or None}.
_THRESHOLDS = {
    keras.metrics.BinaryAccuracy: "threshold",
    keras.metrics.BinaryIoU: "threshold",
    keras.metrics.Precision: "thresholds",
    keras.metrics.Recall: "thresholds",
    keras.metrics.TruePositives: "thresholds",
    keras.metrics.TrueNegatives: "thresholds",
    keras.metrics.FalsePositives: "thresholds",
    keras.metrics.FalseNegatives: "thresholds",
    keras.metrics.PrecisionAtRecall: None,
    keras.metrics.RecallAtPrecision: None,
    keras.metrics.SensitivityAtSpecificity: None,
    keras.metrics.SpecificityAtSensitivity: None,
}
# Without a threshold they take the largest value, also of logits.
F_SCORES = (keras.metrics.FBetaScore, keras.metrics.F1Score)
_POSITIVE_LOGIT = 1e-7  # Keras' F scores take no threshold of 0
# Metrics on probabilities that Keras also has as functions.
_METRIC_FUNCTIONS = {
    keras.metrics.binary_accuracy: keras.metrics.BinaryAccuracy,
    keras.metrics.binary_crossentropy: keras.metrics.BinaryCrossentropy,
    keras.metrics.categorical_crossentropy: keras.metrics.CategoricalCrossentropy,
    keras.metrics.sparse_categorical_crossentropy: keras.metrics.SparseCategoricalCrossentropy,
    keras.metrics.kl_divergence: keras.metrics.KLDivergence,
}
ARGMAX = (
    Accuracy,
    keras.metrics.CategoricalAccuracy,
    keras.metrics.SparseCategoricalAccuracy,
    keras.metrics.TopKCategoricalAccuracy,
    keras.metrics.SparseTopKCategoricalAccuracy,
)
# {metric that compares outputs with labels as they are: its replacement for logits and probabilities}.
_OF_EQUAL = {
    keras.metrics.Accuracy: "keras_vit.training.Accuracy()",
    keras.metrics.IoU: "keras.metrics.IoU({}, target_class_ids, sparse_y_pred=False)",
    keras.metrics.MeanIoU: "keras.metrics.MeanIoU({}, sparse_y_pred=False)",
}
# Layers that move or scale values without changing what they are.
_NEUTRAL = ("Average", "Dropout", "Flatten", "Reshape", "Permute", "Identity", "Cast")
_LINEAR = ("Dense", "EinsumDense", "Conv1D", "Conv2D", "Conv3D")


def output_names(model: keras.Model) -> tuple[str, ...]:
    """The names of model.outputs in a dict of losses or labels."""
    if isinstance(model.output, dict):
        return tuple(sorted(model.output))  # as model.outputs lists them
    return tuple(model.output_names)


def in_order(values: Any, names: Sequence[str]) -> list | None:
    """The values of a structure, such as losses or labels, in the order of the outputs or inputs with these names.

    A dict is read by name, as in Keras: flattening would sort it. None for another number of values.
    """
    if isinstance(values, dict):
        return None if set(values) - set(names) else [values.get(name) for name in names]
    flat = keras.tree.flatten(values)
    return flat if len(flat) == len(names) else None


def metrics_in_order(model: keras.Model) -> list[list]:
    """The compiled metrics of each output: objects once Keras has made them, before that as given to compile."""
    compiled, n = getattr(model, "_compile_metrics", None), len(model.outputs)
    if compiled is None:
        return [[] for _ in range(n)]
    if compiled.built:
        pairs = zip(compiled._flat_metrics, compiled._flat_weighted_metrics)
        return [[metric for one in pair if one is not None for metric in one.metrics] for pair in pairs]
    found: list[list] = [[] for _ in range(n)]
    for given in model.given_metrics:
        each = in_order_of_lists(given, output_names(model))
        for metrics, more in zip(found, each):
            metrics += [metric for metric in keras.tree.flatten(more) if metric is not None]
    return found


def unweighted_metrics(model: keras.Model) -> list:
    """The metrics given as compile(metrics=...), which ignore weights."""
    return [metric for metric in keras.tree.flatten(model.given_metrics[0]) if metric is not None]


def in_order_of_lists(metrics: Any, names: Sequence[str]) -> list:
    """The metrics of each output with these names, in any structure."""
    if len(names) == 1:
        return [metrics]
    if isinstance(metrics, dict):
        return [metrics.get(name) for name in names]
    return list(metrics) if metrics and len(metrics) == len(names) else [None] * len(names)


def what_is(output: Any) -> str | None:
    """The kind of a symbolic output, by its last layers: "logits", "probabilities", or None."""
    operation, _, index = output._keras_history
    if isinstance(operation, keras.Model) and getattr(operation, "outputs", None):
        return what_is(operation.outputs[index])
    if (stated := getattr(operation, "returns", None)) in ("logits", "probabilities"):
        return stated
    kind = type(operation).__name__
    activation = getattr(operation, "activation", None)
    if kind in ("Softmax", "Sigmoid") or activation in (keras.activations.softmax, keras.activations.sigmoid):
        return "probabilities"
    if kind in _LINEAR and activation in (None, keras.activations.linear):
        return "logits"
    if kind in _NEUTRAL or kind == "Activation" and activation is keras.activations.linear:
        return what_is(operation._inbound_nodes[-1].input_tensors[0])
    return None


def check_compiled(model: keras.Model, loss: Any, metrics: Any) -> None:
    """Compares a loss and metrics with a model's outputs.

    Args:
        model: with symbolic outputs.
        loss, metrics: as in compile; metrics in any structure.

    Raises:
        ValueError: with the line to write instead.
    """
    _check_objective(model, loss)
    outputs = model.outputs
    kinds = {what_is(output) for output in outputs}
    several = len(outputs) > 1
    for one, output in zip(in_order(loss, output_names(model)) or (), outputs):
        if one is not None:
            _check_loss(one, what_is(output), output.shape[-1], getattr(model, "usual_loss", "SoftmaxCrossEntropy"))
    if several and (len(kinds) > 1 or len({output.shape[-1] for output in outputs}) > 1):
        return  # Keras matches metrics to outputs
    for metric in keras.tree.flatten(metrics):
        _check_metric(metric, next(iter(kinds)), outputs[0].shape[-1])


def _check_objective(model, loss):
    """Refuses losses of Keras and this package that do not suit a pre-training model; the user's own pass."""
    valid = getattr(model, "objectives", ())
    for one in keras.tree.flatten(loss) if valid else ():
        one = None if one is None else keras.losses.get(one)
        known = type(one) if isinstance(one, keras.losses.Loss) else one
        if (
            one is None
            or isinstance(one, valid)
            or getattr(known, "__module__", "").split(".")[0] not in ("keras", "keras_vit")
        ):
            continue
        names = " or ".join(f"{form.__name__}()" for form in valid)
        raise ValueError(
            f"A {type(model).__name__} cannot be trained with the loss {known.__name__}: write"
            f" loss=keras_vit.training.{names}."
        )


def loss_class(loss: Any) -> tuple[Any, bool]:
    """(the class of a loss, whether it takes logits), for anything compile accepts."""
    loss, from_logits = keras.losses.get(loss), False
    if isinstance(loss, functools.partial):
        loss, from_logits = loss.func, loss.keywords.get("from_logits", False)
    if isinstance(loss, keras.losses.Loss):
        takes = (
            isinstance(loss, Loss)
            and loss.takes_logits
            or isinstance(loss, _BINARY + _CATEGORICAL)
            and loss.get_config()["from_logits"]
        )
        return type(loss), takes
    return (_FUNCTIONS.get(loss) if callable(loss) and hasattr(loss, "__hash__") else None), from_logits


def _check_loss(loss, kind, units, usual):
    form, from_logits = loss_class(loss)
    if form is None:
        return
    ours = issubclass(form, Loss) and form.takes_logits
    known = ours or issubclass(form, (*_BINARY, *_CATEGORICAL, *_PROBABILITIES_ONLY))
    if known and kind == "logits" and not from_logits:
        fix = f"loss=keras_vit.training.{usual}()"
        if issubclass(form, _BINARY + _CATEGORICAL):
            fix = f"loss=keras.losses.{form.__name__}(from_logits=True)"
        raise ValueError(
            f"The model returns logits, and the loss {form.__name__} takes them for probabilities: from a zero head, no"
            f" gradient would ever come back. Write {fix}."
        )
    if known and kind == "probabilities" and from_logits:
        raise ValueError(
            f"The model ends in a softmax or sigmoid, and the loss {form.__name__} applies another one. Leave the"
            " activation out of the model, which is also more precise, or use a loss of Keras with from_logits=False."
        )
    if units == 1 and issubclass(form, (SoftmaxCrossEntropy, *_CATEGORICAL)):
        raise ValueError(ONE_LOGIT.format(f"the loss {form.__name__} is always 0"))


def resolve_metric(metric: Any) -> Any:
    """A metric, as an instance if possible; "accuracy" and "crossentropy" stay text: Keras chooses by shape."""
    if metric in ("accuracy", "acc", "crossentropy", "ce"):
        return metric
    if isinstance(metric, str):
        try:
            return keras.metrics.get(metric)
        except ValueError:  # Keras reports it
            return None
    return metric


def _check_metric(metric, kind, units):
    metric = resolve_metric(metric)
    if units == 1 and isinstance(metric, ARGMAX):
        raise ValueError(ONE_LOGIT.format(f"the metric {type(metric).__name__} means nothing"))
    if type(metric) in _OF_EQUAL and kind is not None and getattr(metric, "sparse_y_pred", True):
        raise ValueError(
            f"The metric {type(metric).__name__} takes the outputs for class numbers. Write"
            f" {_OF_EQUAL[type(metric)].format(units)}."
        )
    if isinstance(metric, Accuracy) and not (metric.k >= 1 and (units is None or metric.k <= units)):
        raise ValueError(f"Accuracy(k={metric.k}) means nothing for {units} classes. Expected k from 1 to {units}.")
    if kind != "logits":
        return
    if metric in ("crossentropy", "ce"):
        form = "BinaryCrossentropy" if units == 1 else "SparseCategoricalCrossentropy"
        _refuse_metric(f'"{metric}"', f"keras.metrics.{form}(from_logits=True)")
    elif metric in ("accuracy", "acc") and units == 1:
        _refuse_metric(f'"{metric}"', "keras.metrics.BinaryAccuracy(threshold=0.0)")
    elif callable(metric) and hasattr(metric, "__hash__") and metric in _METRIC_FUNCTIONS:
        _check_instance(_METRIC_FUNCTIONS[metric](), _METRIC_FUNCTIONS[metric].__name__)
    elif isinstance(metric, keras.metrics.Metric):
        _check_instance(metric, type(metric).__name__)


def _check_instance(metric, name):
    config = metric.get_config() if type(metric).__module__.startswith("keras.") else {}
    if config.get("from_logits") is False:
        _refuse_metric(name, f"keras.metrics.{name}(from_logits=True)")
    if type(metric) is keras.metrics.KLDivergence:
        _refuse_metric(name, "a model that ends in a softmax or sigmoid")
    if type(metric) in F_SCORES and (config.get("threshold") or 0.0) > _POSITIVE_LOGIT:
        _refuse_metric(name, f"keras.metrics.{name}(threshold={_POSITIVE_LOGIT}), which counts logits above 0")
    for form, argument in _THRESHOLDS.items():
        if type(metric) is not form:
            continue
        if argument is None:
            _refuse_metric(name, "a model that ends in a sigmoid")
        thresholds = config.get(argument)
        if thresholds in (None, 0.5, [0.5]) and config.get("top_k") is None:
            _refuse_metric(name, f"keras.metrics.{name}({argument}={0.0 if argument == 'threshold' else [0.0]})")


def _refuse_metric(name, fix):
    raise ValueError(f"The model returns logits, and the metric {name} takes them for probabilities. Write {fix}.")
