"""Which verb takes a model, by the kind of its answers."""

import json
import os
from typing import Any


def is_export(name: str) -> bool:
    """Whether a model's name is the folder of a SavedModel."""
    return os.path.exists(os.path.join(os.path.expanduser(name), "saved_model.pb"))


def _kinds_of_export(folder):
    """The kinds of an exported SavedModel's answers, by its metadata.json; () without one."""
    from keras_vit.serving.export_description import METADATA, kinds_in

    path = os.path.join(os.path.expanduser(folder), METADATA)
    if not os.path.exists(path):
        return ()
    with open(path, encoding="utf-8") as file:
        return kinds_in(json.load(file))


def check_kind(name: str, expected: str | tuple[str, ...], model: Any = None) -> None:
    """Raises ValueError, with the verb that takes it, for a model without answers of a kind in `expected`.

    Args:
        name: the model's, as passed.
        expected: a kind of answer, or several.
        model: the loaded model; None for an export, whose metadata tells.
    """
    from keras_vit.answers import find

    kinds = _kinds_of_export(name) if model is None else model.answers or ("features",)
    wanted = {expected} if isinstance(expected, str) else {*expected}
    if not kinds or wanted & {*kinds}:
        return
    answer = find(kinds[0])
    fitting = [part for part, each in model.parts.items() if wanted & {*each.answers}] if model is not None else ()
    if fitting:
        raise ValueError(f"{name} {answer.does}: add --load.key={fitting[0]}, the part for this.")
    if model is None and not answer.reads_exports:
        command = answer.command.format("MODEL")
        raise ValueError(f"{name} {answer.does}: {command}, with the model that it was exported from.")
    raise ValueError(f"{name} {answer.does}: {answer.command.format(name)}.")
