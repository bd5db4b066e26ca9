"""Config checks, durations in steps, and whether a run resumes with its original config."""

import itertools
import json
import math
import numbers
import re

import keras
from absl import logging

from keras_vit.data.source_names import with_kind
from keras_vit.fit.mixing import check_pairs
from keras_vit.io.durations import in_examples, is_nothing, resolve_steps
from keras_vit.io.json_files import read_json
from keras_vit.io.suggest import check_known, counted, did_you_mean
from keras_vit.models import families
from keras_vit.models.fields import plain
from keras_vit.runs.config_keys import OPEN, is_packaged_task
from keras_vit.runs.optimizer import check_options, unread
from keras_vit.version import __version__

# Keys that may change on resuming: the run's length, its measurements, and what leaves the weights unchanged, such as
# micro_batches without batch normalisation.
MAY_CHANGE = frozenset(
    "total evaluate checkpoint keep schedule micro_batches steps_per_execution jit_compile evals few_shot sweep picture"
    " sweep_final expected keep_best early_stopping data.dev_train data.dev_evaluation data.broken_limit"
    " data.cache".split()
)
QUANTIZATIONS = ("int8",)
# What version 0.3, which had no task options, wrote for disabled options.
_OFF = ("", 0, 0.0, False, [], ())


# Keys of config.model besides the fields of a spec.
_MODEL_ARGUMENTS = ("variant", "image_size", "channels", "remat")
# The spec in config.json: the model's, that of the part that learns in a composite model, or of a dense one's encoder.
_SPEC = re.compile(
    r"model_spec\.(?:(?:(?:student|encoder)\.config\.)?variant\.|encoder\.(?!config|class|module|registered))"
)
# Keys that a run adds to its config.json.
_ADDED = frozenset(("model_spec", "versions", "strategy", "layout", "training_examples", "files"))
# The class names of the model, or of the part that learns.
_CLASS_NAMES = re.compile(r"model_spec\.(?:(?:student|encoder)\.config\.)?class_names")


def flat(tree, path=""):
    """Nested dicts as {"a.b": value}."""
    if not isinstance(tree, dict):
        return {path: tree}
    return {k: v for name, part in tree.items() for k, v in flat(part, f"{path}.{name}" if path else name).items()}


def _check_model_keys(config):
    """Refuses config.model keys of another section and invalid spec values; building refuses other unknown keys."""
    of_specs = families.fields()
    known = {*_MODEL_ARGUMENTS, *of_specs}
    for name, value in config.model.items():
        if name in of_specs and value is not None:
            _named(f"model.{name}", plain, of_specs[name], value)
        elsewhere = [
            key for key in flat(config.to_dict()) if key.split(".")[-1] == name and not key.startswith("model.")
        ]
        if name not in known and elsewhere:
            raise ValueError(f'--config.model.{name}: a model has no "{name}". Write --config.{elsewhere[0]}.')


def _named(key, function, *arguments):
    """function(*arguments), its ValueError prefixed with the config's key."""
    try:
        return function(*arguments)
    except ValueError as error:
        raise ValueError(f"--config.{key}: {error}") from None


def _durations(config):
    """{key: duration} of a config's enabled durations, except those of config.objective, which belong to the task."""
    found = {key: config[key] for key in ("total", "evaluate", "checkpoint")}
    found |= {f"schedule.{key}": config.schedule[key] for key in ("warmup", "cooldown")}
    found["early_stopping"] = config.early_stopping
    found["optimizer.swa"] = config.optimizer.swa or None
    for name, options in config.evals.items():
        found[f"evals.{name}.every"] = options.get("every") if hasattr(options, "items") else None
    return {key: duration for key, duration in found.items() if duration is not None}


def durations_in_examples(config):
    """{key: duration}, independent of batch_size: steps become text in examples. ValueError names an invalid key."""
    return {key: _named(key, in_examples, duration, config.batch_size) for key, duration in _durations(config).items()}


