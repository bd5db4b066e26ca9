"""Evaluation of a model outside its run: its task, and files of results."""

from typing import Any

from etils import epath
from ml_collections import ConfigDict

from keras_vit.evaluation.registry import Evaluation, Setting
from keras_vit.io.atomic import write_bytes
from keras_vit.io.json_files import json_text, read_json
from keras_vit.io.paths import locate
from keras_vit.runs.picture_files import write_charts, write_pixels
from keras_vit.runs.report import write_report
from keras_vit.runs.saving.rundir import RunDirectory
from keras_vit.tasks import find_task


def _config_of(model):
    """The run's config as a dict, if `model` is a run directory; {} otherwise."""
    path = (
        epath.Path(locate(str(model))) / "config.json"
        if "://" not in str(model) or str(model).startswith("gs://")
        else None
    )
    if path is None or not path.exists():
        return {}
    config = read_json(path, "Restore it from a backup, or evaluate model.keras itself.")
    return config if "total" in config else {}


def task_of(model):
    """The Task of a run directory, or Classification for other models; ValueError if config.json is broken."""
    config = _config_of(model)
    return find_task(config.get("task", "classification"))(ConfigDict(config))


def data_of(model: str) -> tuple[str, str] | None:
    """(source, split) that the run in `model` was evaluated on; None if it is not a run directory."""
    data = _config_of(model).get("data")
    return (data["source"], data["evaluation"]) if data else None


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
    is_rundir = bool(_config_of(model_name))
    records = RunDirectory(model_name).metrics() if is_rundir else []
    write_report(folder, f"{model_name} on {data} {split}", task, setting.model, setting, evaluation, records)
