"""What a config means: its splits, its task and its model, without reading images, a checkpoint, or weights in
memory.
"""

import contextlib
import dataclasses
import os
from collections.abc import Callable

import keras
import numpy as np
from absl import logging
from ml_collections import ConfigDict

from keras_vit.data.sources.base import RandomAccess
from keras_vit.data.splits import split_name, split_range
from keras_vit.evaluation import FeatureEvaluator, Setting
from keras_vit.io.json_files import read_json
from keras_vit.io.logs import quiet
from keras_vit.models.bit import make_bit_spec
from keras_vit.models.finetuning.whitening import first_layer
from keras_vit.models.spec import make_spec
from keras_vit.runs.config import check_config, resolve
from keras_vit.runs.config_keys import is_packaged_task
from keras_vit.runs.evals import evaluators
from keras_vit.runs.training_run import open_data
from keras_vit.tasks import Task, find_task

_LOCAL = (
    "folder",
    "images",
    "csv",
    "jsonl",
    "tfrecord",
)  # sources that are counted by reading names, tables or indices


@dataclasses.dataclass(frozen=True)
class PlannedSplit:
    """What a plan knows about a split: the number of examples and the classes."""

    size: int
    class_names: tuple
    counts: tuple | None = None  # of each class; None if they are not known

    def class_counts(self):
        """Examples per class; where they are not known, as if every class had as many."""
        return (
            np.array(self.counts) if self.counts else np.full(len(self.class_names), self.size / len(self.class_names))
        )


def split_size(name, split, splits):
    """The number of examples of a split such as "train[:98%]+validation", where `splits` is {split: examples}.

    Raises:
        ValueError: for an unknown split.
    """
    total = 0
    for part in split.split("+"):
        whole = split_name(part.strip())
        if whole not in splits:
            raise ValueError(f'"{name}" has no split "{whole}"; its splits: {", ".join(splits)}.')
        start, stop = split_range(part.strip(), splits[whole])
        total += stop - start
    return total


def _counted(data, data_dir):
    """(training split, evaluation split) of local data, as PlannedSplits: it is opened, and no image is read."""
    splits = []
    for source in open_data(data, data_dir):
        counts = (
            tuple(source.class_counts().tolist())
            if isinstance(source, RandomAccess) and source.labels is not None
            else None
        )
        splits.append(PlannedSplit(source.size, tuple(source.class_names), counts))
    return splits


def planned_data(data, datasets, examples=None, classes=None, data_dir=None):
    """(training split, evaluation split or None) of a config's data, as PlannedSplit.

    They are given, or counted if the data is on this machine, or come from the table of well-known datasets.

    Args:
        data: config.data.
        datasets: {name: (classes, {split: examples})} of well-known datasets.
        examples, classes: of the training split; they override what is known.
        data_dir: the base of relative paths.

    Raises:
        ValueError: for a dataset that is not in the table, without examples and classes, or local data that cannot be
            opened.
    """
    name, _, path = data.source.partition("?")[0].partition(":")
    if (
        name in _LOCAL and path != "PATH" and "://" not in path and not (examples and classes)
    ):  # PATH is a recipe's placeholder
        train, held_out = _counted(data, data_dir)
        return dataclasses.replace(train, size=examples or train.size), held_out
    known = datasets.get(data.source) or datasets.get(name)
    if known is None and not (examples and classes):
        hint = "" if ":" in data.source else f" Known: {', '.join(datasets)}."
        raise ValueError(
            f'The size of "{data.source}" is not known without its data: give --examples=N (of the training split) and'
            f" --classes=N.{hint}"
        )
    names = tuple(map(str, range(classes or known[0])))
    train = PlannedSplit(examples or split_size(name, data.train, known[1]), names)
    held_out = PlannedSplit(split_size(name, data.evaluation, known[1]), names) if known else None
    return train, held_out


@contextlib.contextmanager
def without_values():
    """A context in which models are made whose variables never get values."""
    with keras.StatelessScope():
        yield
        keras.backend.clear_session()  # also clears the list of variables that get their values when the scope ends