def _check_durations(config):
    """Refuses malformed durations, and zero where a step is needed."""
    for key, duration in _durations(config).items():
        nothing = _named(key, is_nothing, duration)
        if nothing and not key.startswith(("schedule.", "optimizer.")):
            what = "The run has no steps: " if key == "total" else ""
            raise ValueError(f'{what}--config.{key}="{duration}". Set at least one step.')


def _check_quantization(config):
    """Refuses an unknown config.quantization, one without a trained model, and kernels that cannot adapt to it."""
    if not config.get("quantization"):
        return
    key = f"--config.quantization={config.quantization}"
    check_known(config.quantization, "config.quantization=", QUANTIZATIONS, ", or None")
    if not config.init:
        raise ValueError(f"{key} fine-tunes a trained model: set --config.init.")
    frozen = [name for name in ("linear_probe", "freeze") if config[name]]
    if frozen:
        raise ValueError(f"{key} trains all kernels, so that they adapt to rounding: leave --config.{frozen[0]} out.")


def check_config(config, replicas=1):
    """Refuses configs that are wrong for any data, before the data is opened.

    Args:
        config: a ConfigDict like configs/lib/common.base().
        replicas: int. Devices that share a batch.

    Raises:
        ValueError: naming the key.
    """
    for key in ("batch_size", "micro_batches", "steps_per_execution", "keep"):
        if not isinstance(config[key], numbers.Integral) or config[key] < 1:
            raise ValueError(f"--config.{key}={config[key]}: expected an integer of 1 or more.")
    if not isinstance(config.keep_best, bool):
        raise ValueError(f"--config.keep_best={config.keep_best}: expected True or False.")
    rate, clip_norm = config.optimizer.learning_rate, config.optimizer.clip_norm
    if not isinstance(rate, numbers.Real) or not rate > 0:
        raise ValueError(f"--config.optimizer.learning_rate={rate}: expected a number above 0.")
    if clip_norm is not None and not clip_norm >= 0:
        raise ValueError(
            f"--config.optimizer.clip_norm={clip_norm}: expected a number above 0, or None for no clipping."
        )
    check_options(config.optimizer)
    if config.get("whiten") is not None and (config.whiten < 1 or config.init):
        raise ValueError(
            f"--config.whiten={config.whiten}: expected a number of training images for a model with random weights, or"
            " None" + (f"; the first layer of {config.init} is trained." if config.init else ".")
        )
    _check_quantization(config)
    share = config.batch_size // replicas
    if share % config.micro_batches:
        raise ValueError(
            f"--config.micro_batches={config.micro_batches}: a device's {share} images per batch cannot be split into"
            f" equal parts. Choose a divisor of {share}."
        )
    # JAX mixes the whole batch.
    mixed = (config.batch_size, 1) if keras.backend.backend() == "jax" else (share, replicas)
    for key in ("mixup", "cutmix"):
        if config[key]:
            _named(key, check_pairs, *mixed)
    _check_durations(config)
    if is_packaged_task(config.task):
        _check_model_keys(config)


def check_keys(config, base):
    """Refuses keys of no packaged task: a config file can set any, and nothing would read them.

    Args:
        config: a ConfigDict. Configs of custom tasks are not checked.
        base: the base of every config, configs/lib/common.base().

    Raises:
        ValueError: with the same key elsewhere, or the nearest one.
    """
    if not is_packaged_task(config.task):
        return
    valid = flat(base.to_dict())
    for key in flat(config.to_dict()):
        if key in valid or key.split(".")[0] in OPEN:  # open sections check their own keys
            continue
        places = [other for other in valid if other.split(".")[-1] == key.split(".")[-1]]
        hint = (
            f" Did you mean config.{places[0]}?"
            if places
            else did_you_mean(f"config.{key}", [f"config.{name}" for name in valid])
        )
        raise ValueError(f"Unknown config key config.{key}.{hint}")


