"""Reads annotation files, with lines in errors, and finds the image files that they name."""

import itertools
import json
import os
import re
import urllib.parse
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from keras_vit.data.sources.image_files import ENDINGS, ending
from keras_vit.data.splits import SPLITS, canonical
from keras_vit.io.paths import in_threads, read_text
from keras_vit.io.suggest import did_you_mean, listed

_START = 4096  # bytes that identify a format
_TRIED = 5  # file names to look for in a folder
_ANNOTATION_FOLDERS = ("annotation", "annotations", "ann", "json", "labels", "xml", "xmls")  # names of folders
_SPECIFY = ', and specify the folder that contains these: "...?images=FOLDER"'
_PREFIX = re.compile(r"^[0-9a-f]{8}-")  # of Label Studio


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


def read_start(path: str) -> str:
    """Reads the first characters of a file; "" if unreadable."""
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            return file.read(_START).decode(errors="replace")
    except tf.errors.OpError:
        return ""


def list_names(folder: str) -> list[str]:
    """Lists the names in a folder, sorted, without hidden names and a bucket's "/"; [] if it does not exist."""
    try:
        return sorted(name.rstrip("/") for name in tf.io.gfile.listdir(folder or ".") if not name.startswith("."))
    except tf.errors.OpError:
        return []


def find_files(folder: str, end: str) -> list[str]:
    """Lists the files below a folder with this extension, in any case, sorted, without hidden files."""
    try:
        found = [os.path.join(place, name) for place, _, names in tf.io.gfile.walk(folder) for name in names]
    except tf.errors.OpError:
        return []

    def hidden(path):
        return os.path.relpath(path, folder).startswith(".") or "/." in os.path.relpath(path, folder)

    return sorted(path for path in found if path.lower().endswith(end) and not hidden(path))


def files_by_split(root: str, end: str) -> dict[str, list[str]]:
    """Finds the files with this extension in split folders, {split: files}; all are "train" if none has any."""
    found = {split: find_files(folder, end) for split, folder in split_folders(root).items()}
    return {split: files for split, files in found.items() if files} or {"train": find_files(root, end)}


def infer_split(path: str) -> str:
    """Returns the split in a file's name or its folder's: "instances_val2017.json" is "val"; "train" by default."""
    folder, name = os.path.split(path)
    words = [re.sub(r"\d+$", "", word) for word in re.split(r"[^A-Za-z0-9]+", os.path.splitext(name)[0])]
    found = [canonical(word) for word in [*words, os.path.basename(folder)] if canonical(word) in SPLITS]
    return found[0] if found else "train"


def assign_splits(found: Iterable[str], root: str) -> dict[str, str]:
    """Assigns the files in `root` to splits by their names: {split: file}.

    Raises:
        ValueError: if several belong to one split.
    """
    splits: dict[str, str] = {}
    for file in found:
        split = infer_split(file)
        if split in splits:
            raise ValueError(
                f'"{root}" has several files for the split "{split}": {splits[split]}, {file}. Open one of them instead'
                " of the folder, or add train, val or test to their names."
            )
        splits[split] = file
    return splits


def split_folders(root: str) -> dict[str, str]:
    """Finds the folders train, val (valid, validation) and test in `root`: {split: folder}.

    Raises:
        ValueError: if two are the same split.
    """
    found = {}
    for name in list_names(root):
        split = canonical(name)
        if split in SPLITS and tf.io.gfile.isdir(os.path.join(root, name)):
            if split in found:
                raise ValueError(
                    f'"{root}" has several folders for one split: {os.path.basename(found[split])}, {name}. Merge them.'
                )
            found[split] = os.path.join(root, name)
    return found


class FileIndex:
    """The files that exist; lists each folder once."""

    def __init__(self):
        self._names: dict[str, frozenset[str]] = {}

    def add(self, folders: Iterable[str]) -> None:
        """Lists folders in parallel."""
        new = [folder for folder in dict.fromkeys(folders) if folder not in self._names]
        if new:  # starting threads is expensive
            self._names.update(zip(new, in_threads(lambda folder: frozenset(list_names(folder)), new)))

    def names(self, folder: str) -> frozenset[str]:
        """Returns the names in a folder."""
        self.add([folder])
        return self._names[folder]

    def __contains__(self, path: str) -> bool:
        folder, name = os.path.split(path)
        return name in self.names(folder)


def parent_folders(folder: str, root: str) -> list[str]:
    """Lists `folder` and the folders above it, up to `root`; one further if the last is named for annotations.

    Images outside of PATH belong to other data, unless PATH itself is DATA/annotations.
    """
    found = [folder]
    while root and found[-1] != root and found[-1].startswith(os.path.join(root, "")):
        found.append(os.path.dirname(found[-1]))
    alone = os.path.basename(found[-1]).lower() in _ANNOTATION_FOLDERS
    return [*found, os.path.dirname(found[-1])] if alone else found


