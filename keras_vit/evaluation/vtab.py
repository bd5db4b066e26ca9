"""VTAB-1k (arXiv 1910.04867) on frozen features: a classifier per available task, and the means of the three groups."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_vit.data.sources.tfds import NotPrepared
from keras_vit.evaluation.features import open_pair
from keras_vit.evaluation.registry import Evaluator, Setting, make_evaluator
from keras_vit.io.progress import stage

METHODS = ("ridge", "logistic", "knn")
TRAIN = "train[:800]"


@dataclasses.dataclass(frozen=True)
class VtabTask:
    """A VTAB task.

    Attributes:
        group: "natural", "specialized" or "structured".
        source: data source.
        held_out: split of the 200 examples that complete train's first 800 to 1000.
        test: test split.
        zero_one: whether pixels are 0 and 1.
    """

    group: str
    source: str
    held_out: str
    test: str
    zero_one: bool = False

    @property
    def train(self) -> str:
        """The split of the 1000 training examples."""
        return f"{TRAIN}+{self.held_out}"

    def preprocess(self, height: int, width: int) -> str:
        """Preprocessing text that resizes the whole image, as in the benchmark."""
        return f"decode{'|multiply(255)' * self.zero_one}|resize({height}, {width})"


def missing(tasks: Mapping[str, VtabTask], data_dir: str | None) -> dict[str, str]:
    """{task: reason} of the tasks without data in `data_dir`; ValueError for unsuitable data."""
    found = {}
    for name, task in tasks.items():
        try:
            open_pair(task.source, task.train, task.test, data_dir)
        except NotPrepared as error:
            found[name] = str(error)
    return found


def task_evaluator(task: VtabTask, method: str, model: Any) -> Evaluator:
    """The evaluator of a task by `method`, one of METHODS."""
    channels = model.input_shape[-1]
    if channels != 3:
        raise ValueError(f"VTAB needs a model for colour images, with 3 channels, got one with {channels}.")
    options = {"source": task.source, "train": task.train, "test": task.test}
    return make_evaluator(method, {**options, "preprocess": task.preprocess(*model.input_shape[1:3])})


def measured(tasks: Mapping[str, VtabTask], method: str, setting: Setting) -> dict[str, dict[str, Any]]:
    """Evaluates tasks with available data by `method`, one of METHODS: {task: measures and details}."""
    prepared = {name: task_evaluator(task, method, setting.model).prepare(setting) for name, task in tasks.items()}
    results = {}
    with stage("Measuring the tasks", len(prepared), "tasks") as work:
        for name, evaluate in prepared.items():
            evaluation = evaluate()
            results[name] = {**evaluation.measures, **evaluation.details}
            work.advance()
    return results


def means(tasks: Mapping[str, VtabTask], top1: Mapping[str, float]) -> dict[str, tuple[float | None, int, int]]:
    """{group: (mean top-1 or None, tasks measured, tasks)}; "all" has the mean over tasks, as in the benchmark.

    Args:
        tasks: all tasks of the benchmark.
        top1: {task: top-1} of the measured tasks.
    """
    groups = {
        group: [name for name, task in tasks.items() if task.group == group]
        for group in dict.fromkeys(task.group for task in tasks.values())
    }
    found = {}
    for group, names in {**groups, "all": list(tasks)}.items():
        values = [top1[name] for name in names if name in top1]
        found[group] = float(np.mean(values)) if values else None, len(values), len(names)
    return found
