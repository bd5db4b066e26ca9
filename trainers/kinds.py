"""Which verb takes a model, by the kind of its answers. Imports no engine."""

import json
import os
from typing import Any

# What a model of each kind does, and the command for it.
_VERBS = {
    "classes": ("classifies whole images", "keras-vit classify {} IMAGES"),
    "masks": ("gives every pixel a class", "keras-vit segment {} IMAGES --output=FOLDER"),
    "objects": ("finds objects", "keras-vit detect {} IMAGES --output=FOLDER"),
    "pixels": (
        "has one output per pixel, such as a depth, and no classes",
        "keras-vit serve {}, or model.predict(model.preprocess(images)) in Python",
    ),
    "texts": ("compares images with texts", 'keras-vit classify {} IMAGES --labels="a cat,a dog"'),
    "features": (
        "has no classes and returns features",
        "keras-vit predict --model={} --data=images:FOLDER --answers=features --output=FOLDER",
    ),
}
_OF_EXPORTS = ("classes", "masks")  # kinds whose verb takes exports, too
_OF_TASKS = {"segmentation": "masks", "detection": "objects", "depth": "pixels"}


def is_export(name: str) -> bool:
    """Whether a model's name is the folder of a SavedModel."""
    return os.path.exists(os.path.join(os.path.expanduser(name), "saved_model.pb"))


def kind_of_export(folder: str) -> str | None:
    """The kind of an exported SavedModel, by its metadata.json; None without one."""
    path = os.path.join(os.path.expanduser(folder), "metadata.json")
    if not os.path.exists(path):
        return None
    with open(path, encoding="utf-8") as file:
        about = json.load(file)
    return _OF_TASKS.get(about.get("task")) or ("features" if about.get("classes") is None else "classes")


def kind_of(model: Any) -> str:
    """The kind of a loaded model."""
    from keras_vit.detection.detect import finds_objects
    from keras_vit.segmentation.segment import is_dense, segments

    if finds_objects(model):
        return "objects"
    if is_dense(model):
        return "masks" if segments(model) else "pixels"
    if hasattr(model, "zero_shot"):
        return "texts"
    return "features" if getattr(model, "classes", None) is None else "classes"


def what_it_does(kind: str) -> str:
    """What a model of this kind does, as a predicate."""
    return _VERBS[kind][0]


def check_kind(name: str, kind: str | None, expected: str) -> None:
    """Raises ValueError with the verb that takes the model `name`, if it is of another kind than expected."""
    if kind not in (None, expected):
        command = _VERBS[kind][1]
        if is_export(name) and kind not in _OF_EXPORTS:
            raise ValueError(
                f"{name} {what_it_does(kind)}: {command.format('MODEL')}, with the model that it was exported from."
            )
        raise ValueError(f"{name} {what_it_does(kind)}: {command.format(name)}.")
