"""--dry_run: what a config means and what it costs, without reading images, a checkpoint, or weights in memory."""

import contextlib
import dataclasses
import math
import os
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf
from absl import logging
from etils import epath
from ml_collections import ConfigDict

from keras_vit.data.sources.base import RandomAccess
from keras_vit.data.splits import split_name, split_range
from keras_vit.evaluation import FeatureEvaluator, Setting
from keras_vit.inspection import figures
from keras_vit.io.atomic import write_bytes
from keras_vit.io.json_file import read_json
from keras_vit.io.logs import quiet
from keras_vit.models.bit import make_bit_spec
from keras_vit.models.spec import make_spec
from keras_vit.models.whitening import first_layer
from keras_vit.planning import counting
from keras_vit.planning.flops import training_flops
from keras_vit.planning.model_counts import count
from keras_vit.planning.text import rows, short, sparkline
from keras_vit.runs.config import check_config, odd_sizes, resolve
from keras_vit.runs.config_keys import is_packaged_task
from keras_vit.runs.evals import evaluators
from keras_vit.runs.grid import OWN, parse_grid
from keras_vit.runs.optimizer import make_optimizer, make_schedule
from keras_vit.runs.training_run import check_images, open_data
from keras_vit.tasks import Task, find_task


@dataclasses.dataclass(frozen=True)
class PlannedSplit:
    """What a plan knows about a split: the number of examples and the classes."""

    size: int
    class_names: tuple
    counts: tuple | None = None  # of each class; None if they are not known

    def class_counts(self):
        """Examples per class; where they are not known, as if every class had as many."""
        return np.array(self.counts) if self.counts else np.full(len(self.class_names), self.size / len(self.class_names))


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


_LOCAL = ("folder", "images", "csv", "jsonl", "tfrecord")  # sources that are counted by reading names, tables or indices


def _counted(data, data_dir):
    """(training split, evaluation split) of local data, as PlannedSplits: it is opened, and no image is read."""
    splits = []
    for source in open_data(data, data_dir):
        counts = tuple(source.class_counts().tolist()) if isinstance(source, RandomAccess) and source.labels is not None else None
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
        ValueError: for a dataset that is not in the table, without examples and classes, or local data that cannot be opened.
    """
    name, _, path = data.source.partition("?")[0].partition(":")
    if name in _LOCAL and path != "PATH" and "://" not in path and not (examples and classes):  # PATH is a recipe's placeholder
        train, held_out = _counted(data, data_dir)
        return dataclasses.replace(train, size=examples or train.size), held_out
    known = datasets.get(data.source) or datasets.get(name)
    if known is None and not (examples and classes):
        hint = "" if ":" in data.source else f" Known: {', '.join(datasets)}."
        raise ValueError(
            f'The size of "{data.source}" is not known without its data: give --examples=N (of the training split) and --classes=N.{hint}'
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
    """The arguments of the ViT or BiT that a run directory has trained, from its config.json; None if `init` is anything else."""
    path = os.path.join(os.path.expanduser(init), "config.json")
    described = read_json(path).get("model_spec", {}) if os.path.exists(path) else {}
    for part in ("encoder", "student"):  # of DINO and of a distillation, which leave this part
        described = described.get(part, {}).get("config", described)
    spec = described.get("variant")
    # Not of a file, a published name, a folder of another library or a head on a ViT; and what is quantised or has LoRA is not adapted.
    if not isinstance(spec, dict) or {"quantization", "lora"} & described.keys():
        return None
    make = make_bit_spec if "units" in spec else make_spec
    return {"classes": None, "class_names": None, **described, "variant": make(spec)}


def _as_initialised(config, task, source):
    """(a copy of the config without a checkpoint, a remark). If config.init is a run directory, the copy describes the model made of its model.

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
    """(the task of a config, a remark): its model is made without a checkpoint, and is that of the run if config.init is a run directory.

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


def _check_images(config, model, select):
    """check_images with an example that stands for those of the sources; `select` is the task's."""
    example = tf.zeros((8, 8, 1), tf.uint8) if config.data.source == "digits" else tf.constant("")
    source = RandomAccess("plan", ("0",), np.zeros(1, "int64"), lambda i: {"image": example})
    try:
        check_images(config, model, source, source, select)
    except KeyError:  # it takes more than an image and a label, which nothing stands for
        check_images(config, model, source, source)


def _size(variables):
    return sum(math.prod(v.shape) for v in variables)


def _trained_layers(model):
    """The layers that train, by name; of many the first and the last."""
    names = [layer.name for layer in model.layers if layer.trainable_variables]
    return ", ".join(names) if len(names) <= 4 else f"{names[0]}, {names[1]}, ..., {names[-1]}"


def _model_row(config, model, remark):
    images = [tuple(t.shape[-3:-1]) for t in keras.tree.flatten(model.input) if len(t.shape) in (4, 5)]  # 5: of several crops
    size = " x ".join(map(str, images[0])) if images else "?"
    tokens = f", {math.prod(model.grid) + model.spec.prefix} tokens" if hasattr(model, "grid") else ""
    trained = _size(model.trainable_variables)
    total = model.count_params()
    what = "all trained" if trained == total else f"{trained:,} trained, in {_trained_layers(model)}"
    name = "" if remark.startswith(",") else f"{config.model.variant} "
    return f"{name}{size} px{tokens}: {total:,} parameters, {what}{remark}"


def _steps_row(resolved, size):
    total, batch = resolved["total"], resolved["batch_size"]
    return (
        f"{total:,} of {batch:,} images = {total * batch / size:.4g} epochs of {math.ceil(size / batch):,} steps; evaluation every "
        f"{resolved['evaluate']:,}, checkpoint every {resolved['checkpoint']:,}"
    )


