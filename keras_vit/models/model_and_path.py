"""Checks the arguments of `save` and `export`: a model and a path."""

import os
from typing import Any

import keras

from keras_vit.fit.model import Model
from keras_vit.io.paths import locate


def _described(value):
    """A value in short, for a message."""
    if isinstance(value, type):
        return f"the class {value.__name__}, not a model made of it"
    if isinstance(value, keras.Model):
        return f'"{value.name}", a plain {type(value).__module__.split(".")[0]} {type(value).__name__}'
    return f"{value!r}" if isinstance(value, (str, os.PathLike)) or value is None else f"a {type(value).__name__}"


def check_model_and_path(function: str, model: Any, path: Any) -> str:
    """`path` as text, with "~" expanded; ValueError if `function`, "save" or "export", cannot take the arguments."""
    if isinstance(model, (str, os.PathLike)) and isinstance(path, keras.Model):
        raise ValueError(f"{function} takes the model first: {function}(model, {os.fspath(model)!r}).")
    if not isinstance(model, Model):
        fix = "Make it with keras_vit.ViT, keras_vit.BiT, keras_vit.load or keras_vit.Model(inputs, outputs)."
        if isinstance(model, type):
            fix = f'Make a model first, such as keras_vit.ViT("B/16"), then {function} that.'
        elif isinstance(model, (list, tuple, dict)):
            fix = f"{function} takes one model: call it once for each."
        elif isinstance(model, keras.Model):
            fix = (
                "Build it as keras_vit.Model(inputs,"
                f" outputs){', or use model.save(path)' if function == 'save' else ''}."
            )
        raise ValueError(f"{function} expected a model of keras_vit, got {_described(model)}. {fix}")
    if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
        raise ValueError(f"{function} expected a path, got {path!r}: {function}(model, path).")
    return locate(os.fsdecode(path))
