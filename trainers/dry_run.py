"""--dry_run: what a config means, resolved, and what it costs; without data, without a checkpoint, without weights in memory."""

import contextlib
import dataclasses
import json
import math
import os

import keras
import numpy as np
import tensorflow as tf
from absl import logging
from etils import epath

from keras_vit.data import evaluation_batches, training_batches
from keras_vit.data.source import RandomAccess
from keras_vit.data.splits import split_name, split_range
from keras_vit.inspection import figures
from keras_vit.training.files import write_bytes

from . import flags, session
from .assemble import make_optimizer, make_schedule
from .flops import forward_flops
from .plan_text import rows, short, sparkline
from .sweep import OWN, parse_grid


@dataclasses.dataclass(frozen=True)
class Planned:
    """What a plan knows of a split: its number of examples and its classes."""

    size: int
    class_names: tuple


def split_size(name, split, splits):
    """Examples of "train[:98%]+validation" where `splits` is {split: examples}.

    Raises:
        ValueError: for a split that is not there.
    """
    total = 0
    for part in split.split("+"):
        whole = split_name(part.strip())
        if whole not in splits:
            raise ValueError(f'"{name}" has no split "{whole}"; its splits: {", ".join(splits)}.')
        start, stop = split_range(part.strip(), splits[whole])
        total += stop - start
    return total


def planned_data(data, examples=None, classes=None):
    """(training split, evaluation split or None) of a config's data, as Planned: from the table of well-known datasets, or as told.

    Args:
        data: the config's.
        examples, classes: of the training split; where the dataset is known they come before what is known.

    Raises:
        ValueError: for a dataset that is not in the table, without examples and classes.
    """
    table = flags.packaged("lib.datasets").DATASETS
    name = data.source.partition("?")[0].partition(":")[0]
    known = table.get(name)
    if known is None and not (examples and classes):
        raise ValueError(
            f'How large "{data.source}" is cannot be known without its data: give --examples=N, of the training split, and --classes=N. '
            f"Known: {', '.join(table)}."
        )
    names = tuple(map(str, range(classes or known[0])))
    train = Planned(examples or split_size(name, data.train, known[1]), names)
    held_out = Planned(split_size(name, data.evaluation, known[1]), names) if known else None
    return train, held_out


@contextlib.contextmanager
def without_values():
    """A context in which models are made whose variables never get values."""
    with keras.StatelessScope():
        yield
        keras.backend.clear_session()  # with it goes the list of variables that the scope's end would give values


def _as_initialised(config):
    """(a copy of the config that starts from no checkpoint, a remark): with the model of config.init where it is a run directory."""
    copy = config.copy_and_resolve_references()
    copy.init = ""
    if not config.init:
        return copy, ""
    path = os.path.join(os.path.expanduser(config.init), "config.json")
    if not os.path.exists(path):
        return copy, f"; {config.init} may say otherwise"
    with open(path) as file:
        spec = json.load(file)["model_spec"]["variant"]
    copy.model.variant = "R50x1" if "units" in spec else "Ti/16"  # every field of it is replaced
    for name, value in spec.items():
        if copy.model[name] is None and not (name == "pre_logits" and config.head == "reset"):
            copy.model[name] = value
    return copy, f", as {config.init}"


def check_images(config, model):
    """Refuses preprocessing whose images are not the model's; traces it, and reads nothing.

    Raises:
        ValueError: naming both shapes, or as the preprocessing says.
    """
    example = tf.zeros((8, 8, 1), tf.uint8) if config.data.source == "digits" else tf.constant("")
    source = RandomAccess("plan", ("0",), np.zeros(1, "int64"), lambda i: example)
    data, expected = config.data, tuple(model.input_shape[1:])
    for text, make in ((data.train_preprocess, training_batches), (data.eval_preprocess, evaluation_batches)):
        shape = tuple(make(source, text, 1).element_spec[0].shape[1:])
        if shape != expected:
            raise ValueError(f'The preprocessing "{text}" gives images of {shape}, the model takes {expected}.')


def _size(variables):
    return sum(math.prod(v.shape) for v in variables)


def _model_row(config, model, remark):
    size, spec = model.image_size, model.spec
    tokens = "" if hasattr(spec, "units") else f", {math.prod(model.grid) + spec.prefix} tokens"
    trained = _size(model.trainable_variables)
    total = model.count_params()
    what = "all trained" if trained == total else f"{trained:,} trained"
    name = "" if remark.startswith(",") else f"{config.model.variant} "
    return f"{name}{size[0]} x {size[1]} px{tokens}: {total:,} parameters, {what}{remark}"


def _steps_row(plain, size):
    total, batch = plain["total"], plain["batch_size"]
    return (
        f"{total:,} of {batch:,} images = {total * batch / size:.4g} epochs of {math.ceil(size / batch):,} steps; evaluation every "
        f"{plain['evaluate']:,}, checkpoint every {plain['checkpoint']:,}"
    )


