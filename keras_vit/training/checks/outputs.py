"""Losses, metrics and labels in the order of a model's outputs."""

from collections.abc import Sequence
from typing import Any

import keras


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
    found = [[] for _ in range(n)]
    for given in (compiled._user_metrics, compiled._user_weighted_metrics):
        each = in_order_of_lists(given, output_names(model))
        for metrics, more in zip(found, each):
            metrics += [metric for metric in keras.tree.flatten(more) if metric is not None]
    return found


def in_order_of_lists(metrics: Any, names: Sequence[str]) -> list:
    """The metrics of each output with these names, in any structure."""
    if len(names) == 1:
        return [metrics]
    if isinstance(metrics, dict):
        return [metrics.get(name) for name in names]
    return list(metrics) if metrics and len(metrics) == len(names) else [None] * len(names)
