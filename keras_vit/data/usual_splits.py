"""Default splits of a source."""

from keras_vit.data.open import open_source
from keras_vit.data.source_names import with_kind
from keras_vit.data.splits import MissingSplit

FILES = ("folder", "masks", "boxes", "instances", "depth", "csv", "jsonl")  # sources of image files with targets
PLAIN = ("train[:80%]", "train[80%:]")  # for data without splits, as in configs/folder_finetune.py


def _list_splits(text, data_dir):
    """Lists the splits of a source of files; reads no example."""
    try:
        open_source(text, "no-split", data_dir)
    except MissingSplit as error:
        return error.splits
    return []


def usual_splits(text: str, data_dir: str | None) -> tuple[str, str]:
    """Returns (training split, evaluation split) of a source.

    These are train and test, or else val; without split folders or a split column, the slices in folder_finetune.
    """
    if with_kind(text, data_dir).partition(":")[0] in FILES:
        splits = _list_splits(text, data_dir)
        if "test" not in splits and "val" in splits:
            return "train", "val"
        if splits == ["train"]:
            return PLAIN
        if "test" not in splits:
            open_source(text, "test", data_dir)  # raises an error that names the valid splits
    return "train", "test"


def own_validation(text: str, data_dir: str | None) -> tuple[str, str] | None:
    """Returns ("train", "val") if a source of files has both, to use instead of PLAIN; otherwise None."""
    if with_kind(text, data_dir).partition(":")[0] not in FILES:
        return None
    return ("train", "val") if {"train", "val"} <= set(_list_splits(text, data_dir)) else None
