"""The splits of a source for which none are given."""

from keras_vit.data.open import open_source
from keras_vit.data.source_names import with_kind
from keras_vit.data.splits import MissingSplit

FILES = ("folder", "masks", "boxes", "csv", "jsonl")  # sources of image files with labels, masks or boxes
PLAIN = ("train[:80%]", "train[80%:]")  # of data without splits, as in configs/folder_finetune.py


def _splits_of(text, data_dir):
    """The splits of a source of files, whose examples are not read."""
    try:
        open_source(text, "no-split", data_dir)
    except MissingSplit as error:
        return error.splits
    return []


def usual_splits(text: str, data_dir: str | None) -> tuple[str, str]:
    """(training split, evaluation split) of a source.

    train and test, or else val; without split folders or a split column the parts that folder_finetune takes.
    """
    if with_kind(text, data_dir).partition(":")[0] in FILES:
        splits = _splits_of(text, data_dir)
        if "test" not in splits and "val" in splits:
            return "train", "val"
        if splits == ["train"]:
            return PLAIN
        if "test" not in splits:
            open_source(text, "test", data_dir)  # says what is missing
    return "train", "test"


def own_validation(text: str, data_dir: str | None) -> tuple[str, str] | None:
    """("train", "val") for a source of files with these splits, which a run then takes in place of PLAIN, or None."""
    if with_kind(text, data_dir).partition(":")[0] not in FILES:
        return None
    return ("train", "val") if {"train", "val"} <= set(_splits_of(text, data_dir)) else None
