"""Tasks define what a model learns, one file per task. base.py defines the interface."""

import importlib
import importlib.util
import os
import sys
from typing import Any

from keras_vit.io.suggest import check_known
from keras_vit.tasks.task import Score, Task

# {name of task and file: class}; a task is imported on first use.
TASKS = {
    "classification": "Classification",
    "distillation": "Distillation",
    "autoregressive": "Autoregressive",
    "dino": "SelfDistillation",
    "masked_autoencoding": "MaskedAutoencoding",
    "masked_patches": "MaskedPatches",
    "segmentation": "Segmentation",
    "detection": "Detection",
    "instances": "Instances",
    "panoptic": "Panoptic",
    "depth": "Depth",
    "image_text": "ImageText",
}

__all__ = ["TASKS", "Score", "Task", "find_task", *TASKS.values()]


def __getattr__(name: str) -> Any:
    for task, task_class in TASKS.items():
        if name == task_class:
            return find_task(task)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _imported(place: str):
    """Imports a module from a dotted name or the path of a Python file."""
    if not place.endswith(".py"):
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            raise ValueError(f'The task\'s module "{place}" cannot be imported: {error}.') from error
    path = os.path.abspath(os.path.expanduser(place))
    if not os.path.isfile(path):
        raise ValueError(f'The task\'s file "{place}" does not exist.')
    name = "keras_vit_task_" + os.path.splitext(os.path.basename(path))[0]
    loaded = sys.modules.get(name)
    if loaded is not None and loaded.__file__ == path:  # import once per process: it may register things
        return loaded
    spec = importlib.util.spec_from_file_location(name, path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def find_task(name: str) -> type[Task]:
    """Returns the Task class with this name.

    Args:
        name: str. A key of TASKS, or your own class: "package.module:Class" or "path/to/file.py:Class".

    Raises:
        ValueError: for an unknown name, a missing module or class, or a class that is not a Task.
    """
    place, colon, attribute = name.rpartition(":")
    if not colon:
        own = '; or your own class, "package.module:Class" or "path/to/file.py:Class"'
        check_known(name, "task", TASKS, own)
        return getattr(importlib.import_module(f"{__name__}.{name}"), TASKS[name])
    task = getattr(_imported(place), attribute, None)
    if not isinstance(task, type) or not issubclass(task, Task):
        raise ValueError(
            f'"{name}" is not a task: expected {attribute} in {place} to be a subclass of keras_vit.tasks.Task.'
        )
    return task
