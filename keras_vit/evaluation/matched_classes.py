"""Matches the classes of scenes with a model's by name: another order, a subset or a superset of them.

Objects and pixels of classes that the model lacks are left out. Classes that the data lacks are not scored.
"""

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from keras_vit.data.ops.decode_mask import decode_mask
from keras_vit.data.sources.base import Source
from keras_vit.evaluation.classes import SAME, check_class_count, compared
from keras_vit.io.logs import log_once
from keras_vit.io.suggest import listed
from keras_vit.io.target_values import void_value

_SHOWN = 10  # classes in messages
_OF_OBJECTS = ("boxes", "labels", "crowd", "area")


def places(model: Any, source: Any, classes: int | None = None) -> np.ndarray:
    """Position in the model's classes of each class of the data, (n,) int; -1 for classes that the model lacks.

    Args:
        model: the model; its class_names may be None.
        source: the data.
        classes: number of the model's classes; None for `model.classes`.

    Raises:
        ValueError: if no class has the same name, or, for a model without names, if their numbers differ.
    """
    own, names = getattr(model, "class_names", None), tuple(source.class_names)
    if own is None or not names:
        check_class_count(model.classes if classes is None else classes, source)
        return np.arange(len(names))
    if len(own) == len(names) and compared(own, names) == SAME:
        return np.arange(len(names))
    position = {name: i for i, name in enumerate(own)}
    found = np.array([position.get(name, -1) for name in names])
    if not any(place >= 0 and name.strip("_").lower() != "background" for name, place in zip(names, found)):
        raise ValueError(
            f"The model and {source.name} share no class name. The model's {len(own)}: {listed(list(own), _SHOWN)}; the"
            f" data's {len(names)}: {listed(list(names), _SHOWN)}. Rename the classes of the data, or, if they are the"
            " same in this order, load the model with their names: keras_vit.load(MODEL, class_names=FILE) or"
            " --load.class_names=FILE, one per line."
        )
    return found


def _report(own, source, found):
    """Logs which classes are left out, or that the order differs."""
    lacking = [name for name, place in zip(source.class_names, found) if place < 0]
    unscored = [name for i, name in enumerate(own) if i not in set(found.tolist())]
    text = f"{source.name}: its classes are matched with the model's by name"
    if lacking:
        text += f"; left out, because the model lacks them: {listed(lacking, _SHOWN)}"
    if unscored:
        text += f"; not scored, because the data lacks them: {listed(unscored, _SHOWN)}"
    log_once(logging.WARNING if lacking or unscored else logging.INFO, f"{text}.")


def _same(found, classes):
    return len(found) == classes and (found == np.arange(classes)).all()


def _parsed_by(source, change, **fields):
    """The source with every example changed by `change`, in tf.data."""
    before = source.parse

    def parse(stored):
        return change(stored if before is None else before(stored))

    return dataclasses.replace(source, parse=parse, **fields)


def _objects_by(numbers):
    """A function that gives the objects of an example new labels, and drops those with the number -1."""

    def change(example):
        labels = tf.gather(tf.constant(numbers, tf.int32), tf.cast(example["labels"], tf.int32))
        example = {**example, "labels": labels}
        return example | {key: example[key][labels >= 0] for key in _OF_OBJECTS if key in example}

    return change


def _masks_by(numbers, void, new_void):
    """A function that gives the pixels of an example's mask new classes; -1 and void become `new_void`."""
    kind = tf.uint8 if max(new_void, max(numbers)) < 256 else tf.int32
    table = tf.constant([new_void if number < 0 else number for number in numbers] + [new_void], kind)

    def change(example):
        mask = tf.cast(decode_mask(example["mask"]), tf.int32)
        known = (mask < len(numbers)) & (mask != void)
        mask = tf.gather(table, tf.where(known, mask, len(numbers)))
        return {**example, "mask": mask, "void": tf.constant(new_void, kind)}

    return change


def matched_labels(model: Any, source: Any) -> tuple[tuple[str, ...], np.ndarray, np.ndarray]:
    """Matches the classes of a source of objects with a model's by name.

    Returns:
        (names of the classes that both have, in the model's order; their number for each of the data's classes, (n,)
        int, and for each of the model's, (classes,) int, -1 for those that are not scored).

    Raises:
        ValueError: as `places`.
    """
    found = places(model, source)
    if _same(found, model.classes):
        return tuple(source.class_names), found, found
    _report(model.class_names, source, found)
    scored = sorted(found[found >= 0].tolist())
    of_model = np.full(model.classes, -1)
    of_model[scored] = np.arange(len(scored))
    names = tuple(model.class_names[i] for i in scored)
    return names, np.where(found < 0, -1, of_model[found]), of_model


def matched_objects(model: Any, source: Any) -> tuple[Source, np.ndarray]:
    """Matches a source of boxes with a detector by name.

    Returns:
        (source of the classes that both have, in the model's order; their number for each of the model's classes,
        (classes,) int, -1 for those that are not scored).

    Raises:
        ValueError: as `places`.
    """
    names, of_data, of_model = matched_labels(model, source)
    if names == tuple(source.class_names):
        return source, of_model
    return _parsed_by(source, _objects_by(of_data.tolist()), class_names=names), of_model


def matched_masks(model: Any, source: Any) -> tuple[Source, np.ndarray]:
    """Matches a source of masks with a segmentation model by name.

    Returns:
        (source with the model's classes; whether each of these is scored, (classes,) bool).

    Raises:
        ValueError: as `places`.
    """
    classes = model.output_shape[-1]
    found = places(model, source, classes)
    if _same(found, classes):
        return source, np.ones(classes, bool)
    _report(model.class_names, source, found)
    scored = np.isin(np.arange(classes), found)
    void = void_value(classes)
    old = void_value(len(source.class_names)) if source.void is None else source.void
    colors = getattr(model, "colors", None)
    change = _masks_by(found.tolist(), old, void)
    return _parsed_by(source, change, class_names=tuple(model.class_names), void=void, colors=colors), scored
