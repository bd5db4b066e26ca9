"""What an evaluator is, and the registry of evaluators by name.

An evaluator is a frozen dataclass, whose fields are its options. `prepare` opens its data and refuses what cannot work,
before a run trains; it returns a function that evaluates the model with the weights that it has when called.
`@register` registers an evaluator of your own.
"""

import ast
import dataclasses
import importlib
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from keras_vit.data import ExampleErrors, image_and_label
from keras_vit.distribution import Strategy
from keras_vit.io.suggest import did_you_mean


@dataclasses.dataclass(frozen=True)
class Chart:
    """A picture of an evaluation, as numbers.

    Attributes:
        kind: "lines", {name: (xs, ys)}, ys from 0 on; "bars", {name: number}; or "reliability", {name: [[examples,
            accuracy, mean confidence], ...]}.
        values: what is drawn.
        x_label, y_label: the names of the axes; bars have only the first, reliability none.
        logarithmic: whether the xs of lines may be on a logarithmic axis, as 1, 2, 4, 8 are.
    """

    kind: str
    values: dict[str, Any]
    x_label: str = ""
    y_label: str = ""
    logarithmic: bool = False


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """What an evaluator returns.

    Attributes:
        measures: {name: number}, for logs and tables.
        details: what else is written to JSON.
        charts: {name: Chart}, drawn next to the JSON where matplotlib is installed.
        pictures: {name: pixels (h, w, 3) uint8}, such as reconstructed images; a run keeps those of every step.
    """

    measures: dict[str, float]
    details: dict[str, Any] = dataclasses.field(default_factory=dict)
    charts: dict[str, Chart] = dataclasses.field(default_factory=dict)
    pictures: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Setting:
    """What is evaluated, and where.

    Attributes:
        model: the model, created in the scope of `strategy`.
        strategy: a keras_vit.strategy.
        batch_size: examples per batch, over all replicas.
        data_dir: the folder of tensorflow-datasets' prepared data, and the base of relative paths.
        source: the run's evaluation source, already open, for evaluators that do not name data of their own; or None.
        preprocess: the preprocessing text of `source`; None for the model's own.
        select: a function: a preprocessed example of `source` -> (x, y).
        errors: collects failed examples; None for a new ExampleErrors in each evaluation.
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
        score: the measure by which models are compared.
        higher_is_better: whether larger scores are better.
        title: its name in reports; "" for its name in the registry, in words.
        caption: what its pictures show, for the report.
    """

    score: ClassVar[str] = "top1"
    higher_is_better: ClassVar[bool] = True
    title: ClassVar[str] = ""
    caption: ClassVar[str] = ""

    def check_options(self) -> None:
        """Refuses options that cannot work with any model.

        Raises:
            ValueError: saying what is missing.
        """

    def prepare(self, setting: Setting) -> Callable[[], Evaluation]:
        """Opens the data; returns a function that evaluates `setting.model` with the weights it has when called.

        Raises:
            ValueError: for data or options that cannot work.
        """
        raise NotImplementedError


EVALUATORS: dict[str, type[Evaluator]] = {}  # those that are registered; the package's own when they are first named
_MODULES = {
    "calibration": "calibration",
    "classification": "classification",
    "corruptions": "robustness.corruptions",
    "few_shot": "shots",
    "knn": "knn",
    "logistic": "linear",
    "mapped": "imagenet.mapped",
    "occlusion": "robustness.patches",
    "real": "imagenet.real",
    "reconstructions": "reconstructions",
    "ridge": "linear",
    "samples": "samples",
    "shifts": "robustness.patches",
    "shuffled_patches": "robustness.patches",
}


def find_evaluator(name: str) -> type[Evaluator] | None:
    """The class of the evaluator with that name; None if there is none."""
    if name in _MODULES:
        importlib.import_module(f"keras_vit.evaluation.{_MODULES[name]}")
    return EVALUATORS.get(name)


def _names():
    return list({**_MODULES, **EVALUATORS})


def register(name: str) -> Callable[[type[Evaluator]], type[Evaluator]]:
    """A class decorator that registers an evaluator under `name`.

    Raises:
        ValueError: if the name is taken.
    """

    def add(cls):
        if not cls.__module__.startswith("keras_vit."):
            find_evaluator(name)  # the package's own evaluator of that name is registered then
        if name in EVALUATORS and EVALUATORS[name].__qualname__ != cls.__qualname__:
            raise ValueError(f'The evaluator "{name}" is already registered, as {EVALUATORS[name].__qualname__}.')
        EVALUATORS[name] = cls
        return cls

    return add


def make_evaluator(name: str, options: dict[str, Any]) -> Evaluator:
    """The evaluator with that name and those options.

    Args:
        name: a name in the registry.
        options: {field: value}.

    Raises:
        ValueError: for an unknown name or option, with the nearest valid one, or for a value that the evaluator
            refuses.
    """
    evaluator: Any = find_evaluator(name)
    if evaluator is None:
        raise ValueError(f'Unknown evaluator "{name}".{did_you_mean(name, _names())} Valid: {", ".join(_names())}.')
    valid = [field.name for field in dataclasses.fields(evaluator)]
    for option in options:
        if option not in valid:
            raise ValueError(
                f'The evaluator "{name}" has no option "{option}".{did_you_mean(option, valid)} Valid:'
                f" {', '.join(valid)}."
            )
    return evaluator(**options)


def _alternatives(node):
    """The parts of `a | b | c`, in order."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return [*_alternatives(node.left), *_alternatives(node.right)]
    return [node]


def _unreadable(text, example="source='digits'"):
    return (
        f'Cannot read the evaluator "{text}". Write a name, or name(option=value), several joined by "|"; text needs'
        f" quotes: {example}."
    )


def _name_and_options(node):
    """The name and options of one evaluator's syntax tree.

    Raises:
        ValueError: for anything but a name, or name(option=value) with literal values.
    """
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
    """Evaluators from text such as "classification|few_shot(source='cifar10', shots=(1, 5))": values are literals, and
    nothing is executed.

    Returns:
        {name: evaluator}, in the text's order.

    Raises:
        ValueError: for text that cannot be read, for a name that is used twice, and as `make_evaluator` does.
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
