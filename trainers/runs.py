"""Several runs after one another: one that is not run twice, and --runs=N, the same with N seeds.

`run` is everywhere a function (config, workdir) -> measures; a finished run leaves finished.json with its config and measures, and is not
run again as long as the config is the same. Between two runs Keras forgets the first, so that memory does not grow.
"""

import json
import math
import statistics

import keras
from absl import logging
from etils import epath

from keras_vit.inspection import figures
from keras_vit.training.files import write_bytes


def write_json(path, content, layout):
    """Writes JSON, in the chief process only."""
    if layout.chief:
        write_bytes(path, (json.dumps(content, indent=2, default=str) + "\n").encode())


def write_picture(path, draw, layout):
    """Writes what `draw` gives, PNG bytes; without matplotlib a line of the log says what is missing."""
    if not layout.chief:
        return
    try:
        write_bytes(path, draw())
    except ImportError as error:
        logging.warning("No %s: %s", path, error)


def numbers(measures):
    """The measures that are single numbers."""
    return {name: value for name, value in measures.items() if isinstance(value, (int, float))}


def run_once(config, workdir, run, layout):
    """The measures of `run`, or, if the very same config has finished in `workdir`, what it measured then."""
    path = epath.Path(workdir) / "finished.json"
    now = json.loads(config.to_json_best_effort())
    before = json.loads(path.read_text()) if path.exists() else {}
    # All processes go the same way, whatever each sees of the directory.
    if not layout.any(before.get("config") != now):
        logging.info("%s is finished already.", workdir)
        return before["measures"]
    keras.backend.clear_session()
    measures = numbers(run(config, workdir))
    write_json(path, {"measures": measures, "config": now}, layout)
    return measures


def _curves(folder, seeds):
    """{"seed 0": (steps, accuracies)} from the runs' metrics.jsonl."""
    found = {}
    for seed in seeds:
        path = folder / f"seed_{seed}" / "metrics.jsonl"
        records = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        points = [(r["step"], r["val_accuracy"]) for r in records if "val_accuracy" in r]
        if points:
            found[f"seed {seed}"] = tuple(zip(*points))
    return found


def mean_and_deviation(rows):
    """Of every measure that all rows have: {"top1": mean, "top1_std": sample standard deviation...}; rows without numbers drop out."""
    found = {}
    for name in rows[0]:
        values = [row[name] for row in rows if name in row and math.isfinite(row[name])]
        if len(values) == len(rows):
            found[name] = statistics.fmean(values)
            if name != "examples":
                found[f"{name}_std"] = statistics.stdev(values) if len(values) > 1 else 0.0
    return found


def run_seeds(config, workdir, run, layout, count):
    """Runs `config` with seeds config.seed to config.seed + count - 1, in workdir/seed_N; returns mean and standard deviation.

    Also writes runs.json and, where matplotlib is, runs.png with the curves, and prints a line.

    Raises:
        ValueError: if count is less than 1.
    """
    if count < 1:
        raise ValueError(f"--runs must be 1 or more, got {count}.")
    if count == 1:
        return run_once(config, workdir, run, layout)
    folder, rows = epath.Path(workdir), {}
    for seed in range(config.seed, config.seed + count):
        one = config.copy_and_resolve_references()
        one.seed = seed
        rows[seed] = run_once(one, folder / f"seed_{seed}", run, layout)
    found = mean_and_deviation(list(rows.values()))
    write_json(folder / "runs.json", {"mean": found, "seeds": rows}, layout)
    curves = _curves(folder, rows) if layout.chief else {}
    if curves:
        write_picture(folder / "runs.png", lambda: figures.lines(curves, "step", "accuracy"), layout)
    if layout.chief:
        each = ", ".join(f"{100 * row['top1']:.2f}" for row in rows.values())
        print(f"{workdir}: top-1 {100 * found['top1']:.2f} +- {100 * found['top1_std']:.2f}% over {count} seeds ({each})")
    return found
