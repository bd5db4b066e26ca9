"""report.html of a run or an evaluation."""

import collections
import datetime
import json
import os
import platform
import sys

import keras
import numpy as np
from absl import logging
from etils import epath

from keras_vit.data import evaluation_batches
from keras_vit.data.sources.selection import subset
from keras_vit.evaluation.registry import Evaluator, find_evaluator
from keras_vit.inspection import html_report
from keras_vit.io.atomic import write_bytes
from keras_vit.io.paths import paths_in
from keras_vit.runs.config import flat
from keras_vit.version import __version__

SAMPLES = 500  # candidates for the report's examples, unless the task wants fewer


def _counted(batch):
    """(x, y) of a batch's examples with positive weights, as arrays."""
    x, y, weights = batch
    return keras.tree.map_structure(lambda array: array[weights > 0], (x, y))


def _samples(setting, count):
    """(x, y) of readable examples, as arrays: `count` spread over the source, or with None the first ones."""
    source, most = setting.source, SAMPLES if count is None else count
    if count is not None and count < source.size:
        source = subset(source, np.unique(np.linspace(0, source.size - 1, count).astype(int)))
    batches = evaluation_batches(
        source, setting.preprocess, setting.batch_size, errors=setting.errors, select=setting.select
    )
    first = batches.take(-(-most // setting.batch_size)).as_numpy_iterator()
    return keras.tree.map_structure(lambda *parts: np.concatenate(parts)[:most], *map(_counted, first))


def command(arguments) -> list[str]:
    """The words of this process's command, given sys.orig_argv; [] in a notebook or at Python's prompt."""
    program, *rest = arguments
    if not rest or "ipykernel" in sys.modules:
        return []
    if not rest[0].startswith("-") and not rest[0].endswith(".py"):  # an installed script
        program, *rest = rest
    return [os.path.basename(program), *rest]


def _accelerators():
    """The names of this process's accelerators."""
    if keras.backend.backend() == "jax":
        import jax

        return [device.device_kind for device in jax.devices() if device.platform != "cpu"]
    import tensorflow as tf

    found = [device for device in tf.config.list_physical_devices() if device.device_type in ("GPU", "TPU")]
    return [
        tf.config.experimental.get_device_details(device).get("device_name", device.device_type) for device in found
    ]


def surroundings(strategy) -> list[tuple[str, str]]:
    """(name, value) pairs: the date, and this process's software and hardware."""
    import tensorflow as tf

    devices = [f"{os.cpu_count()} CPU cores ({platform.machine()})"]
    devices += [f"{count} x {name}" for name, count in collections.Counter(_accelerators()).items()]
    versions = {"keras_vit": __version__, "keras": keras.__version__, "tensorflow": tf.__version__}
    if keras.backend.backend() == "jax":
        import jax

        versions["jax"] = jax.__version__
    versions["python"] = platform.python_version()
    return [
        ("date", datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")),
        ("versions", ", ".join(f"{name} {version}" for name, version in versions.items())),
        ("backend", keras.backend.backend()),
        ("devices", ", ".join(devices)),
        ("strategy", strategy.name if strategy.replicas == 1 else f"{strategy.name}, {strategy.replicas} replicas"),
        ("system", platform.platform()),
    ]


def _configuration(task):
    """The task's config as {"data.source": value as text}; {} without one."""
    config = json.loads(task.config.to_json_best_effort()) if task.config else {}
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in flat(config).items()}


def _read_pictures(folder, name):
    """{picture: {step: PNG bytes}} of an evaluator, from the folder of pictures."""
    found: dict[str, dict[int, bytes]] = {}
    for path in paths_in(folder / "pictures", f"{name}_", ".png"):
        title, _, step = path.name.removesuffix(".png").removeprefix(f"{name}_").rpartition("_")
        if step.isdigit():
            found.setdefault(title, {})[int(step)] = path.read_bytes()
    return found


def _evaluators(folder, task, records):
    """The sections of config.evals: each evaluator's measures over the steps, and its pictures."""
    evals = (task.config.get("evals") if task.config else None) or {}
    for name, options in evals.items():
        keys = [key for key in dict.fromkeys(key for record in records for key in record) if key.startswith(f"{name}/")]
        measures = {
            key.removeprefix(f"{name}/"): [
                (record["step"], record[key]) for record in records if record.get(key) is not None
            ]
            for key in keys
        }
        kind = find_evaluator(options.get("evaluator", name)) or Evaluator
        title = f"{kind.title}, {name}" if kind.title and find_evaluator(name) is not kind else kind.title
        yield html_report.evaluator(name, measures, _read_pictures(folder, name), kind.caption, title)


def write_report(folder, title, task, model, setting, evaluation, records, choice=""):
    """Writes report.html to `folder`, or logs which package is missing.

    Args:
        folder: a path.
        title: the page's title.
        task: the Task that provides the sections.
        model: on one device.
        setting: the evaluation's Setting, with its data; its `errors` are listed as left out.
        evaluation: an Evaluation.
        records: list of dict. The records of metrics.jsonl; may be empty.
        choice: str. How the weights were chosen, if they are not a run's last ones.
    """
    try:
        facts, *others = task.report(model, evaluation, _samples(setting, task.samples), records)
        sections = [
            facts,
            html_report.section("Chosen weights", "", choice) if choice else "",
            *others,
            *_evaluators(epath.Path(folder), task, records),
        ]
    except ImportError as error:
        logging.warning("No report.html: %s", error)
        return
    left_out = "" if setting.errors is None else html_report.skipped(setting.errors.names)
    made_by = html_report.about(command(sys.orig_argv), surroundings(setting.strategy))
    page = html_report.page(title, [*sections, left_out, html_report.configuration(_configuration(task)), made_by])
    # File names may contain undecodable bytes, which UTF-8 cannot encode.
    write_bytes(folder / "report.html", page.encode("utf-8", "replace"))
    logging.info("Report: %s", folder / "report.html")
