"""Evaluators, and their registry by name.

An evaluator is a frozen dataclass with its options as fields. Before training, `prepare` opens the data and rejects
invalid options; it returns a function that evaluates the model with its current weights. `@register` adds your own.
"""

import ast
import dataclasses
import importlib
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from keras_vit.data import ExampleErrors, image_and_label
from keras_vit.distribution import Strategy
from keras_vit.io.suggest import check_known


@dataclasses.dataclass(frozen=True)
class Chart:
    """The data of a chart.

    Attributes:
        kind: "lines", "bars" or "reliability".
        values: {name: (xs, ys)} for lines, drawn from y = 0; {name: number} for bars; {name: [[examples, accuracy,
            mean confidence], ...]} for reliability.
        x_label, y_label: axis labels; bars use only the first, reliability neither.
        logarithmic: whether lines may have a logarithmic x axis, for values such as 1, 2, 4, 8.
    """

    kind: str
    values: dict[str, Any]
    x_label: str = ""
    y_label: str = ""
    logarithmic: bool = False


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """An evaluator's result.

    Attributes:
        measures: {name: number}, for logs and tables.
        details: further content of the JSON file.
        charts: {name: Chart}, drawn next to the JSON file if matplotlib is installed.
        pictures: {name: (h, w, 3) uint8}, such as reconstructed images; a run keeps those of every step.
    """

    measures: dict[str, float]
    details: dict[str, Any] = dataclasses.field(default_factory=dict)
    charts: dict[str, Chart] = dataclasses.field(default_factory=dict)
    pictures: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Setting:
    """The model to evaluate, and its environment.

    Attributes:
        model: Keras model, created in the scope of `strategy`.
        strategy: Strategy from `keras_vit.strategy`.
        batch_size: examples per batch, over all replicas.
        data_dir: folder with data prepared by tensorflow-datasets, and base of relative paths.
        source: the run's evaluation source, for evaluators without their own; or None.
        preprocess: preprocessing text of `source`; None for the model's own.
        select: function from a preprocessed example of `source` to (x, y).
        errors: ExampleErrors that collects failed examples; None for a new one in each evaluation.
        verbose: whether to show progress.
    """

    model: Any
    strategy: Strategy = Strategy()
    batch_size: int = 64
    data_dir: str | None = None
    source: Any = None
    preprocess: str | None = None
    select: Callable = image_and_label
    errors: ExampleErrors | None = None
    verbose: bool = False


class Evaluator:
    """Base class of evaluators, which are frozen dataclasses.

    Attributes:
        score: measure by which to compare models.
        higher_is_better: whether larger scores are better.
        title: name in reports; "" for the registered name in words.
        caption: caption of the pictures in the report.
    """

    score: ClassVar[str] = "top1"
    higher_is_better: ClassVar[bool] = True
    title: ClassVar[str] = ""
    caption: ClassVar[str] = ""

    def check_options(self) -> None:
        """Raises ValueError for options that are invalid for every model."""

    def prepare(self, setting: Setting) -> Callable[[], Evaluation]:
        """Opens the data; returns a function that evaluates `setting.model` with its current weights.

        Raises:
            ValueError: unusable data or options.
        """
        raise NotImplementedError


EVALUATORS: dict[str, type[Evaluator]] = {}  # the package's own are registered on first use
_MODULES = {
    "calibration": "calibration",
    "classification": "classification_scores",
    "corruptions": "robustness.corruptions",
    "depth": "depth_evaluation",
    "detection": "detection_scores",
    "few_shot": "shots",
    "instances": "instance_scores",
    "knn": "knn",
    "logistic": "linear_probe",
    "mapped": "imagenet.mapped",
    "occlusion": "robustness.changed_patches",
    "panoptic": "panoptic_scores",
    "real": "imagenet.real",
    "reconstructions": "reconstructions",
    "retrieval": "retrieval",
    "ridge": "linear_probe",
    "samples": "samples",
    "segmentation": "segmentation_scores",
    "shifts": "robustness.changed_patches",
    "shuffled_patches": "robustness.changed_patches",
    "zero_shot": "zero_shot_accuracy",
}


