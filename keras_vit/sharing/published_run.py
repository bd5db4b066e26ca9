"""The publishable content of a run directory: measures, data, training."""

import dataclasses
import math
import os
import re
from typing import Any

from etils import epath

from keras_vit.evaluation import find_evaluator
from keras_vit.io.json_files import read_json
from keras_vit.io.lock import FILE as LOCK
from keras_vit.runs.config import flat
from keras_vit.runs.saving.rundir import RunDirectory
from keras_vit.sharing.data_names import OWN, Data, find_data, is_public, model_name, names_a_file
from keras_vit.tasks import TASKS, find_task
from keras_vit.tasks.task import OPTIONS

# Config keys that a card shows, and their titles. Other keys may name files and stay private.
_SHOWN = {
    "total": "steps",
    "batch_size": "batch size",
    "optimizer.name": "optimizer",
    "optimizer.learning_rate": "learning rate",
    "optimizer.weight_decay": "weight decay",
    "optimizer.layer_decay": "layer decay",
    "optimizer.head_rate": "learning rate factor of the head",
    "optimizer.ema": "averaged weights (EMA)",
    "schedule.decay": "schedule",
    "schedule.warmup": "warm-up, steps",
    "loss.name": "loss",
    "loss.label_smoothing": "label smoothing",
    "mixup": "mixup",
    "cutmix": "cutmix",
    "data.train_preprocess": "training preprocessing",
    "dtype": "precision",
    "seed": "seed",
    "strategy.replicas": "devices",
}


_OFF = {"seed": None, "strategy.replicas": 1}  # defaults other than 0, which a card omits
_MAY_NAME_FILES = re.compile(r"data\.(?!.*preprocess)|init|task|objective|evals")


def _measures(content):
    """The finite numbers in an evaluation's JSON file."""
    numbers = {
        key: value for key, value in content.items() if isinstance(value, (int, float)) and not isinstance(value, bool)
    }
    return {key: value for key, value in numbers.items() if math.isfinite(value)}


@dataclasses.dataclass(frozen=True)
class Measured:
    """Results of an evaluator, or of the run itself (name ""); `data` is None if unknown, `details` the whole JSON."""

    name: str
    data: Data | None
    measures: dict[str, float]
    details: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Run:
    """Contents of a run directory, or of an evaluation's output folder.

    Attributes:
        path: the folder.
        config: config.json, or {}.
        records: records of metrics.jsonl, oldest first.
        evaluation: evaluation.json, or None.
    """

    path: epath.Path
    config: dict[str, Any]
    records: list[dict[str, Any]]
    evaluation: Measured | None

    @property
    def data(self) -> Data | None:
        """Training data; None without a config."""
        data = self.config.get("data")
        return data and find_data(data["source"], data["train"])

    @property
    def base(self) -> str | None:
        """The initial model, as passed to `keras_vit.load`; None for random weights."""
        return self.config.get("init")

    def evaluators(self) -> list[Measured]:
        """Latest results of the evaluators in `config.evals`."""
        found = []
        for name, options in (self.config.get("evals") or {}).items():
            file = self.path / f"{name}.json"
            if options is None or not file.exists():
                continue
            content = read_json(file)
            logged = {
                key.removeprefix(f"{name}/") for record in self.records for key in record if key.startswith(f"{name}/")
            }
            measures = {
                key: value for key, value in _measures(content).items() if key in logged or not logged and key != "step"
            }
            data = self._find_data(name, options)
            found.append(Measured(name, data, measures, content))
        return found

    def _find_data(self, name, options):
        """Data of an evaluator with these options, its own or the run's; None if unknown."""
        kind: Any = find_evaluator(options.get("evaluator", name))
        values = {**({field.name: field.default for field in dataclasses.fields(kind)} if kind else {}), **options}
        if values.get("source"):
            return find_data(values["source"], values.get("test") or values.get("split"))
        own = self.config["data"]
        return find_data(own["source"], own["evaluation"]) if kind and "source" in values else None

    def caption(self, name: str) -> str:
        """Caption of the pictures with images from an evaluator in `config.evals`; "" if it draws none."""
        options = self.config["evals"][name]
        return getattr(find_evaluator(options.get("evaluator", name)), "caption", "")

    def training(self) -> list[tuple[str, Any]]:
        """(name, value) pairs that describe the training, without possible file names."""
        if not self.config:
            return []
        task = self.config.get("task", "classification")
        rows = [("task", task.rpartition(":")[2].replace("_", " ")), ("training data", str(self.data))]
        rows += [("started from", model_name(self.base) if self.base else "random weights")]
        teacher = (self.config.get("objective") or {}).get("teacher")
        rows += [("taught by", model_name(teacher))] if isinstance(teacher, str) else []
        read = find_task(task).reads if task in TASKS else ()
        values = {key: value for key, value in flat(self.config).items() if key in read or key not in OPTIONS}
        shown = {title: values[key] for key, title in _SHOWN.items() if values.get(key) not in (None, _OFF.get(key, 0))}
        return rows + [
            (title, value) for title, value in shown.items() if not (isinstance(value, str) and names_a_file(value))
        ]

    def private(self) -> set[str]:
        """Texts that must not be shared: the run's folder and all file names in its config."""
        values = {
            key: value
            for key, value in flat(self.config).items()
            if isinstance(value, str) and _MAY_NAME_FILES.match(key)
        }
        files = {value for value in values.values() if names_a_file(value) and not is_public(value)}
        parts = [value.partition("?")[0].partition(":") for value in files]
        data = self.config.get("data") or {}
        quoted = {
            text for key in data if "preprocess" in key for text in re.findall(r"['\"](.*?)['\"]", str(data[key]))
        }
        named = {text for text in quoted if names_a_file(text)} | {
            rest if kind in OWN else kind for kind, _, rest in parts
        }
        return {text for text in named if len(text) > 1} | {
            str(self.path) if "://" in str(self.path) else os.path.abspath(self.path)
        }


