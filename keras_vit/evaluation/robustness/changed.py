"""Accuracy on modified images: one evaluation per change, with further ops after the preprocessing."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from keras_vit.evaluation.classes import check_classes
from keras_vit.evaluation.data import OnSource, open_data
from keras_vit.evaluation.loss_and_metrics import check_head, check_preprocessing, metrics_runner
from keras_vit.evaluation.registry import Evaluation, Setting
from keras_vit.fit.losses import Accuracy, SoftmaxCrossEntropy
from keras_vit.io.progress import stage


def is_whole(value: object) -> bool:
    """Whether an option's value is a whole number."""
    return isinstance(value, int) and not isinstance(value, bool)


def chosen(value, name: str, valid: Callable[[Any], bool], expected: str) -> tuple:
    """An option of one or several numbers as a tuple; ValueError if it is empty or a number is invalid."""
    values = tuple(value) if isinstance(value, list | tuple) else (value,)
    if not values or not all(is_whole(v) or isinstance(v, float) for v in values) or not all(map(valid, values)):
        raise ValueError(f"{name}={value!r}: expected {expected}.")
    return values


@dataclasses.dataclass(frozen=True)
class Changed(OnSource):
    """Base class of evaluators of top-1 accuracy on original and changed images.

    A subclass defines `changes` and `summary`.

    Attributes:
        source, split, preprocess: as in OnSource; the text stands before the changes.
        seed: seed of random changes, which differ by image but not by model.
    """

    score: ClassVar[str] = "mean"
    seed: int = 0

    def __post_init__(self):
        if not is_whole(self.seed):
            raise ValueError(f"seed={self.seed!r}: expected a whole number.")

    def changes(self, model) -> dict[tuple, str]:
        """{(row, column): op text}; ValueError if the model's image size does not allow the changes."""
        raise NotImplementedError

    def summary(self, clean: float, table: dict[str, dict[str, float]]) -> Evaluation:
        """Evaluation from the accuracy on original images and {row: {column: accuracy}}."""
        raise NotImplementedError

    def prepare(self, setting: Setting) -> Callable[[], Evaluation]:
        setting, source, preprocess = open_data(self, setting)
        changes = self.changes(setting.model)
        check_classes(setting.model, source)
        first = {row: text for (row, _), text in reversed(changes.items())}  # columns of a row differ only in strength
        for text in ("", *first.values()):
            check_preprocessing(preprocess + text, source, setting.model, setting.select, seed=self.seed)

        def evaluate():
            check_head(setting.model)
            with setting.strategy.scope():
                metrics, loss = [Accuracy(name="top1")], SoftmaxCrossEntropy()
            measure = metrics_runner(dataclasses.replace(setting, verbose=False), loss, metrics)
            clean = measure(source, preprocess)
            table, n = {}, clean["examples"]
            with stage(
                "Measuring changed images", len(changes), "changes", setting.verbose and setting.strategy.chief
            ) as work:
                for (row, column), text in changes.items():
                    top1 = measure(source, preprocess + text, self.seed)["top1"]
                    table.setdefault(row, {})[column] = round(top1 * n) / n  # undoes float32 rounding
                    work.advance()
            about = {"source": source.name, "preprocess": preprocess, "seed": self.seed}
            return self.summarised(round(clean["top1"] * n) / n, table, n, about)

        return evaluate

    def summarised(
        self, clean: float, table: dict[str, dict[str, float]], examples: int, about: dict[str, Any]
    ) -> Evaluation:
        """`summary` with the number of examples, the data, and the table."""
        found = self.summary(clean, table)
        details = {**about, "top1": table, **found.details}
        return dataclasses.replace(found, measures={"examples": examples, **found.measures}, details=details)


def means(table: dict[str, dict[str, float]]) -> dict[str, float]:
    """{row: mean of its columns}."""
    return {row: float(np.mean(list(columns.values()))) for row, columns in table.items()}


def numbers(values: Sequence) -> list[float]:
    """Numbers from the texts of a table's columns."""
    return [float(value) for value in values]
