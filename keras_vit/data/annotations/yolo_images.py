"""Finds the image files of a YOLO export, split by split, and the text file of each image."""

import os
import re
from collections.abc import Iterable

from keras_vit.data.annotations import annotation_files
from keras_vit.data.annotations.schema import Ignored
from keras_vit.data.annotations.shared_images import drop_repeated
from keras_vit.data.annotations.yolo_layout import Export
from keras_vit.data.sources.image_files import ENDINGS, ending
from keras_vit.data.splits import canonical
from keras_vit.io.paths import read_text

_ABSOLUTE = re.compile(r"/|[A-Za-z]:/")


def _place(export, folder, text, existing):
    """Resolves a path in a YAML file or in a list in `folder`, or returns "".

    Roboflow's start with "../" but are relative to its folder. Of a path on another machine, the longest end of two
    parts or more that exists below the root counts.
    """
    text = str(text).replace("\\", "/").rstrip("/")
    if text in ("", "."):
        return export.base
    plain = text
    while plain.startswith(("../", "./")):
        plain = plain.partition("/")[2]
    parts = plain.split("/")
    last = len(parts) - 1 if _ABSOLUTE.match(text) else len(parts)  # "datasets/images" is "images", "/images" is not
    choices = [os.path.join(place, text) for place in (export.base, export.root, folder)]
    choices += [os.path.join(export.root, *parts[i:]) for i in range(last)]
    return next((choice for choice in map(_normal, choices) if choice in existing), "")


def _normal(path):
    return path if "://" in path else os.path.normpath(path)


def _plain(text):
    """Returns a path without "." and ".." at its start, to compare."""
    return os.path.normpath(text.replace("\\", "/")).lstrip("./")


def _listed_files(export, path, existing, owner):
    """Returns the image files in a list of paths, also those that are missing.

    Raises:
        ValueError: if two paths, also of other lists in `owner`, {file: path}, stand for one file.
    """
    lines = [line.strip() for line in read_text(path).splitlines() if line.strip()]
    found = []
    for line in lines:
        file = _place(export, os.path.dirname(path), line, existing) or os.path.join(export.root, line)
        annotation_files.check_owner(owner, file, _plain(line), path, fix="")
        found.append(file)
    return found


def _check_unsplit(export, paths):
    """Raises ValueError if images that nothing assigns to splits are in folders named for several."""
    for path in paths if export.inferred else ():
        parts = os.path.relpath(path, export.root).split(os.sep)[:-1]
        if any(canonical(part) in ("val", "test") for part in parts):
            raise ValueError(
                f'"{export.root}" has images in folders named for splits, such as "{path}", but nothing lists its'
                ' splits. Open the folder that contains them, or add a data.yaml with "train: ..." and "val: ...".'
            )


def _image_files(export, split, existing, owner):
    """Lists the image files of a split, as often as they are listed.

    Raises:
        FileNotFoundError: if a folder or list does not exist.
        ValueError: for ambiguous lists.
    """
    found = []
    for text in export.splits[split]:
        place = _place(export, export.root, text, existing)
        if not place:
            raise FileNotFoundError(
                f'"{export.path}": {split} is "{text}", but "{export.root}" has no such folder or file.'
                f" Write it relative to that folder, such as {split}: {split}/images."
            )
        annotation_files.check_owner(owner, place, _plain(text), export.path, fix="")
        if place.lower().endswith(".txt"):
            found += _listed_files(export, place, existing, owner)
        else:
            found += [path for path in annotation_files.find_files(_normal(place), "") if ending(path) in ENDINGS]
    found = [path for path in found if not os.path.basename(path).startswith(".")]
    _check_unsplit(export, found)
    return sorted(found)


def all_images(
    export: Export, split: str, existing: annotation_files.FileIndex, ignored: Ignored
) -> dict[str, list[str]]:
    """Returns {split: image files} of `split` and of the others, as far as these exist.

    Raises:
        FileNotFoundError: if a folder or list of `split` does not exist.
        ValueError: if two paths stand for one file, or nothing lists the splits.
    """
    owner: dict[str, str] = {}
    images = {split: drop_repeated(_image_files(export, split, existing, owner), ignored)}
    for other in (name for name in export.splits if name != split):
        try:
            images[other] = _image_files(export, other, existing, owner)
        except FileNotFoundError:
            continue
    return images


def _label_folders(folder, existing):
    """Lists the folders of the text files of images in `folder`: "labels" next to "images" above, and itself."""
    parts = folder.split("/")
    at = next((i for i in reversed(range(len(parts))) if parts[i].lower() == "images"), None)
    if at is None:
        return [folder]
    above = "/".join(parts[:at])
    names = [name for name in existing.names(above or "/") if name.lower() == "labels"] or ["labels"]
    return [*("/".join([above, name, *parts[at + 1 :]]) for name in names), folder]


def label_files(images: Iterable[str], existing: annotation_files.FileIndex) -> dict[str, str]:
    """Returns {image: its text file}, the expected one if it has none."""
    folders = {folder: _label_folders(folder, existing) for folder in {os.path.dirname(image) for image in images}}
    existing.add(place for places in folders.values() for place in places)
    found = {}
    for image in images:
        folder, name = os.path.split(image)
        choices = [os.path.join(place, f"{os.path.splitext(name)[0]}.txt") for place in folders[folder]]
        found[image] = next((choice for choice in choices if choice in existing), choices[0])
    return found
