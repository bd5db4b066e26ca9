"""The splits of a source for which none are given."""

from keras_vit.data.open import open_source
from keras_vit.data.source_names import with_kind
from keras_vit.data.splits import MissingSplit

FILES = ("folder", "masks", "csv", "jsonl")  # sources of image files with labels or masks
PLAIN = ("train[:80%]", "train[80%:]")  # of data without splits, as in configs/folder_finetune.py


def usual_splits(text: str, data_dir: str | None) -> tuple[str, str]:
    """(training split, evaluation split) of a source.

    train and test, or else val; without split folders or a split column the parts that folder_finetune takes.
    """
    if with_kind(text, data_dir).partition(":")[0] in FILES:
        try:
            open_source(text, "test", data_dir)
        except MissingSplit as error:
            if "val" in error.splits:
                return "train", "val"
            if error.splits == ["train"]:
                return PLAIN
            raise
    return "train", "test"
