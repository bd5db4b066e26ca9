"""Checks that model and data have the same classes in the same order; equal counts are not enough."""

from collections.abc import Sequence
from typing import Any

from keras_vit.evaluation.imagenet.class_map import CLASSES
from keras_vit.io.class_names import synsets

SAME, REORDERED, OTHER = "same", "reordered", "other"


def compared(own: Sequence[str], names: Sequence[str]) -> str:
    """Compares two equally long lists of class names: SAME, REORDERED or OTHER.

    The numbers 0, 1, 2... match any names; ImageNet's synsets, in order, match its names in words.
    """
    own, names = tuple(own), tuple(names)
    if own == names:
        return SAME
    if sorted(own) == sorted(names):
        return REORDERED
    if tuple(map(str, range(len(own)))) in (own, names):
        return SAME
    if len(own) == CLASSES and synsets() in (own, names) and not set(own) & set(names):
        return SAME
    return OTHER


def check_class_count(classes: int | None, source: Any) -> None:
    """Raises ValueError if the model has no classes, or the data has a different number of them."""
    if classes is None:
        raise ValueError(
            "The model has no head, or its outputs are not known to be classes. Measure its features: keras-vit probe;"
            " or name the outputs in the data's order: vit.with_head(layer, class_names=[...])."
        )
    if len(source.class_names) != classes:
        raise ValueError(
            f"The model has {classes} classes, the data {len(source.class_names)}. If some have no examples here, list"
            " all of them in the model's order, one per line, in labels.txt beside a table, or in the FILE of"
            " csv:PATH?classes=FILE or boxes:PATH?classes=FILE."
        )


def check_classes(model: Any, source: Any) -> None:
    """Raises ValueError unless the classes agree in names and order, or, if the model has no names, in number."""
    check_class_count(model.output_shape[-1], source)
    check_class_names(model, source)


def check_class_names(model: Any, source: Any) -> None:
    """Raises ValueError if the class names of model and data, equal in number, differ or are reordered."""
    own, names = getattr(model, "class_names", None), tuple(source.class_names)
    found = SAME if own is None else compared(own, names)
    if found == REORDERED:
        raise ValueError(
            f"The model has the classes of {source.name} in another order: {own[:5]}, the data {names[:5]}. Correct"
            " predictions would count as wrong. List the classes in the model's order in a file, and open a table of"
            " the images with it: csv:PATH?classes=FILE."
        )
    if found == OTHER:
        raise ValueError(
            f"The model's classes are {own[:10]}, those of {source.name} {names[:10]}. If they are the same in this"
            " order, load the model with the data's names: keras_vit.load(MODEL, class_names=FILE) or"
            " --load.class_names=FILE, one per line."
        )
