"""The interface of tasks: everything in a run that depends on what the model learns.

Runs, sweeps, seeds, strategies, resuming, export and the binaries use this interface and know nothing about classes or
accuracy. A new task is a subclass of Task in one file and a config that names it: `config.task = "classification"`, or
"package.module:Class" or "path/to/file.py:Class" for your own.
"""

import dataclasses
import functools
import math
from typing import Any, ClassVar

import keras
import numpy as np
from ml_collections import ConfigDict

from keras_vit import evaluation
from keras_vit.data import parse
from keras_vit.evaluation.registry import Evaluation, Evaluator
from keras_vit.inspection import html_report
from keras_vit.io.suggest import counted, did_you_mean

_BATCH = 64  # examples per batch of a report's predictions


@dataclasses.dataclass(frozen=True)
class Score:
    """The measure that ranks runs.

    Attributes:
        name: str. A measure in the task's evaluation, such as "top1".
        title: str. Name in tables and pictures.
        higher_is_better: bool. Whether larger values are better.
        percent: bool. Whether to show it as a percentage.
        curve: str. Name in metrics.jsonl, for learning curves.
    """

    name: str
    title: str = ""
    higher_is_better: bool = True
    percent: bool = False
    curve: str = "val_loss"

    def __post_init__(self):
        object.__setattr__(self, "title", self.title or self.name)

    @property
    def unit(self) -> str:
        return "%" if self.percent else ""

    @property
    def label(self) -> str:
        """The title with its unit."""
        return f"{self.title}, {self.unit}" if self.unit else self.title

    def scaled(self, value: float) -> float:
        """Returns the value to show."""
        return 100 * value if self.percent else value

    def text(self, measures: dict[str, float]) -> str:
        """Formats the score in `measures`, with its standard deviation if present; "-" without a score."""
        if measures.get(self.name) is None:
            return "-"
        deviation = measures.get(f"{self.name}_std")
        digits = ".2f" if self.percent else ".4g"
        return f"{self.scaled(measures[self.name]):{digits}}" + (
            f" +- {self.scaled(deviation):{digits}}" if deviation is not None else ""
        )

    def is_in(self, measures: dict[str, float]) -> bool:
        """Whether the measures contain a finite score, since NaN cannot be compared."""
        return measures.get(self.name) is not None and math.isfinite(measures[self.name])

    def rank(self, measures: dict[str, float]) -> tuple[float, float]:
        """Returns a key that is larger for better runs; a smaller loss breaks ties. ValueError without a score."""
        if self.name not in measures:
            raise ValueError(
                f'The evaluation has no measure "{self.name}", the task\'s score. It has: {", ".join(measures)}.'
            )
        loss = measures.get("loss", math.inf)
        value = measures[self.name] if self.higher_is_better else -measures[self.name]
        return value, -loss if math.isfinite(loss) else -math.inf

    def rank_record(self, record: dict[str, float]) -> tuple[float, float]:
        """Ranks a record of metrics.jsonl or the logs of fit, like `rank`; ValueError without `curve`."""
        if self.curve not in record:
            raise ValueError(
                f'The run\'s evaluations have no "{self.curve}", required by --config.keep_best and'
                f" --config.early_stopping: set them to False and None. Available: {', '.join(record)}."
            )
        return self.rank({"loss": record.get("val_loss", math.inf), self.name: record[self.curve]})


# Config keys that only some tasks read, and their neutral values.
OPTIONS = {
    "mixup": (None, 0),
    "cutmix": (None, 0),
    "loss.name": ("softmax",),
    "loss.label_smoothing": (0,),
    "loss.class_weights": (None, ""),
    "head": ("reset",),
    "resample": (None, ""),
    "freeze": (None, ()),
    "linear_probe": (False,),
    "quantization": (None, ""),
}


