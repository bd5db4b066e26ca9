"""Resolving a config to durations in steps, and checking that a run resumes with the config that it was started with."""

import json
import math
import numbers

from keras_vit.runs.durations import resolve_steps

# Keys that may change when a run resumes: its length, what is measured on the way, and what does not change the weights.
MAY_CHANGE = frozenset(
    "total evaluate checkpoint keep schedule micro_batches steps_per_execution jit_compile evals few_shot sweep expected "
    "data.dev_train data.dev_evaluation data.broken_limit data.cache".split()
)
# What version 0.3 wrote for options that are off; it is null now.
_OFF = ("", 0, 0.0, False, [], ())


def _check_numbers(config):
    """Refuses numbers with which nothing would run, or nothing be learned.

    Raises:
        ValueError: naming the key.
    """
    for key in ("batch_size", "micro_batches", "steps_per_execution", "keep"):
        if not isinstance(config[key], numbers.Integral) or config[key] < 1:
            raise ValueError(f"config.{key} must be a whole number above 0, got {config[key]!r}.")
    rate, clip_norm = config.optimizer.learning_rate, config.optimizer.clip_norm
    if not isinstance(rate, numbers.Real) or not rate > 0:
        raise ValueError(f"config.optimizer.learning_rate must be above 0, got {rate!r}.")
    if clip_norm is not None and not clip_norm >= 0:
        raise ValueError(f"config.optimizer.clip_norm must be above 0, or None for no clipping, got {clip_norm!r}.")


def resolve(config, examples):
    """The config as a dict with every duration in steps.

    Args:
        config: a ConfigDict like configs/lib/common.base().
        examples: the number of examples in the training split.

    Raises:
        ValueError: for text that is not a duration, a run without steps, or numbers that cannot be.
    """
    _check_numbers(config)
    resolved = json.loads(config.to_json_best_effort())
    total = resolve_steps(config.total, config.batch_size, examples)
    if total < 1:
        raise ValueError(f'The run has no steps: --config.total="{config.total}". Give at least one.')

    def steps(duration):
        return resolve_steps(duration, config.batch_size, examples, total)

    resolved["total"] = total
    for key in ("evaluate", "checkpoint"):
        resolved[key] = max(1, min(steps(config[key]), total))
    for key in ("warmup", "cooldown"):
        resolved["schedule"][key] = steps(config.schedule[key])
    resolved["optimizer"]["swa"] = max(1, steps(config.optimizer.swa)) if config.optimizer.swa else None
    for options in resolved["evals"].values():
        every = options.get("every")
        options["every"] = total if every is None else _whole_evaluations(steps(every), resolved["evaluate"])
    return resolved


def _whole_evaluations(steps, evaluate):
    """`steps` rounded up to a multiple of the steps between evaluations."""
    return evaluate * max(1, math.ceil(steps / evaluate))


def flat(tree, path=""):
    """Nested dicts as {"a.b": value}."""
    if not isinstance(tree, dict):
        return {path: tree}
    return {k: v for name, part in tree.items() for k, v in flat(part, f"{path}.{name}" if path else name).items()}


def _same(before, now):
    return before == now or (now is None and before in _OFF) or (before is None and now in _OFF)


def check_same_run(rundir, resolved):
    """Refuses to resume a run that was started with another config; its length and schedule may change.

    Raises:
        ValueError: naming what changed.
    """
    path = rundir.path / "config.json"
    if not rundir.checkpoints() or not path.exists():
        return
    before, now = flat(json.loads(path.read_text())), flat(json.loads(json.dumps(resolved)))
    # Keys that only one of them has come from another version of the package, not from another run.
    keys = [key for key in now if key in before and not {key, key.split(".")[0]} & MAY_CHANGE]
    changed = [f"{key} was {before[key]!r}, is {now[key]!r}" for key in keys if not _same(before[key], now[key])]
    if changed:
        raise ValueError(f"{rundir.path} holds a run with another config: {'; '.join(changed)}. Use a new --workdir.")