def _optimizer_row(resolved, loss):
    o = resolved["optimizer"]
    final = "" if o["weight_decay_final"] is None else f" to {o['weight_decay_final']:g}"
    options = [f"weight decay {o['weight_decay']:g}{final}", f"clip {o['clip_norm']:g}" if o["clip_norm"] else "no clipping"]
    options += [f"{name} {o[name]}" for name in ("layer_decay", "ema", "swa", "lookahead") if o[name]]
    options += [loss] + [f"{name} {resolved[name]:g}" for name in ("mixup", "cutmix") if resolved[name]]
    return f"{o['name']}, {', '.join(options)}"


def _rate_rows(resolved, schedule):
    """The learning rate, as a curve in text and as its values at a few steps."""
    total, s = resolved["total"], resolved["schedule"]
    at = lambda steps: np.asarray(keras.ops.convert_to_numpy(schedule(np.asarray(steps, "float32"))))  # noqa: E731
    marks = sorted({0, s["warmup"], total // 4, total // 2, total * 3 // 4, total - 1})
    values = ", ".join(f"{rate:.3g} at {step:,}" for step, rate in zip(marks, at(marks)))
    return [
        ("learning rate", f"{sparkline(at(np.linspace(0, total - 1, 60)))} {s['decay']}, {s['warmup']:,} steps of warm-up"),
        ("", values),
    ]


def copies(optimizer):
    """How many numbers an optimizer keeps for each weight."""
    weight = keras.Variable(np.zeros(1000, "float32"), name="kernel")
    optimizer.build([weight])
    return _size(optimizer.variables) // 1000


def _memory_row(model, optimizer):
    """The memory of the state on one device; all of its variables are float32."""
    weights, trained = 4 * _size(model.variables), 4 * _size(model.trainable_variables)
    slots = trained * copies(optimizer)
    parts = f"weights {short(weights, 'B')}, gradients {short(trained, 'B')}, optimizer {short(slots, 'B')}"
    text = f"{short(weights + trained + slots, 'B')} per device without activations: {parts}"
    if getattr(model, "spec", None) is None:
        return text
    kept = counting.training_activations(count(model)) * counting.BYTES[model.compute_dtype]
    return f"{text}; activations {short(kept, 'B')} per image"


def _draw_rate(resolved, schedule, workdir):
    """Writes learning_rate.png if matplotlib is installed; returns the row that says so."""
    steps = np.linspace(0, resolved["total"] - 1, 500)
    try:
        png = figures.lines({"": (steps, keras.ops.convert_to_numpy(schedule(steps.astype("float32"))))}, "step", "learning rate")
    except ImportError as error:
        return [("picture", str(error))]
    path = epath.Path(workdir) / "learning_rate.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, png)
    return [("picture", str(path))]


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


def _computation_row(model, resolved):
    """Operations per image and in all, for models whose operations can be counted."""
    if getattr(model, "spec", None) is None:
        return []
    flops, step = counting.flops(count(model)), training_flops(model)
    in_all = step * resolved["total"] * resolved["batch_size"]
    times = {1: "at once that: nothing below the head trains", 3: "at three times that"}
    text = f"{short(flops, 'FLOP')} per image forward; {short(in_all, 'FLOP')} in all, {times.get(round(step / flops, 2), f'at {step / flops:.2g} times that')}"
    return [("computation", text)]


def plan(config, datasets, workdir=None, examples=None, classes=None, sweep=None, runs=1, data_dir=None):
    """The plan of a config as text; the learning-rate curve is written to workdir/learning_rate.png.

    Args:
        config: a ConfigDict like configs/lib/common.base().
        datasets: {name: (classes, {split: examples})} of well-known datasets.
        workdir: the folder for the picture, or None for no picture.
        examples, classes: of a dataset that is not well known and not on this machine.
        sweep, runs: the values of the flags --sweep and --runs.
        data_dir: the base of relative paths.

    Raises:
        ValueError: as `planned_run` does, for preprocessing whose images do not fit the model, and for a sweep that is not valid.
    """
    planned = planned_run(config, datasets, examples, classes, data_dir)
    train, held_out, resolved, model = planned.train, planned.held_out, planned.resolved, planned.model
    _check_images(config, model, planned.select)
    schedule = make_schedule(resolved)
    data, evaluated = config.data, f" ({held_out.size:,})" if held_out else ""
    classes_text = f", {len(train.class_names):,} classes" if train.class_names else ""
    trained = f"{train.size:,} examples{classes_text}"
    pairs = [
        ("model", _model_row(config, model, planned.remark)),
        ("data", f"{data.source} {data.train} ({trained}), evaluated on {data.evaluation}{evaluated}"),
        ("training", data.train_preprocess),
        ("evaluation", data.eval_preprocess),
        ("steps", _steps_row(resolved, train.size)),
        ("optimizer", _optimizer_row(resolved, planned.loss)),
        *_rate_rows(resolved, schedule),
        *_computation_row(model, resolved),
        ("memory", _memory_row(model, make_optimizer(resolved))),
        *((name, f"every {options['every']:,} steps") for name, options in resolved["evals"].items()),
    ]
    text = config.sweep if sweep in (None, OWN) else sweep
    if text:
        grid = parse_grid(text, config)
        pairs.append(("sweep", f"{len(grid.points())} points: {text}" + ("" if sweep else " (with --sweep)")))
    pairs += [("runs", f"{runs} seeds")] if runs > 1 else []
    pairs += [("expected", config.expected)] if config.expected else []
    pairs += [("note", sentence) for sentence in odd_sizes(config, resolved, train.size)]
    pairs += _draw_rate(resolved, schedule, workdir) if workdir else []
    return rows(pairs)
