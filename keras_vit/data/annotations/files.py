"""Files of annotations: JSON with the line of an error, and which image files exist."""

import json
import os
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from keras_vit.data.splits import SPLITS, canonical
from keras_vit.io.paths import in_threads, read_text

_START = 4096  # bytes that tell one format from another


def read_json(path: str) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: naming the line, if it is not JSON; or if it is not an object.
    """
    try:
        content = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise ValueError(f'"{path}", line {error.lineno}: not JSON: {error.msg}.') from None
    except RecursionError:
        raise ValueError(f'"{path}": not annotations: its lists are nested too deeply.') from None
    if not isinstance(content, dict):
        raise ValueError(f'"{path}": expected an object of annotations, got a {type(content).__name__}.')
    return content


def start_of(path: str) -> str:
    """The first characters of a file; "" if it cannot be read."""
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            return file.read(_START).decode(errors="replace")
    except tf.errors.OpError:
        return ""


def names_in(folder: str) -> list[str]:
    """The sorted names in a folder, without hidden ones and without a bucket's "/"; [] if it does not exist."""
    try:
        return sorted(name.rstrip("/") for name in tf.io.gfile.listdir(folder or ".") if not name.startswith("."))
    except tf.errors.OpError:
        return []


def folders_of_splits(root: str) -> dict[str, str]:
    """{split: folder} of the folders train, val (valid, validation) and test in `root`.

    Raises:
        ValueError: if two are the same split.
    """
    found = {}
    for name in names_in(root):
        split = canonical(name)
        if split in SPLITS and tf.io.gfile.isdir(os.path.join(root, name)):
            if split in found:
                raise ValueError(
                    f'The folder "{root}" has several folders for one split: {os.path.basename(found[split])}, {name}.'
                    " Put them together."
                )
            found[split] = os.path.join(root, name)
    return found


class Existing:
    """Which files exist, by listing each folder once."""

    def __init__(self):
        self._names: dict[str, frozenset[str]] = {}

    def list(self, folders: Iterable[str]) -> None:
        """Lists folders, many at once."""
        new = [folder for folder in dict.fromkeys(folders) if folder not in self._names]
        if new:  # threads cost more than a look
            self._names.update(zip(new, in_threads(lambda folder: frozenset(names_in(folder)), new)))

    def names(self, folder: str) -> frozenset[str]:
        """The names in a folder."""
        self.list([folder])
        return self._names[folder]

    def __contains__(self, path: str) -> bool:
        folder, name = os.path.split(path)
        return name in self.names(folder)