def resolve(config, examples):
    """The config as a dict with every duration in steps.

    Args:
        config: a ConfigDict like configs/lib/common.base().
        examples: int. Size of the training split.

    Raises:
        ValueError: for an invalid duration, a run without steps, or a warm-up and cool-down longer than the run.
    """
    resolved = json.loads(config.to_json_best_effort())
    total = _named("total", resolve_steps, config.total, config.batch_size, examples)
    if total < 1:
        raise ValueError(f'The run has no steps: --config.total="{config.total}". Set at least one.')

    def steps(key, duration):
        return _named(key, resolve_steps, duration, config.batch_size, examples, total)

    resolved["total"] = total
    for key in ("evaluate", "checkpoint"):
        resolved[key] = max(1, min(steps(key, config[key]), total))
    for key in ("warmup", "cooldown"):
        resolved["schedule"][key] = steps(f"schedule.{key}", config.schedule[key])
    stopping = config.early_stopping
    resolved["early_stopping"] = None if stopping is None else max(1, steps("early_stopping", stopping))
    warmup, cooldown = resolved["schedule"]["warmup"], resolved["schedule"]["cooldown"]
    if warmup + cooldown > total:
        raise ValueError(
            f"The warm-up and cool-down do not fit into the run: --config.schedule.warmup is"
            f" {counted(warmup, 'step')}, cooldown {cooldown:,}, --config.total {total:,}. Shorten them, for example"
            " --config.schedule.warmup=5%."
        )
    resolved["optimizer"]["swa"] = (
        max(1, steps("optimizer.swa", config.optimizer.swa)) if config.optimizer.swa else None
    )
    for name, options in resolved["evals"].items():
        every = options.get("every")
        options["every"] = (
            total if every is None else _whole_evaluations(steps(f"evals.{name}.every", every), resolved["evaluate"])
        )
    return resolved


def odd_sizes(config, resolved, examples):
    """Warnings about valid but surprising settings, one sentence each."""
    total, batch_size = resolved["total"], config.batch_size
    if resolve_steps(config.evaluate, batch_size, examples, total) > total:
        yield (
            f'--config.evaluate="{config.evaluate}" is longer than the run of {counted(total, "step")}: it is evaluated'
            " at its end only."
        )
    if batch_size > examples:
        yield (
            f"--batch_size={batch_size} is more than the {counted(examples, 'training example')}: every batch repeats"
            f" some of them. --batch_size={examples} or less repeats none."
        )
    ema = config.optimizer.ema
    if ema and ema**total > 0.5:
        yield (
            f"--config.optimizer.ema={ema} is slow for {counted(total, 'step')}: the averaged weights, which are"
            f" evaluated and saved, are still {ema**total:.0%} those of the first step. Choose a smaller one, such as"
            f" {max(0.5, 1 - 5 / total):.4g}."
        )


def _whole_evaluations(steps, evaluate):
    """`steps` rounded up to a multiple of `evaluate`, the steps between evaluations."""
    return evaluate * max(1, math.ceil(steps / evaluate))


def _same(before, now):
    """Whether two values of a key mean the same: version 0.3 wrote other values for disabled options, null today."""
    return before == now or (now is None and before in _OFF) or (before is None and now in _OFF)


def _version(text):
    """A version as a tuple of numbers: "0.10.1.dev2" -> (0, 10, 1)."""
    return tuple(int(number) for number in re.match(r"[\d.]*", str(text))[0].strip(".").split(".") if number)


def _changes(before, now):
    """{key: (before, now)} of forbidden changes on resuming; both configs are flat."""
    # A run writes all keys and options, so a key in only one of them comes from another version of the package.
    keys = [key for key in now if key in before and not {key, key.split(".")[0]} & (MAY_CHANGE | _ADDED)]
    # config.model may set a field in only one of them; the spec has every field, defaults included.
    specs = [key for key in now if _SPEC.match(key) and key in before]
    # The variant's name only stands for the spec's sizes.
    keys = [key for key in keys if key != "model.variant" or not specs] + specs
    unused = [unread(tree.get("optimizer.name"), tree.get("optimizer.lookahead")) for tree in (before, now)]
    keys = [key for key in keys if key not in {f"optimizer.{name}" for name in set.intersection(*unused)}]
    same = {
        key: before[key] == now[key] if key.startswith("objective.") else _same(before[key], now[key]) for key in keys
    }
    return {_SPEC.sub("model.", key): (before[key], now[key]) for key in keys if not same[key]}