def _evaluation(path, config):
    """evaluation.json as Measured, or None."""
    if not (path / "evaluation.json").exists():
        return None
    content, data = (
        read_json(path / "evaluation.json", "Evaluate the model again: keras-vit evaluate."),
        config.get("data"),
    )
    source = content.get("data") or (data and data["source"])  # older files lack "data"
    measured_on = find_data(source, content["split"]) if source and content.get("split") else None
    return Measured("", measured_on, _measures(content), content)


def _check_ended(run):
    """Raises ValueError for an unfinished run: its model.keras and measures do not match its config.json yet."""
    if (run.path / LOCK).exists():
        raise ValueError(
            f'"{run.path}" is in use by a training run: share it once the run has ended. If none is running, delete'
            f" {run.path / LOCK}."
        )
    checkpoints = list(RunDirectory(run.path).checkpoints())
    step, total = max([*checkpoints, *(record["step"] for record in run.records)], default=None), run.config["total"]
    if step is not None and step < total:
        last = f", or to its last checkpoint, --config.total={checkpoints[-1]}" if checkpoints else ""
        raise ValueError(
            f'"{run.path}" is at step {step:,} of {total:,}: its model and measures do not match its config. Continue'
            f" it with the same command, to the end{last}, then share it."
        )


def read_run(path: str | os.PathLike) -> Run:
    """Reads a run directory or the output folder of `keras-vit evaluate --output`.

    Raises:
        ValueError: the folder is neither, the run has not ended, or a file is broken.
    """
    path = epath.Path(os.path.expanduser(path))
    has_config = (path / "config.json").exists()
    config = (
        read_json(path / "config.json", "Restore it from a backup, or share model.keras itself.") if has_config else {}
    )
    config = config if "total" in config else {}  # another library's config.json
    evaluation = _evaluation(path, config)
    if not config and evaluation is None:
        raise ValueError(
            f'"{path}" is not a run: it has neither config.json, from training, nor evaluation.json, from keras-vit'
            " evaluate --output."
        )
    run = Run(path, config, RunDirectory(path).metrics(), evaluation)
    if config:
        _check_ended(run)
    return run


def is_run(path: str | os.PathLike) -> bool:
    """Whether a path looks like a folder for `read_run`, by its file names."""
    text = os.fspath(path)
    if "://" in text and not text.startswith("gs://"):
        return False
    folder = epath.Path(os.path.expanduser(text))
    return (folder / "checkpoints").exists() or (folder / "evaluation.json").exists()