def _described(init):
    """The arguments of the ViT or BiT that a run directory has trained, from its config.json; None if `init` is
    anything else.
    """
    path = os.path.join(os.path.expanduser(init), "config.json")
    described = read_json(path).get("model_spec", {}) if os.path.exists(path) else {}
    for part in ("encoder", "student"):  # of DINO and of a distillation, which leave this part
        described = described.get(part, {}).get("config", described)
    spec = described.get("variant")
    # Not of a file, a published name, a folder of another library or a head on a ViT; and what is quantised or has LoRA
    # is not adapted.
    if not isinstance(spec, dict) or {"quantization", "lora"} & described.keys():
        return None
    make = make_bit_spec if "units" in spec else make_spec
    return {"classes": None, "class_names": None, **described, "variant": make(spec)}


def _as_initialised(config, task, source):
    """(a copy of the config without a checkpoint, a remark). If config.init is a run directory, the copy describes the
    model made of its model.

    Raises:
        ValueError: as the task does for a model that it cannot start from.
    """
    copy = config.copy_and_resolve_references()
    copy.init = ""
    if type(task).load is Task.load and is_packaged_task(config.task):
        task.load(source)  # which refuses it
    described = _described(config.init)
    arguments = described and task.adapted(described, source)
    if not arguments:
        return copy, f"; {config.init} may hold a different model"
    with copy.unlocked(), copy.ignore_type():
        copy.model = ConfigDict({name: arguments[name] for name in ("variant", "image_size", "channels")})
        copy.model.remat = config.model.remat
    return copy, f", as {config.init}"


def planned_task(config, source):
    """(the task of a config, a remark): its model is made without a checkpoint, and is that of the run if config.init
    is a run directory.

    Raises:
        ValueError: as the task does for a config, or a model that it cannot start from.
    """
    make = find_task(config.task)
    task = make(config)
    task.check_config()
    if not config.init:
        return task, ""
    copy, remark = _as_initialised(config, task, source)
    return make(copy), remark


@dataclasses.dataclass(frozen=True)
class PlannedRun:
    """A run as planned; it is never started.

    Attributes:
        train, held_out: PlannedSplits; held_out is None if its size is not known.
        resolved: the config with every duration in steps.
        model: the model, whose variables have no values.
        remark: a note about the model, for the printed plan.
        loss: the loss, for the printed plan.
        select: the task's.
    """

    train: PlannedSplit
    held_out: PlannedSplit | None
    resolved: dict
    model: keras.Model
    remark: str
    loss: str
    select: Callable


def _check_evaluators(made, model):
    """Refuses evaluators that a run would refuse for want of data; preparing those that name data would open it."""
    for evaluator in made:
        if isinstance(evaluator, FeatureEvaluator) and evaluator.source is None:
            evaluator.prepare(Setting(model))


def _name(loss):
    """The name of a loss: an object's, a function's, or Keras' name as text."""
    return loss if isinstance(loss, str) else getattr(loss, "__name__", type(loss).__name__)


def planned_run(config, datasets, examples=None, classes=None, data_dir=None):
    """The PlannedRun of a config; for the arguments see `planned_data`.

    Raises:
        ValueError: as training would, or for a dataset whose size is not known.
    """
    check_config(config)
    train, held_out = planned_data(config.data, datasets, examples, classes, data_dir)
    resolved = resolve(config, train.size)
    task, remark = planned_task(config, train)
    made = evaluators(resolved["evals"]).values()  # refuses unknown ones; a task's file may register its own
    with quiet(logging.ERROR), without_values():
        model = task.model(train)
        loss = task.loss(train)
        task.mixing(model)  # refuses a wrong alpha
        if config.get("whiten"):
            first_layer(model)  # refuses a model without one to whiten
    _check_evaluators(made, model)
    loss = f"{resolved['loss']['name']} loss" if "loss.name" in task.reads else _name(loss)
    return PlannedRun(train, held_out, resolved, model, remark, loss, task.select)