def _optimizer_row(plain):
    o, loss = plain["optimizer"], plain["loss"]
    options = [f"weight decay {o['weight_decay']:g}", f"clip {o['clip_norm']:g}" if o["clip_norm"] else "no clipping"]
    options += [f"{name} {o[name]}" for name in ("layer_decay", "ema", "swa", "lookahead") if o[name]]
    options += [f"{loss['name']} loss"] + [f"{name} {plain[name]:g}" for name in ("mixup", "cutmix") if plain[name]]
    return f"{o['name']}, {', '.join(options)}"


def _rate_rows(plain, schedule):
    """The learning rate as a curve of text and at a few steps."""
    total, s = plain["total"], plain["schedule"]
    at = lambda steps: np.asarray(keras.ops.convert_to_numpy(schedule(np.asarray(steps, "float32"))))  # noqa: E731
    marks = sorted({0, s["warmup"], total // 4, total // 2, total * 3 // 4, total - 1})
    values = ", ".join(f"{rate:.3g} at {step:,}" for step, rate in zip(marks, at(marks)))
    return [
        ("learning rate", f"{sparkline(at(np.linspace(0, total - 1, 60)))} {s['decay']}, {s['warmup']:,} steps of warm-up"),
        ("", values),
    ]


def copies(optimizer):
    """How many numbers an optimizer keeps for one weight."""
    weight = keras.Variable(np.zeros(1000, "float32"), name="kernel")
    optimizer.build([weight])
    return _size(optimizer.variables) // 1000


def _memory_row(model, optimizer):
    """Of the state on one device; every variable of it is float32."""
    weights, trained = 4 * _size(model.variables), 4 * _size(model.trainable_variables)
    slots = trained * copies(optimizer)
    parts = f"weights {short(weights, 'B')}, gradients {short(trained, 'B')}, optimizer {short(slots, 'B')}"
    return f"{short(weights + trained + slots, 'B')} a device without activations: {parts}"


def _draw_rate(plain, schedule, workdir):
    """Writes learning_rate.png where matplotlib is there; returns the row that says so."""
    steps = np.linspace(0, plain["total"] - 1, 500)
    try:
        png = figures.lines({"": (steps, keras.ops.convert_to_numpy(schedule(steps.astype("float32"))))}, "step", "learning rate")
    except ImportError as error:
        return [("picture", str(error))]
    path = epath.Path(workdir) / "learning_rate.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, png)
    return [("picture", str(path))]


def resolved(config, build, examples=None, classes=None):
    """(training split, evaluation split, plain config, the compiled-nothing model without values, a remark on it).

    Raises:
        ValueError: as training would, or for a dataset whose size is not known.
    """
    train, held_out = planned_data(config.data, examples, classes)
    plain = session.resolve(config, train)
    copy, remark = _as_initialised(config)
    with flags.quiet(logging.ERROR), without_values():  # that there is no config.init is known
        model = build(copy, train)
    return train, held_out, plain, model, remark


def plan(config, build, workdir=None, examples=None, classes=None, sweep=None, runs=1):
    """The plan of a config as text; the curve of the learning rate goes to workdir/learning_rate.png.

    Args:
        config: a ConfigDict like configs/lib/common.base().
        build: (config, source) -> the model.
        workdir: for the picture, or None.
        examples, classes: of a dataset that is not well known.
        sweep, runs: the flags' values; how many runs there would be.

    Raises:
        ValueError: as `resolved`, for preprocessing that does not give the model's images, and for a wrong sweep.
    """
    train, held_out, plain, model, remark = resolved(config, build, examples, classes)
    check_images(config, model)
    schedule = make_schedule(plain)
    flops = forward_flops(model.spec, model.image_size[0], model.channels)
    data, evaluated = config.data, f" ({held_out.size:,})" if held_out else ""
    trained = f"{train.size:,} examples, {len(train.class_names):,} classes"
    in_all = 3 * flops * plain["total"] * plain["batch_size"]
    pairs = [
        ("model", _model_row(config, model, remark)),
        ("data", f"{data.source} {data.train} ({trained}), evaluated on {data.evaluation}{evaluated}"),
        ("training", data.train_preprocess),
        ("evaluation", data.eval_preprocess),
        ("steps", _steps_row(plain, train.size)),
        ("optimizer", _optimizer_row(plain)),
        *_rate_rows(plain, schedule),
        ("computation", f"{short(flops, 'FLOP')} an image forward; {short(in_all, 'FLOP')} in all, three times that"),
        ("memory", _memory_row(model, make_optimizer(plain))),
    ]
    text = config.sweep if sweep in (None, OWN) else sweep
    if text:
        grid = parse_grid(text, config)
        pairs.append(("sweep", f"{len(grid.points())} points: {text}" + ("" if sweep else " (with --sweep)")))
    pairs += [("runs", f"{runs} seeds")] if runs > 1 else []
    pairs += [("expected", config.expected)] if config.expected else []
    pairs += _draw_rate(plain, schedule, workdir) if workdir else []
    return rows(pairs)
