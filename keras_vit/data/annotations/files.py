"""Reads annotation files, with lines in errors, and finds the image files that they name."""

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from keras_vit.data.sources.image_files import ENDINGS, ending
from keras_vit.data.splits import SPLITS, canonical
from keras_vit.io.paths import in_threads, read_text
from keras_vit.io.suggest import did_you_mean, listed

_START = 4096  # bytes that identify a format
_TRIED = 5  # file names to look for in a folder


def read_json(path: str) -> dict[str, Any]:
    """Reads the object in a JSON file.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is not JSON, with the line, or not an object.
    """
    try:
        content = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise ValueError(f'"{path}", line {error.lineno}: not JSON: {error.msg}.') from None
    except RecursionError:
        raise ValueError(f'"{path}": expected annotations, got lists that are nested too deeply.') from None
    if not isinstance(content, dict):
        raise ValueError(f'"{path}": expected an object of annotations, got a {type(content).__name__}.')
    return content


def start_of(path: str) -> str:
    """Reads the first characters of a file; "" if unreadable."""
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            return file.read(_START).decode(errors="replace")
    except tf.errors.OpError:
        return ""


def names_in(folder: str) -> list[str]:
    """Lists the names in a folder, sorted, without hidden names and a bucket's "/"; [] if it does not exist."""
    try:
        return sorted(name.rstrip("/") for name in tf.io.gfile.listdir(folder or ".") if not name.startswith("."))
    except tf.errors.OpError:
        return []


def below(folder: str, end: str) -> list[str]:
    """Lists the files below a folder with this extension, in any case, sorted, without hidden files."""
    try:
        found = [os.path.join(place, name) for place, _, names in tf.io.gfile.walk(folder) for name in names]
    except tf.errors.OpError:
        return []

    def hidden(path):
        return os.path.relpath(path, folder).startswith(".") or "/." in os.path.relpath(path, folder)

    return sorted(path for path in found if path.lower().endswith(end) and not hidden(path))


def split_of(path: str) -> str:
    """Returns the split in a file's name or its folder's: "instances_val2017.json" is "val"; "train" by default."""
    folder, name = os.path.split(path)
    words = [re.sub(r"\d+$", "", word) for word in re.split(r"[^A-Za-z0-9]+", os.path.splitext(name)[0])]
    found = [canonical(word) for word in [*words, os.path.basename(folder)] if canonical(word) in SPLITS]
    return found[0] if found else "train"


def by_split(found: Iterable[str], root: str) -> dict[str, str]:
    """Assigns the files in `root` to splits by their names: {split: file}.

    Raises:
        ValueError: if several belong to one split.
    """
    splits: dict[str, str] = {}
    for file in found:
        split = split_of(file)
        if split in splits:
            raise ValueError(
                f'"{root}" has several files for the split "{split}": {splits[split]}, {file}. Open one of them instead'
                " of the folder, or add train, val or test to their names."
            )
        splits[split] = file
    return splits


def folders_of_splits(root: str) -> dict[str, str]:
    """Finds the folders train, val (valid, validation) and test in `root`: {split: folder}.

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
                    " Merge them."
                )
            found[split] = os.path.join(root, name)
    return found


class Existing:
    """The files that exist; lists each folder once."""

    def __init__(self):
        self._names: dict[str, frozenset[str]] = {}

    def list(self, folders: Iterable[str]) -> None:
        """Lists folders in parallel."""
        new = [folder for folder in dict.fromkeys(folders) if folder not in self._names]
        if new:  # starting threads is expensive
            self._names.update(zip(new, in_threads(lambda folder: frozenset(names_in(folder)), new)))

    def names(self, folder: str) -> frozenset[str]:
        """Returns the names in a folder."""
        self.list([folder])
        return self._names[folder]

    def __contains__(self, path: str) -> bool:
        folder, name = os.path.split(path)
        return name in self.names(folder)


def _candidates(path, split):
    """Yields folders that may contain the images of an annotation file."""
    folder, stem = os.path.split(os.path.splitext(path)[0])
    above = os.path.dirname(folder)
    words = [stem.partition("_")[2], split, *([] if split != "val" else ["valid", "validation"])]
    for base in (folder, above):
        yield from (os.path.join(base, "images", word) for word in words if word)
        yield from (os.path.join(base, word) for word in words if word)
        yield from (os.path.join(base, "images"), os.path.join(base, "data"), base)


def image_paths(path: str, split: str, images: str, names: Sequence[str], existing: Existing) -> list[str]:
    """Returns the path of each image that an annotation file names.

    Args:
        path: str. The annotation file.
        split: str. Its split.
        images: str. Folder of the images; "" to look for it.
        names: sequence of str. Image names, with "/".
        existing: Existing. The files that exist.

    Raises:
        FileNotFoundError: if no image in a sample is found.
    """
    folders = [images] if images else list(dict.fromkeys([os.path.dirname(path), *_candidates(path, split)]))
    tried = names[:: max(1, len(names) // _TRIED)]
    for plain in (lambda name: name, os.path.basename):
        for folder in folders:
            if any(os.path.join(folder, plain(name)) in existing for name in tried):
                return [os.path.join(folder, plain(name)) for name in names]
    near = did_you_mean(os.path.basename(names[0]), existing.names(folders[0]))
    raise FileNotFoundError(
        f'"{path}": no images, such as "{names[0]}", found in {listed(folders, 12)}.{near} Specify their folder:'
        ' "...?images=FOLDER".'
    )


def unlisted(paths: Iterable[str], existing: Existing) -> Iterator[str]:
    """Yields image files next to the listed ones."""
    own: dict[str, set[str]] = {}
    for path in paths:
        folder, name = os.path.split(path)
        own.setdefault(folder, set()).add(name)
    for folder, mine in sorted(own.items()):
        yield from (
            os.path.join(folder, name) for name in sorted(existing.names(folder) - mine) if ending(name) in ENDINGS
        )
