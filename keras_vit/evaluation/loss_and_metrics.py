"""Evaluate a model's loss and metrics by batch in its strategy; memory does not grow with the data."""

import dataclasses
import sys
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from absl import logging
from keras import ops

from keras_vit.data import ExampleErrors, evaluation_batches, image_and_label
from keras_vit.data.batches import example_spec
from keras_vit.evaluation.registry import Evaluation, Evaluator, Setting
from keras_vit.fit.losses import check_labels, concrete
from keras_vit.fit.model import Model
from keras_vit.io.progress import FirstStep
from keras_vit.io.suggest import counted


def check_head(model):
    """Raises ValueError if the model's head is still all zeros, so that its outputs are meaningless."""
    if hasattr(model, "check_head"):
        model.check_head()


def check_preprocessing(preprocess, source, model, select=image_and_label, seed=None):
    """Raises ValueError unless preprocessed images have the model's size. Reads no data; `seed` is for random ops."""
    spec = example_spec(source, preprocess, select, training=False, seed=seed)[0]
    given = keras.tree.map_structure(lambda t: tuple(t.shape), spec)
    expected = keras.tree.map_structure(lambda t: tuple(t.shape[1:]), model.input)
    if given != expected:
        raise ValueError(
            f'The preprocessing "{preprocess}" gives images of {given}, the model takes {expected}: change the'
            " preprocessing, or load the model for this image size."
        )


class Examples(keras.metrics.Sum):
    """Number of evaluated examples: those with a weight above 0."""

    def __init__(self, name="examples", dtype=None):
        super().__init__(name=name, dtype=dtype)

    def update_state(self, y_true, y_pred, sample_weight=None):
        if sample_weight is None:
            return super().update_state(keras.ops.ones((keras.ops.shape(keras.tree.flatten(y_true)[0])[0],)))
        weighted = keras.ops.any(sample_weight > 0, axis=tuple(range(1, len(sample_weight.shape))))
        return super().update_state(keras.ops.cast(weighted, "float32"))


def _with_examples(metrics, outputs):
    """The metrics plus Examples() for the first output, as `compile` takes them for the model's outputs."""
    if not keras.tree.is_nested(outputs):
        return [Examples(), *metrics]
    if not metrics:
        metrics = {name: [] for name in outputs} if isinstance(outputs, dict) else [[] for _ in outputs]
    names = list(metrics) if isinstance(metrics, dict) else range(len(metrics))
    lists = [[] if metrics[name] is None else list(keras.tree.flatten(metrics[name])) for name in names]
    lists[0].insert(0, Examples())
    return dict(zip(names, lists)) if isinstance(metrics, dict) else lists


def metrics_runner(setting: Setting, loss, metrics) -> Callable[..., dict[str, float]]:
    """Returns measure(source, preprocess, seed=None), which runs the model over a source once, in the strategy.

    Compiles the model once, for all sources with images of its size. `measure` takes a data source, its preprocessing
    text, and a seed for its random ops; it returns {name: number} with "examples", "loss" and the metrics, or raises
    ValueError if no example is readable.

    Args:
        setting: the model and its environment.
        loss, metrics: as for `compile`; a dict or list for several outputs. Metrics weight examples and keep their
            state after each run. Without a loss, "loss" is meaningless.
    """
    model, errors = setting.model, setting.errors or ExampleErrors()
    with setting.strategy.scope():
        evaluated = Model(model.input, model.output)
        evaluated.weighs_examples = getattr(model, "weighs_examples", False)
        evaluated.compile(
            loss=loss, weighted_metrics=_with_examples(metrics, model.output), jit_compile=model.jit_compile
        )
    verbose = (1 if sys.stdout.isatty() else 2) if setting.verbose and setting.strategy.chief else 0
    compiling = [FirstStep()]

    def measure(source, preprocess, seed=None):
        def batches(shard, replicas):
            return evaluation_batches(
                source, preprocess, setting.batch_size, shard, replicas, errors, select=setting.select, seed=seed
            )

        if verbose:
            logging.info("Evaluating %s of %s.", counted(source.size, "example"), source.name)
        try:
            with errors.raised():
                data = setting.strategy.distribute(batches)
                measures = evaluated.evaluate(data, verbose=verbose, return_dict=True, callbacks=list(compiling))
        finally:
            for first in compiling:
                first.end()
            compiling.clear()
        examples = int(next(measures.pop(name) for name in list(measures) if name.endswith("examples")))
        if not examples:
            raise ValueError(f"None of the {source.size} examples of {source.name} can be used: the warnings say why.")
        return {**{name: float(value) for name, value in measures.items()}, "examples": examples}

    return measure


def evaluate_metrics(setting, source, preprocess, loss, metrics):
    """One run over a source: {name: number} with "examples", "loss" and the metrics. See `metrics_runner`."""
    return metrics_runner(setting, loss, metrics)(source, preprocess)


@dataclasses.dataclass(frozen=True)
class LossAndMetrics(Evaluator):
    """A loss and metrics on the run's own evaluation split.

    Attributes:
        loss: function from the source to a Keras loss.
        metrics: function from the model to new Keras metrics, which weight examples.
    """

    loss: Callable
    metrics: Callable

    def prepare(self, setting: Setting) -> Callable[[], Evaluation]:
        if setting.source is None:
            raise ValueError("LossAndMetrics needs a run's evaluation data, got none: set the source of the Setting.")
        source, preprocess = setting.source, setting.preprocess
        check_preprocessing(preprocess, source, setting.model, setting.select)

        def evaluate():
            with setting.strategy.scope():
                loss, metrics = self.loss(source), self.metrics(setting.model)
            return Evaluation(evaluate_metrics(setting, source, preprocess, loss, metrics))

        return evaluate


def class_numbers(labels: Any, classes: int, sample_weight: Any) -> tuple[Any, Any]:
    """Labels (b,) or (b, 1) as int32 (b,), and a factor for their counts: 1, or NaN if any is not a class.

    Raises:
        ValueError: if any is not a class, where they are known. Examples of weight 0 may have any label.
    """
    numbers = ops.cast(ops.reshape(labels, (-1,)), "int32")
    counts = True if sample_weight is None else ops.reshape(sample_weight, (-1,)) > 0
    known = concrete(numbers), concrete(counts)
    if not any(values is None for values in known):
        check_labels(known[0], classes, np.broadcast_to(known[1], known[0].shape))
    wrong = ops.logical_and(counts, ops.logical_or(numbers < 0, numbers >= classes))
    return numbers, ops.where(ops.any(wrong), float("nan"), 1.0)


def counted_rows(labels: Any, classes: int, sample_weight: Any) -> Any:
    """One-hot labels (b, classes), with zeros for examples of weight 0."""
    rows = ops.one_hot(labels, classes)
    return rows if sample_weight is None else rows * ops.cast(sample_weight > 0, rows.dtype)[:, None]