def _data_changes(before, now):
    """Sentences about data that changed since the run began; configs are flat. Version 0.3 did not record examples."""
    for key in filter(_CLASS_NAMES.fullmatch, now):
        names = itertools.zip_longest(before.get(key) or (), now[key] or ())
        other = next(((i, a, b) for i, (a, b) in enumerate(names) if a != b), None)
        if before.get(key) and now[key] and other:
            yield "class {} was {!r}, is {!r}".format(*other)
    examples = [content.get("training_examples") for content in (before, now)]
    if None not in examples and examples[0] != examples[1]:
        yield "there were {:,} training examples, and are {:,}".format(*examples)
        return
    for part in ("training", "evaluation"):
        files = [content.get(f"files.{part}") for content in (before, now)]
        if None not in files and files[0] != files[1]:
            yield f"the {part} images have other names or another order"


def _is_stratified(config):
    """Whether the run's data, of a flat config, is of a kind with another order since version 0.4."""
    kind, _, text = with_kind(config["data.source"]).partition(":")
    return kind in ("folder", "csv", "jsonl") and "labels=none" not in text


def check_same_run(rundir, resolved, batch_statistics=False):
    """Refuses to resume with another config or other data; the length and schedule may change.

    Args:
        rundir: the RunDirectory.
        resolved: the config as the run would write it.
        batch_statistics: bool. Whether batch normalisation is trained: its statistics depend on micro_batches.

    Raises:
        ValueError: with the changes, or for a config.json that is broken or has unknown options.
    """
    path = rundir.path / "config.json"
    if not rundir.checkpoints() or not path.exists():
        return
    content = read_json(path, "Restore it from a backup, or remove it to resume without comparing the configs.")
    before, now = flat(families.named_now(content)), flat(json.loads(json.dumps(resolved, default=str)))
    changed = [f"{key} was {b!r}, is {n!r}" for key, (b, n) in _changes(before, now).items()]
    parts = [content.get("micro_batches") for content in (before, now)]
    if batch_statistics and None not in parts and parts[0] != parts[1]:
        changed.append(
            "micro_batches was {!r}, is {!r}, and the model's batch normalisation sees one of them at a time".format(
                *parts
            )
        )
    if changed:
        raise ValueError(
            f"{rundir.path} contains a run with another config: {'; '.join(changed)}. Use a new --workdir."
        )
    other = list(_data_changes(before, now))
    if other:
        raise ValueError(
            f"{rundir.path} contains a run on other data: {'; '.join(other)}. Use the data it began with, or"
            " a new --workdir."
        )
    theirs = content.get("versions", {}).get("keras_vit", "0")
    if before.get("files.training", "") == "" and now.get("files.training") and _is_stratified(now):
        raise ValueError(
            f"{rundir.path} was started by a version of keras_vit ({theirs}) that split folders and tables in another"
            " way: training images would become evaluation images. Resume it with that version, or use a new --workdir."
        )
    covered = MAY_CHANGE | _ADDED | {"model"}
    unknown = [k for k in before if k not in now and not {k, k.split(".")[0]} & covered and not _same(before[k], None)]
    if unknown and _version(theirs) > _version(__version__):
        raise ValueError(
            f"{path} was written by keras_vit {theirs}, and this is {__version__}, without its options"
            f" {', '.join(unknown)}. Resume with keras_vit {theirs}, or use a new --workdir."
        )
    if unknown:
        logging.warning("%s has options that are unknown to this version and ignored: %s.", path, ", ".join(unknown))
