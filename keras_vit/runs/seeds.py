"""Runs several seeds of a config in one process, without repeating finished runs.

`run` is always a function (config, workdir) -> measures. A finished run leaves finished.json with its config and
measures, and repeats only if the config changes. Continuing a run removes the file first. Keras' state is cleared
between runs, so that memory does not grow.
"""

import json
import math
import os
import statistics
from collections.abc import Callable
from typing import Any

import keras
from absl import logging
from etils import epath
from ml_collections import ConfigDict

from keras_vit.distribution import Strategy
from keras_vit.inspection import figures
from keras_vit.io.atomic import check_folder, write_bytes
from keras_vit.io.json_files import json_text, read_json
from keras_vit.io.paths import locate
from keras_vit.runs.loop.faults import lost_worker_named
from keras_vit.runs.picture_files import write_picture
from keras_vit.runs.saving.rundir import FINISHED, RunDirectory
from keras_vit.tasks import Score

_EXACT = ("examples", "training_examples", "steps", "forward_flops", "training_flops")  # the same for all seeds


def write_json(path, content, strategy):
    """Writes JSON, in the chief process only."""
    if strategy.chief:
        write_bytes(path, (json_text(content) + "\n").encode())


def numbers(measures):
    """The measures that are single numbers."""
    return {name: value for name, value in measures.items() if isinstance(value, (int, float))}


def _finished(path):
    """The content of finished.json; {} if it is missing or broken, when the run's checkpoints decide."""
    try:
        content = read_json(path) if path.exists() else {}
    except ValueError as error:
        logging.warning("%s The run is finished again.", error)
        return {}
    return content if {"config", "measures"} <= content.keys() else {}


def run_once(config, workdir, run, strategy):
    """The measures of `run`, or those in `workdir` if the config has finished there; LostWorker if another is lost."""
    path = epath.Path(workdir) / FINISHED
    now = json.loads(config.to_json_best_effort())
    before = _finished(path)
    with lost_worker_named(workdir, strategy):
        # Processes may see different files, but must take the same branch.
        if not strategy.any(before.get("config") != now):
            logging.info("%s has already finished.", workdir)
            return before["measures"]
        keras.backend.clear_session()
        measures = numbers(run(config, workdir))
    write_json(path, {"measures": measures, "config": now}, strategy)
    return measures


def _curves(folder, seeds, score):
    """{"seed 0": (steps, values)} of the score's curve in the runs' metrics.jsonl, in display units."""
    curves = {}
    for seed in seeds:
        records = RunDirectory(folder / f"seed_{seed}").metrics()
        points = [(record["step"], score.scaled(record[score.curve])) for record in records if score.curve in record]
        if points:
            curves[f"seed {seed}"] = tuple(zip(*points))
    return curves


def mean_and_deviation(runs):
    """{"top1": mean, "top1_std": sample standard deviation...} of the measures that are finite in all runs."""
    result = {}
    for name in runs[0]:
        values = [measures[name] for measures in runs if name in measures and math.isfinite(measures[name])]
        if len(values) == len(runs):
            result[name] = statistics.fmean(values)
            if name not in _EXACT:
                result[f"{name}_std"] = statistics.stdev(values) if len(values) > 1 else 0.0
    return result


def run_seeds(
    config: ConfigDict,
    workdir: str | os.PathLike,
    run: Callable[[ConfigDict, Any], dict[str, Any]],
    strategy: Strategy,
    score: Score,
    count: int,
) -> dict[str, Any]:
    """Runs `config` with seeds config.seed to config.seed + count - 1 in workdir/seed_N; returns means and deviations.

    Also writes runs.json and, with matplotlib, runs.png with the curves, and prints a line.

    Args:
        config: a ConfigDict.
        workdir: a directory per seed; with one seed the run directory itself.
        run: (config, workdir) -> measures.
        strategy: a keras_vit.strategy.
        score: the task's Score.
        count: int. Number of seeds.

    Raises:
        ValueError: if count is less than 1.
        OSError: if workdir cannot be written to.
    """
    if count < 1:
        raise ValueError(f"--runs must be 1 or more, got {count}.")
    workdir = locate(os.fspath(workdir))
    check_folder(workdir)
    if count == 1:
        return run_once(config, workdir, run, strategy)
    folder, runs = epath.Path(workdir), {}
    for seed in range(config.seed, config.seed + count):
        seeded = config.copy_and_resolve_references()
        seeded.seed = seed
        runs[seed] = run_once(seeded, folder / f"seed_{seed}", run, strategy)
    means = mean_and_deviation(list(runs.values()))
    write_json(folder / "runs.json", {"mean": means, "seeds": runs}, strategy)
    curves = _curves(folder, runs, score) if strategy.chief else {}
    if curves:
        write_picture(folder / "runs.png", lambda: figures.lines(curves, "step", score.label), strategy)
    if strategy.chief:
        each = ", ".join(score.text(measures) for measures in runs.values())
        print(f"{workdir}: {score.title} {score.text(means)}{score.unit} over {count} seeds ({each})")
    return means