def predict(model, x):
    """Computes the model's output (n, ...) float32 for arrays of n examples, on one device."""
    n = len(keras.tree.flatten(x)[0])
    batches = (keras.tree.map_structure(lambda array, i=i: array[i : i + _BATCH], x) for i in range(0, n, _BATCH))
    return np.concatenate([model.predict_on_batch(batch) for batch in batches], dtype="float32")


def _against_truth(model, samples):
    """Returns [report section of predicted against true numbers], or [] unless the output is one number per example."""
    x, y = samples
    if keras.tree.is_nested(y) or keras.tree.is_nested(model.output) or y.dtype.kind != "f" or not y.size == len(y) > 1:
        return []
    if math.prod(model.output.shape[1:]) != 1:
        return []
    return [html_report.against_truth(y.reshape(-1), predict(model, x).reshape(-1))]


def _is_random(preprocess):
    """Whether a preprocessing text is random; ops unknown to this process, such as custom ops, count as random."""
    try:
        return parse(preprocess).random
    except ValueError:
        return True


def _training_note(config):
    """Explains how training curves differ from evaluation curves; "" if they do not, or if it is unknown."""
    if not config or "data" not in config:
        return ""
    augmented = "augmented " if _is_random(config.data.train_preprocess) else ""
    mixed = " or ".join(name for name in ("mixup", "cutmix") if config.get(name))
    if not augmented and not mixed:
        return ""
    images = f"{augmented}images" + (f", mixed by {mixed}" if mixed else "")
    return f"Training is measured on {images}; evaluation on unchanged images."


@dataclasses.dataclass(frozen=True)
class NoOptions:
    """The options of a task without any."""


def _options(task, values):
    """Makes a task's options from {name: value}; ValueError for an unknown name, with the nearest name."""
    valid = [field.name for field in dataclasses.fields(task.Options)]
    for name in values:
        if name not in valid:
            known = f"{did_you_mean(name, valid)} Valid: {', '.join(valid)}." if valid else " It has no options."
            raise ValueError(f'The task {task.__name__} has no option "{name}" (--config.objective.{name}).{known}')
    return task.Options(**values)


