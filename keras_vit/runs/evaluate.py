"""Evaluation of a model outside its run: its task, and files of results."""

import contextlib
from typing import Any

import keras
from etils import epath
from ml_collections import ConfigDict

from keras_vit.evaluation.registry import Evaluation, Setting
from keras_vit.io.atomic import write_bytes
from keras_vit.io.json_files import json_text, read_json
from keras_vit.io.paths import locate
from keras_vit.runs.own_data import OwnData
from keras_vit.runs.picture_files import write_charts, write_pixels
from keras_vit.runs.report import write_report
from keras_vit.runs.saving.rundir import MODEL, RunDirectory
from keras_vit.tasks import Task, find_task


def find_rundir(model: str) -> epath.Path | None:
    """The run directory that `model` is, or that contains it as model.keras; None for other models."""
    if "://" in str(model) and not str(model).startswith("gs://"):
        return None
    path = epath.Path(locate(str(model)))
    if path.name != MODEL:
        return path if (path / "config.json").exists() and "total" in _config_in(path) else None
    with contextlib.suppress(ValueError):  # the model loads without the run
        return find_rundir(str(path.parent))
    return None


def _config_in(folder):
    return read_json(folder / "config.json", "Restore it from a backup, or evaluate model.keras itself.")


def load_task(model):
    """The Task of a run directory, or Classification for other models; ValueError if config.json is broken."""
    folder = find_rundir(model)
    config = _config_in(folder) if folder else {}
    return find_task(config.get("task", "classification"))(ConfigDict(config))


def task_for(model: keras.Model, name: str) -> Task:
    """The Task that evaluates a loaded model: that of the run directory `name`, or else of the model's class."""
    if find_rundir(name):
        return load_task(name)
    return find_task(getattr(model, "task", "classification"))(ConfigDict())


def own_data(model: str) -> OwnData | None:
    """The data of the run in `model`; None if it is not a run directory."""
    folder = find_rundir(model)
    config = _config_in(folder) if folder else {}
    return OwnData(str(folder), config["data"], config.get("files") or {}) if "data" in config else None


def evaluation_content(data: str, split: str, setting: Setting, evaluation: Evaluation) -> dict[str, Any]:
    """The content of evaluation.json: the data, the measures, and the task's details."""
    about = {"data": data, "split": split, "preprocess": setting.preprocess, "classes": setting.source.class_names}
    return {**about, **evaluation.measures, **evaluation.details}


def write_evaluation(folder, name, task, setting, evaluation, model_name, data, split):
    """Writes evaluation.json and report.html, or for a named evaluator NAME.json and its charts, to `folder`."""
    folder = epath.Path(locate(str(folder)))
    folder.mkdir(parents=True, exist_ok=True)
    measured = {**evaluation.measures, **evaluation.details}
    content = json_text(measured if name else evaluation_content(data, split, setting, evaluation)) + "\n"
    write_bytes(folder / (f"{name}.json" if name else "evaluation.json"), content.encode())
    if name:
        write_charts(folder, name, evaluation.charts, setting.strategy)
        return write_pixels(folder, name, evaluation.pictures, setting.strategy)
    rundir = find_rundir(model_name)
    records = RunDirectory(rundir).metrics() if rundir else []
    write_report(folder, f"{model_name} on {data} {split}", task, setting.model, setting, evaluation, records)