def _candidates(path, split, root):
    """Yields folders that may contain the images of an annotation file."""
    folder, stem = os.path.split(os.path.splitext(path)[0])
    words = [stem.partition("_")[2], split, *([] if split != "val" else ["valid", "validation"])]
    yield folder
    for base in parent_folders(folder, root)[:2]:
        yield from (os.path.join(base, "images", word) for word in words if word)
        yield from (os.path.join(base, word) for word in words if word)
        yield from (os.path.join(base, "images"), os.path.join(base, "data"), base)


def _decoded(name):
    """Reads a name of Label Studio: "/data/local-files/?d=cats/a%20b.jpg" is "cats/a b.jpg"."""
    return urllib.parse.unquote(name.partition("?d=")[2] or name)


def _original(name):
    """Returns an uploaded file's original name, which Label Studio prefixes: "1f2e3d4c-a.jpg" was a.jpg."""
    return _PREFIX.sub("", os.path.basename(_decoded(name)))


def _shortened(name, count):
    """Drops `count` leading folders from a name, or all."""
    parts = name.split("/")
    return "/".join(parts[min(count, len(parts) - 1) :])


def check_owner(owner: dict[str, str], file: str, name: str, path: str, fix: str = _SPECIFY) -> None:
    """Adds {file: name} to `owner`.

    Raises:
        ValueError: if `owner` has the file by another name; `path` states both, and `fix` ends the message.
    """
    other = owner.setdefault(file, name)
    if other != name:
        raise ValueError(f'"{path}": "{other}" and "{name}" would both be "{file}". Restore the folders in them{fix}.')


def image_paths(
    path: str, split: str, images: str, names: Sequence[str], existing: FileIndex, root: str = ""
) -> list[str]:
    """Returns the path of each image that an annotation file names.

    Args:
        path: str. The annotation file.
        split: str. Its split.
        images: str. Folder of the images; "" to look for it.
        names: sequence of str. Image names, with "/".
        existing: FileIndex. The files that exist.
        root: str. The folder that was opened, outside of which images belong to other data; "" for the file's, or the
            one above a folder with the name of a split.

    Raises:
        FileNotFoundError: if no image in a sample is found.
        ValueError: if two names are one file.
    """
    folder = os.path.dirname(path)
    inside = canonical(os.path.basename(folder)) in SPLITS and not root
    root = root or (os.path.dirname(folder) if inside else folder)
    folders = [images] if images else list(dict.fromkeys(_candidates(path, split, root)))
    tried = names[:: max(1, len(names) // _TRIED)]
    depth = max(name.count("/") for name in tried) + 1
    for reading, count in itertools.product((str, _decoded, _original), range(depth)):
        sample = [_shortened(reading(name), count) for name in tried]
        able = [place for place in folders if any(os.path.join(place, name) in existing for name in sample)]
        if able:
            read = [_shortened(reading(name), count) for name in names]
            return _distinct(path, names, _best(able, read, existing), read)
    near = did_you_mean(os.path.basename(names[0]), existing.names(folders[0]))
    raise FileNotFoundError(
        f'"{path}": no images, such as "{names[0]}", found in {listed(folders, 12)}.{near} Specify their folder:'
        ' "...?images=FOLDER".'
    )


def _best(folders, names, existing):
    """Returns the first of the folders with the most of the images."""
    if len(folders) == 1:
        return folders[0]
    existing.add(os.path.dirname(os.path.join(place, name)) for place in folders for name in names)
    return max(folders, key=lambda place: sum(os.path.join(place, name) in existing for name in names))


def _distinct(path, stated, folder, names):
    """Joins names to their folder.

    Raises:
        ValueError: if two names, which the file states otherwise, are one path.
    """
    owner: dict[str, str] = {}
    for name, text in zip(names, stated):
        check_owner(owner, os.path.join(folder, os.path.normpath(name)), text, path)
    return [os.path.join(folder, name) for name in names]


def unlisted_images(paths: Iterable[str], existing: FileIndex) -> Iterator[str]:
    """Yields image files next to the listed ones."""
    listed_names: dict[str, set[str]] = {}
    for path in paths:
        folder, name = os.path.split(path)
        listed_names.setdefault(folder, set()).add(name)
    for folder, mine in sorted(listed_names.items()):
        yield from (
            os.path.join(folder, name) for name in sorted(existing.names(folder) - mine) if ending(name) in ENDINGS
        )
