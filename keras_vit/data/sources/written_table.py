"""Writes a table of image files and labels, FOLDER/table.jsonl, and its labels.txt."""

import json
import os
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from keras_vit.data.sources.base import RandomAccess, Source
from keras_vit.io.atomic import write_bytes
from keras_vit.io.paths import read_text

_TABLE, _CLASSES = "table.jsonl", "labels.txt"


def image_files(source: Source) -> list[str]:
    """Returns the absolute paths of a source's images, in order.

    Raises:
        ValueError: if the source's images are not separate files.
    """
    if not isinstance(source, RandomAccess) or source.names is None:
        raise ValueError(
            f"{source.name} has no image files to list in a table. Use folder:PATH, images:PATH, csv:PATH or"
            " jsonl:PATH, or write the images of another source to files first."
        )
    batches = tf.data.Dataset.range(source.size).map(source.names).batch(1000).as_numpy_iterator()
    paths = (os.fsdecode(name) for batch in batches for name in batch)
    return [path if "://" in path else os.path.abspath(path) for path in paths]


def names_for_table(class_names: Sequence[str]) -> tuple[str, ...]:
    """Returns class names for a table: unchanged if they are distinct lines of text, else numbers."""
    names = tuple(unicodedata.normalize("NFC", name) for name in class_names)
    lines = all(name.splitlines() == [name.strip()] for name in names)
    return names if lines and len(set(names)) == len(names) else tuple(map(str, range(len(names))))


def check_table_folder(folder: str, class_names: Sequence[str]) -> None:
    """Raises ValueError if the folder's labels.txt has different classes."""
    path = os.path.join(folder, _CLASSES)
    if tf.io.gfile.exists(path) and read_text(path).splitlines() != list(class_names):
        raise ValueError(f'"{path}" has different classes. Use another folder.')


def write_table(folder: str, class_names: Sequence[str], rows: Iterable[dict[str, Any]]) -> None:
    """Writes rows such as {"image": path, "label": name, "split": "train"} atomically.

    Raises:
        ValueError: if the folder has a labels.txt with other classes.
        OSError: if writing fails.
    """
    check_table_folder(folder, class_names)
    tf.io.gfile.makedirs(folder)
    write_bytes(os.path.join(folder, _CLASSES), "".join(f"{name}\n" for name in class_names).encode())
    write_bytes(os.path.join(folder, _TABLE), "".join(f"{json.dumps(row)}\n" for row in rows).encode())