def find_evaluator(name: str) -> type[Evaluator] | None:
    """The evaluator class registered as `name`, or None."""
    if name in _MODULES:
        importlib.import_module(f"keras_vit.evaluation.{_MODULES[name]}")
    return EVALUATORS.get(name)


def _names():
    return list({**_MODULES, **EVALUATORS})


def register(name: str) -> Callable[[type[Evaluator]], type[Evaluator]]:
    """A class decorator that registers an evaluator as `name`; ValueError if the name is taken."""

    def add(cls):
        if not cls.__module__.startswith("keras_vit."):
            find_evaluator(name)  # registers the package's own evaluator of that name
        if name in EVALUATORS and EVALUATORS[name].__qualname__ != cls.__qualname__:
            taken = EVALUATORS[name].__qualname__
            raise ValueError(f'The evaluator "{name}" is already registered, as {taken}. Choose another name.')
        EVALUATORS[name] = cls
        return cls

    return add


def evaluator_name(evaluator: Evaluator) -> str:
    """The registered name of an evaluator, or its class's if it has none."""
    names = (name for name, registered in EVALUATORS.items() if registered is type(evaluator))
    return next(names, type(evaluator).__name__)


def make_evaluator(name: str, options: dict[str, Any]) -> Evaluator:
    """Creates the evaluator registered as `name` with options {field: value}.

    Raises:
        ValueError: an unknown name or option (the message suggests a valid one), or an invalid value.
    """
    check_known(name, "evaluator", _names())
    evaluator: Any = find_evaluator(name)
    valid = [field.name for field in dataclasses.fields(evaluator)]
    for option in options:
        check_known(option, f'The evaluator "{name}": option', valid)
    return evaluator(**options)


def _alternatives(node):
    """The parts of `a | b | c`, in order."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return [*_alternatives(node.left), *_alternatives(node.right)]
    return [node]


def _unreadable(text, example="source='digits'"):
    return (
        f'Cannot parse the evaluator "{text}". Write name or name(option=value), join several with "|", and quote'
        f" strings: {example}."
    )


def _name_and_options(node):
    """(name, options) of a syntax tree `name` or `name(option=literal)`; ValueError for any other."""
    if isinstance(node, ast.Name):
        return node.id, {}
    text = ast.unparse(node)
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.args:
        raise ValueError(_unreadable(text))
    options = {keyword.arg: keyword.value for keyword in node.keywords}
    for option, value in options.items():
        if option is not None and isinstance(value, ast.Name):
            raise ValueError(_unreadable(text, f"{option}='{value.id}'"))
    try:
        return node.func.id, {option: ast.literal_eval(value) for option, value in options.items()}
    except (TypeError, ValueError):
        raise ValueError(_unreadable(text)) from None


def parse_evaluators(text: str) -> dict[str, Evaluator]:
    """Parses text such as "classification|few_shot(source='cifar10', shots=(1, 5))" to {name: evaluator}, in order.

    Values are literals; nothing is executed.

    Raises:
        ValueError: invalid text, a repeated name, or an error of `make_evaluator`.
    """
    evaluators = {}
    if not text.strip("| "):
        raise ValueError(f'"{text}" names no evaluator. Valid: {", ".join(_names())}.')
    try:
        parts = _alternatives(ast.parse(f"({text.strip('| ')})", mode="eval").body)  # parentheses allow line breaks
    except (SyntaxError, ValueError):
        raise ValueError(_unreadable(text)) from None
    for part in parts:
        name, options = _name_and_options(part)
        if name in evaluators:
            raise ValueError(f'The evaluator "{name}" is named twice in "{text}".')
        evaluators[name] = make_evaluator(name, options)
    return evaluators
