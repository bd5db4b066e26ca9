"""Opens a split of annotations, for masks and boxes: finds the class names, reports faults, and makes the source.

A target, MaskTarget in mask_source.py or BoxTarget in box_source.py, decides what becomes of the annotations:

- `read(annotations, class_names)` returns a table with `paths`, `faults` and `sizes` of the images;
- `class_names`, from then on, are those of the source, and `needs_classes` says whether one class is too few;
- `parser(table)` returns a function from an example with "image" and "number", its row, to the final example;
- `fields(table, rows)` returns further arguments of RandomAccess for a source of these rows;
- `describe(title, table, whole, layout)` begins the report; `whole()` is the source of all rows.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from keras_vit.data.annotations.orientation_warnings import warn_about_orientation
from keras_vit.data.annotations.schema import MISSING, NOTED, AnnotatedImage, Annotations, Ignored, Layout
from keras_vit.data.sources.base import RandomAccess
from keras_vit.data.sources.classes_file import read_class_names, warn_about_names
from keras_vit.data.sources.image_files import source_of_files
from keras_vit.data.sources.tree import describe_ignored
from keras_vit.data.splits import SPLITS, find_split, fixed_shuffle, merged_splits, take_slice
from keras_vit.io.cache import cached_answer
from keras_vit.io.logs import log_once
from keras_vit.io.progress import Stage, stage
from keras_vit.io.suggest import counted


def _used_labels(images):
    """Sorts the labels of regions."""
    return tuple(sorted({region.label for image in images for region in image.regions}))


def _shared_class_names(title: str, layout: Layout, split: str, read: Callable[[], Sequence[str]]) -> tuple[str, ...]:
    """Returns the class names of train, which all splits share.

    Args:
        title: str. Name of the source; class names differ between masks and boxes.
        layout: Layout. The annotations found.
        split: str. The split to read.
        read: callable. Returns the class names of that split.
    """
    if layout.class_names is not None:
        return layout.class_names
    first = next((name for name in SPLITS if name in layout.splits), split)

    def names():
        if first == split:
            return list(read())
        other = layout.splits[first]()
        return list(_used_labels(other.images) if other.class_names is None else other.class_names)

    kind = title.partition(":")[0]
    return tuple(cached_answer(f"classes of {layout.format} in {kind}", layout.files[first], names))


def _check_usable(title: str, annotations: Annotations, images: Sequence[tuple[str, str]]) -> None:
    """Warns about images, (path, fault), with unusable annotations.

    Raises:
        FileNotFoundError: if no image is found.
        ValueError: if the annotations of all images are unusable.
    """
    if not images:
        fix = ' Put images beside their annotations, or in a folder "images" next to that of the annotations.'
        raise FileNotFoundError(
            f'"{annotations.where}": no image can be used: {describe_ignored(annotations.ignored)}.'
            f"{fix if annotations.ignored.get(MISSING) else ''}"
        )
    faults = [(path, fault) for path, fault in images if fault]
    if not faults:
        return
    text = (
        f"{title}: the annotations of {counted(len(faults), 'image')} of {len(images):,} cannot be used, such as"
        f' those of "{faults[0][0]}": {faults[0][1]}.'
    )
    if len(faults) == len(images):
        raise ValueError(text)
    log_once(logging.WARNING, text)


def _common_folder(paths: Sequence[str]) -> str:
    """Returns the folder that contains all of these images."""
    folders = {os.path.dirname(path) for path in paths}
    return folders.pop() if len(folders) == 1 else os.path.dirname(os.path.commonprefix([f"{f}/" for f in folders]))


def _log_report(text: str, paths: Sequence[str], ignored: Ignored, layout: Layout) -> None:
    """Logs `text` about a split, where its images are, and what was changed or ignored in it.

    It is a warning unless that is expected.
    """
    place = _common_folder(paths)
    folders = {os.path.relpath(os.path.dirname(path), place) for path in paths} if len(layout.splits) == 1 else ()
    merged = merged_splits(folders)
    text += f"; images in {place}"
    text += f"; {merged}" if merged else ""
    used = {reason: names for reason, names in ignored.items() if names and reason in NOTED}
    lost = {reason: names for reason, names in ignored.items() if names and reason not in NOTED}
    text += f"; used: {describe_ignored(used)}" if used else ""
    text += f"; ignored: {describe_ignored(lost)}" if lost else ""
    loud = bool(used or merged) or any(not reason.expected for reason in lost)
    log_once(logging.WARNING if loud else logging.INFO, f"{text}.")


def _find_class_names(title, root, layout, split, annotations, classes) -> tuple[str, ...]:
    """Returns the class names of all splits: from the annotations, the file `classes`, labels.txt, or train.

    Raises:
        FileNotFoundError, ValueError: if there is no such file, or no image can be used.
    """
    folder = root if tf.io.gfile.isdir(root) else os.path.dirname(root)
    if annotations.class_names is not None:
        if classes and read_class_names(folder, classes) != annotations.class_names:
            raise ValueError(f'"{title}": remove classes={classes}: {annotations.where} already names the classes.')
        return _shared_class_names(title, layout, split, lambda: annotations.class_names)
    images = list(annotations.images)
    annotations.images = iter(images)
    _check_usable(title, annotations, [(image.path, image.fault) for image in images])
    return read_class_names(folder, classes) or _shared_class_names(title, layout, split, lambda: _used_labels(images))


def _advancing(images: Iterable[AnnotatedImage], work: Stage) -> Iterator[AnnotatedImage]:
    """Yields `images` and advances a stage for each."""
    for image in images:
        work.advance()
        yield image


def open_split(target: Any, layout: Layout, title: str, root: str, split: str, classes: str) -> RandomAccess:
    """Opens a split of annotations.

    Args:
        target: MaskTarget or BoxTarget. What the examples contain.
        layout: Layout. The annotations found.
        title: str. Name of the source.
        root: str. Its folder or file.
        split: str. A split, or a slice of its fixed random order.
        classes: str. The option: a file of class names, or "".

    Raises:
        FileNotFoundError: if no image is found.
        ValueError: if the annotations are unusable, or the split is missing.
    """
    name = find_split(f'"{root}"', split, layout.splits, f" in its {layout.format} annotations")
    with stage(f"Reading the annotations in {root}", unit="images") as work:
        annotations = layout.splits[name]()
        class_names = _find_class_names(title, root, layout, name, annotations, classes)
        annotations.images = _advancing(annotations.images, work)
        table = target.read(annotations, class_names)
    _check_usable(title, annotations, list(zip(table.paths, table.faults)))
    parse = target.parser(table)

    def source(rows):
        files, numbers = [table.paths[i] for i in rows], tf.constant(rows, tf.int64)
        columns = {"number": lambda i: numbers[i]}
        return source_of_files(title, target.class_names, None, files, columns, parse, **target.fields(table, rows))

    rows = fixed_shuffle(range(len(table.paths)))
    text = target.describe(f"{title}, {name}", table, lambda: source(rows), layout)
    _log_report(text, table.paths, annotations.ignored, layout)
    warn_about_orientation(title, table.paths, table.sizes)
    warn_about_names(title, target.class_names, target.needs_classes)
    return source(take_slice(split, rows))
