"""What `save` and `export` say when they are given something else than a model and a path."""

import os
from typing import Any

import keras

from keras_vit.io.paths import locate
from keras_vit.training.model import Model


def _described(value):
    """A value for a message, briefly."""
    if isinstance(value, type):
        return f"the class {value.__name__}, not a model made of it"
    if isinstance(value, keras.Model):
        return f'"{value.name}", a plain {type(value).__module__.split(".")[0]} {type(value).__name__}'
    return f"{value!r}" if isinstance(value, (str, os.PathLike)) or value is None else f"a {type(value).__name__}"


def check_model_and_path(function: str, model: Any, path: Any) -> str:
    """`path` as text, with "~" expanded, after checking what `function`, "save" or "export", was given.

    Raises:
        ValueError: if `model` is not one of this package, or `path` not a path; the message says how to mend it.
    """
    if isinstance(model, (str, os.PathLike)) and isinstance(path, keras.Model):
        raise ValueError(f"{function} takes the model first: {function}(model, {os.fspath(model)!r}).")
    if not isinstance(model, Model):
        mend = "Make it with keras_vit.ViT, keras_vit.BiT, keras_vit.load or keras_vit.Model(inputs, outputs)."
        if isinstance(model, type):
            mend = f'Make a model first, such as keras_vit.ViT("B/16"), then {function} that.'
        elif isinstance(model, (list, tuple, dict)):
            mend = f"{function} takes one model: call it once for each."
        elif isinstance(model, keras.Model):
            mend = (
                "Build it as keras_vit.Model(inputs,"
                f" outputs){', or use model.save(path)' if function == 'save' else ''}."
            )
        raise ValueError(f"{function} expected a model of keras_vit, got {_described(model)}. {mend}")
    if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
        raise ValueError(f"{function} expected a path, got {path!r}: {function}(model, path).")
    return locate(os.fsdecode(path))
