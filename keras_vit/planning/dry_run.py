"""--dry_run: explain a config and estimate its cost."""

import math
import os

import keras
import numpy as np
from etils import epath

from keras_vit.inspection import figures
from keras_vit.io.atomic import check_folder, write_bytes
from keras_vit.io.paths import locate
from keras_vit.io.suggest import counted
from keras_vit.models import families
from keras_vit.planning import counting, memory
from keras_vit.planning.flops import training_flops
from keras_vit.planning.model_counts import count
from keras_vit.planning.rows_of_text import rows, short, sparkline
from keras_vit.runs.grid import OWN, parse_grid
from keras_vit.runs.optimizer import make_optimizer, make_schedule
from keras_vit.runs.prepare import check, planned_data


def _trained_layers(model):
    """Names of the trained layers; if more than four, the first two and the last."""
    names = [layer.name for layer in model.layers if layer.trainable_variables]
    return ", ".join(names) if len(names) <= 4 else f"{names[0]}, {names[1]}, ..., {names[-1]}"


def _model_row(config, model, remark):
    # 5 for several crops.
    images = [tuple(t.shape[-3:-1]) for t in keras.tree.flatten(model.input) if len(t.shape) in (4, 5)]
    size = " x ".join(map(str, images[0])) if images else "?"
    tokens = f", {math.prod(model.grid) + model.spec.prefix} tokens" if hasattr(model, "grid") else ""
    trained = memory.size(model.trainable_variables)
    total = model.count_params()
    what = "all trained" if trained == total else f"{trained:,} trained, in {_trained_layers(model)}"
    spec = getattr(model, "spec", None)
    name = config.model.get("variant") or (families.variant_name(spec) if spec is not None else None)
    return f"{f'{name} ' if name else ''}{size} px{tokens}: {total:,} parameters, {what}{remark}"


def _steps_row(resolved, size):
    total, batch, patience = resolved["total"], resolved["batch_size"], resolved["early_stopping"]
    epochs = f"= {counted(total * batch / size, 'epoch')} of {counted(math.ceil(size / batch), 'step')}"
    if batch > size:
        epochs = f"drawn from {size:,}"
    return (
        f"{'at most ' if patience else ''}{counted(total, 'step')} of {counted(batch, 'image')} {epochs};"
        f" evaluation every {counted(resolved['evaluate'], 'step')},"
        f" checkpoint every {counted(resolved['checkpoint'], 'step')}"
        + (f"; ends after {counted(patience, 'step')} without a better evaluation" if patience else "")
        + ("; keeps the best model" if resolved["keep_best"] else "")
    )


def _loss_name(prepared):
    """Name of the loss, given as an object, a function, or a Keras name."""
    if "loss.name" in prepared.task.reads:
        return f"{prepared.resolved['loss']['name']} loss"
    loss = prepared.task.loss(prepared.train)
    return loss if isinstance(loss, str) else getattr(loss, "__name__", type(loss).__name__)


def _optimizer_row(resolved, loss):
    o = resolved["optimizer"]
    final = "" if o["weight_decay_final"] is None else f" to {o['weight_decay_final']:g}"
    options = [
        f"weight decay {o['weight_decay']:g}{final}",
        f"clip {o['clip_norm']:g}" if o["clip_norm"] else "no clipping",
    ]
    options += [f"{name} {o[name]}" for name in ("layer_decay", "head_rate", "ema", "swa", "lookahead") if o[name]]
    options += [loss] + [f"{name} {resolved[name]:g}" for name in ("mixup", "cutmix") if resolved[name]]
    return f"{o['name']}, {', '.join(options)}"