class Task:
    """Base class of tasks. Subclasses define `select`, `build` and `loss`, and override other defaults as needed.

    Attributes:
        score: Score. The measure that ranks runs.
        reads: tuple of str. Keys of OPTIONS that the task reads; a config that sets another key is refused.
        Options: frozen dataclass of the task's options, with defaults.
        samples: int. How many evaluated examples `report` receives, spread over the split; None for the first 500.
        config: ConfigDict. The run's config.
        options: Options. From `config.objective`.
    """

    score = Score("loss", higher_is_better=False)
    reads: tuple[str, ...] = ()
    Options: ClassVar[type] = NoOptions
    samples: ClassVar[int | None] = None

    def __init__(self, config: ConfigDict):
        self.config = config
        self.options = _options(type(self), (config or {}).get("objective") or {})

    def check_config(self) -> None:
        """Raises ValueError for options that the task would ignore."""
        ignored = []
        for key, neutral in OPTIONS.items():
            value = functools.reduce(lambda place, part: place[part], key.split("."), self.config)
            if key not in self.reads and value not in neutral:
                ignored.append(f"--config.{key}={neutral[0]} (it is {value!r})")
        if ignored:
            raise ValueError(
                f"The task {type(self).__name__} does not use some options of the config. Set {', '.join(ignored)}."
            )

    # Data

    def check_data(self, train: Any, held_out: Any) -> None:
        """Raises ValueError for sources that the task cannot learn from."""

    def placeholders(self) -> dict[str, Any]:
        """An example's features besides image and label, with the right ranks and dtypes, for plans without data."""
        return {}

    def select(self, example: dict[str, Any]) -> tuple:
        """Maps a preprocessed example to (x, y) or (x, y, weight), in a graph: x for the model, y for the loss.

        Draw random numbers with TensorFlow's stateless ops from `example["seed"]`, (2,) int64, so that runs resume
        exactly and all strategies draw the same numbers.
        """
        raise NotImplementedError

    # Model

    def build(self, source: Any) -> keras.Model:
        """Builds a model with random weights for the training source."""
        raise NotImplementedError

    def load(self, source: Any) -> keras.Model:
        """Loads `config.init`, adapted to the training source; ValueError if the task takes no checkpoint."""
        raise ValueError(
            f"The task {type(self).__name__} starts from random weights and cannot start from"
            f' config.init="{self.config.init}": leave it out.'
        )

    def adapted(self, described: dict[str, Any], source: Any) -> dict[str, Any] | None:
        """Returns the arguments of the ViT or BiT that `load` would make from a model with arguments `described`.

        For plans, which read no weights; raises like `load`. None if unknown.
        """
        return None

    def model(self, source: Any) -> keras.Model:
        """Returns the run's initial model: `config.init`, or a model with random weights."""
        return self.load(source) if self.config.init else self.build(source)

    def fit_head(self, model: keras.Model, source: Any, strategy: Any, errors: Any) -> None:
        """Fits a new model's head on frozen features of the training source, in place, for `config.head="probe"`.

        Adds unreadable images to `errors`, the run's ExampleErrors.
        """
        raise ValueError(f"The task {type(self).__name__} has no head for --config.head=probe. Valid: reset, keep.")

    def check_model(self, model: keras.Model, source: Any) -> None:
        """Raises ValueError if the model cannot be evaluated on the source."""

    # Training

    def loss(self, source: Any) -> keras.losses.Loss:
        """Returns the loss for `compile`."""
        raise NotImplementedError

    def metrics(self, model: keras.Model) -> list[keras.metrics.Metric] | dict[str, list[keras.metrics.Metric]]:
        """Returns weighted metrics for training and evaluation; for several outputs, {name: list}."""
        return []

    def mixing(self, model: keras.Model) -> Any:
        """Returns a layer that mixes a training batch's examples on the device, such as training.Mixup, or None."""
        return None

    # Evaluation

    def deliver(self, model: keras.Model) -> keras.Model:
        """Returns the model to evaluate and save as model.keras: the trained model or a part of it.

        It shares the trained model's weights, so `config.evals` also measure it during training.
        """
        return model

    def settle(self, model: keras.Model, evaluation: Evaluation) -> None:
        """Sets the values that a finished run chooses on its evaluation split, in the model to deliver, in place."""

    def evaluator(self) -> Evaluator:
        """Returns the evaluator of a finished run on its evaluation split; by default, the task's loss and metrics."""
        return evaluation.LossAndMetrics(self.loss, self.metrics)

    def summary(self, measures: dict[str, float]) -> str:
        """Formats the measures in one line."""
        examples = counted(measures["examples"], "example")
        return f"{self.score.title} {self.score.text(measures)}{self.score.unit}, {examples}"

    def report(
        self, model: keras.Model, evaluation: Evaluation, samples: tuple[np.ndarray, ...], records: list[dict]
    ) -> list[str]:
        """Returns the sections of the run's report, as HTML.

        Args:
            model: keras.Model. From `deliver`.
            evaluation: Evaluation. From `evaluator`.
            samples: (x, y). Arrays of evaluated examples.
            records: list of dict. Records of metrics.jsonl.
        """
        return [
            html_report.table([*self._shown(evaluation.measures), ("parameters", model.count_params())]),
            self._learning_curves(records),
            *_against_truth(model, samples),
        ]

    def _shown(self, measures):
        """Returns (name, value) pairs of the measures, score first."""
        others = {name: value for name, value in measures.items() if name != self.score.name}
        score = (
            [(self.score.title, f"{self.score.text(measures)}{self.score.unit}")] if self.score.name in measures else []
        )
        return [*score, *others.items()]

    def _learning_curves(self, records):
        """Returns the section with curves of the loss and the score."""
        score, metric = self.score, self.score.curve.removeprefix("val_")
        title, percent = (score.label, score.percent) if metric != "loss" else ("loss", False)
        return html_report.learning_curves(records, metric, title, percent, _training_note(self.config))