def _rate_rows(resolved, schedule):
    """The learning rate as a text curve and at a few steps."""
    total, s = resolved["total"], resolved["schedule"]

    def at(steps):
        return np.asarray(keras.ops.convert_to_numpy(schedule(np.asarray(steps, "float32"))))

    marks = sorted({0, s["warmup"], total // 4, total // 2, total * 3 // 4, total - 1})
    values = ", ".join(f"{rate:.3g} at step {step:,}" for step, rate in zip(marks, at(marks)))
    return [
        (
            "learning rate",
            f"{sparkline(at(np.linspace(0, total - 1, 60)))} {s['decay']}, {counted(s['warmup'], 'step')} of warm-up",
        ),
        ("", values),
    ]


def copies(optimizer):
    """Number of values that an optimizer keeps per weight."""
    weight = keras.Variable(np.zeros(1000, "float32"), name="kernel")
    optimizer.build([weight])
    return memory.size(optimizer.variables) // 1000


def _memory_rows(model, resolved, examples):
    """Memory of a training step on one device, and a note if this machine has less."""
    slots = copies(make_optimizer(resolved))
    step = memory.step_memory(model, slots)
    if step is None:
        weights, trained = 4 * memory.size(model.variables), 4 * memory.size(model.trainable_variables)
        step = memory.StepMemory(weights, trained, trained * slots, 0, 0)
    named = {"weights": step.weights, "gradients": step.gradients, "optimizer": step.slots}
    parts = ", ".join(f"{name} {short(size, 'B')}" for name, size in named.items())
    if not step.per_image:
        return [("memory", f"{short(step.fixed, 'B')} per device without activations: {parts}")]
    images = resolved["batch_size"] // resolved["micro_batches"]
    text = (
        f"{short(step.total(images), 'B')} for a step on one device: {parts}, activations {images} x"
        f" {short(step.per_image, 'B')}"
    )
    free, is_main = memory.device_memory()
    if free is None:
        return [("memory", text)]
    text += f"; {'this machine' if is_main else 'the device'} has {short(free, 'B')} free"
    sentence, _ = memory.check_fit(step, free, resolved["batch_size"], resolved["micro_batches"], examples=examples)
    return [("memory", text), *([("note", sentence)] if sentence else [])]


def _draw_rate(resolved, schedule, workdir):
    """Writes learning_rate.png if matplotlib is installed; returns a row with its path, or the reason."""
    steps = np.linspace(0, resolved["total"] - 1, 500)
    try:
        png = figures.lines(
            {"": (steps, keras.ops.convert_to_numpy(schedule(steps.astype("float32"))))}, "step", "learning rate"
        )
    except ImportError as error:
        return [("picture", str(error))]
    path = epath.Path(locate(os.fspath(workdir))) / "learning_rate.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, png)
    return [("picture", str(path))]


def _computation_row(model, resolved):
    """Operations per image and in total, if they can be counted."""
    if getattr(model, "spec", None) is None:
        return []
    flops, step = counting.flops(count(model)), training_flops(model)
    total = step * resolved["total"] * resolved["batch_size"]
    frozen = " (nothing below the head trains)" if round(step / flops, 2) == 1 else ""
    text = (
        f"{short(flops, 'FLOP')} per image forward, {step / flops:.2g}x that in training{frozen};"
        f" {short(total, 'FLOP')} in total"
    )
    return [("computation", text)]


def plan(config, datasets, workdir=None, examples=None, classes=None, sweep=None, runs=1, data_dir=None):
    """A config's plan as text; writes the learning-rate curve to workdir/learning_rate.png.

    Args:
        config: ConfigDict like configs/lib/common.base().
        datasets: {name: (classes, {split: examples})} of well-known datasets.
        workdir: folder for the picture, or None for no picture.
        examples, classes: size of a dataset that is neither well known nor on this machine.
        sweep, runs: values of the flags --sweep and --runs.
        data_dir: base of relative paths.

    Raises:
        OSError: the picture cannot be written to `workdir`.
        ValueError: an error that training would raise, a dataset of unknown size, or an invalid sweep.
    """
    if workdir:
        check_folder(locate(os.fspath(workdir)))
    train, held_out = planned_data(config.data, datasets, examples, classes, data_dir)
    prepared = check(config).on(train, held_out)
    notes = list(prepared.notes())
    prepared, remark = prepared.without_checkpoint()
    model, resolved = prepared.model_without_values(), prepared.resolved
    prepared.check_images(model)
    schedule = make_schedule(resolved)
    data, evaluated = config.data, f" ({held_out.size:,})" if held_out else ""
    classes_text = f", {counted(len(train.class_names), 'class')}" if train.class_names else ""
    trained = f"{counted(train.size, 'example')}{classes_text}"
    pairs = [
        ("model", _model_row(config, model, remark)),
        ("data", f"{data.source} {data.train} ({trained}), evaluated on {data.evaluation}{evaluated}"),
        ("training", data.train_preprocess),
        ("evaluation", data.eval_preprocess),
        ("steps", _steps_row(resolved, train.size)),
        ("optimizer", _optimizer_row(resolved, _loss_name(prepared))),
        *_rate_rows(resolved, schedule),
        *_computation_row(model, resolved),
        *_memory_rows(model, resolved, train.size),
        *((name, f"every {counted(options['every'], 'step')}") for name, options in resolved["evals"].items()),
    ]
    text = config.sweep if sweep in (None, OWN) else sweep
    if text:
        grid = parse_grid(text, config)
        pairs.append(
            ("sweep", f"{counted(len(grid.points()), 'point')}: {text}" + ("" if sweep else " (with --sweep)"))
        )
    pairs += [("runs", f"{runs} seeds")] if runs > 1 else []
    pairs += [("expected", config.expected)] if config.expected else []
    pairs += [("note", sentence) for sentence in notes]
    pairs += _draw_rate(resolved, schedule, workdir) if workdir else []
    return rows(pairs)
