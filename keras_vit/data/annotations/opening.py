"""Steps to open a source of annotations, for masks and boxes: find the split and class names, and report faults."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence

import tensorflow as tf
from absl import logging

from keras_vit.data.annotations.form import MISSING, NOTED, Annotations, Ignored, Layout, Picture
from keras_vit.data.sources.classes_file import class_names
from keras_vit.data.sources.tree import listing
from keras_vit.data.splits import SPLITS, MissingSplit, canonical, merged_splits, split_name
from keras_vit.io.cache import cached_answer
from keras_vit.io.logs import log_once
from keras_vit.io.progress import Stage
from keras_vit.io.suggest import counted


def asked_split(layout: Layout, split: str, root: str) -> str:
    """Returns the standard name of the split in `split`, which may be a slice.

    Raises:
        MissingSplit: if the annotations have no such split.
    """
    asked = canonical(split_name(split))
    if asked not in layout.splits:
        raise MissingSplit(
            f'"{root}" has no split "{asked}" in its {layout.format} annotations. Valid: {", ".join(layout.splits)},'
            f' and slices such as "{next(iter(layout.splits))}[80%:]".',
            layout.splits,
        )
    return asked


def _used_names(pictures):
    """Sorts the classes of regions."""
    return tuple(sorted({region.label for picture in pictures for region in picture.regions}))


def _declared(title: str, layout: Layout, split: str, own: Callable[[], Sequence[str]]) -> tuple[str, ...]:
    """Returns the class names of train, which all splits share.

    Args:
        title: str. Name of the source; class names differ between masks and boxes.
        layout: Layout. The annotations found.
        split: str. The split to read.
        own: callable. Returns the class names of that split.
    """
    if layout.class_names is not None:
        return layout.class_names
    known_by = next((name for name in SPLITS if name in layout.splits), split)

    def names():
        if known_by == split:
            return list(own())
        other = layout.splits[known_by]()
        return list(_used_names(other.pictures) if other.class_names is None else other.class_names)

    return tuple(
        cached_answer(f"classes of {layout.format} in {title.partition(':')[0]}", layout.files[known_by], names)
    )


def check_some(title: str, annotations: Annotations, pictures: Sequence[tuple[str, str]]) -> None:
    """Warns about images with unusable annotations.

    Args:
        title: str. Name of the source.
        annotations: Annotations of a split.
        pictures: sequence of (path, fault).

    Raises:
        FileNotFoundError: if no image is found.
        ValueError: if the annotations of all images are unusable.
    """
    if not pictures:
        fix = ' Put images beside their annotations, or in a folder "images" next to that of the annotations.'
        raise FileNotFoundError(
            f'"{annotations.where}": no image can be used: {listing(annotations.ignored)}.'
            f"{fix if annotations.ignored.get(MISSING) else ''}"
        )
    faults = [(path, fault) for path, fault in pictures if fault]
    if not faults:
        return
    text = (
        f"{title}: the annotations of {counted(len(faults), 'image')} of {len(pictures):,} cannot be used, such as"
        f' those of "{faults[0][0]}": {faults[0][1]}.'
    )
    if len(faults) == len(pictures):
        raise ValueError(text)
    log_once(logging.WARNING, text)


def place_of(paths: Sequence[str]) -> str:
    """Returns the folder that contains all of these images."""
    folders = {os.path.dirname(path) for path in paths}
    return folders.pop() if len(folders) == 1 else os.path.dirname(os.path.commonprefix([f"{f}/" for f in folders]))


def report(text: str, paths: Sequence[str], ignored: Ignored, layout: Layout) -> None:
    """Logs `text` about a split, where its images are, and what was changed or ignored in it.

    It is a warning unless that is expected.
    """
    place = place_of(paths)
    folders = {os.path.relpath(os.path.dirname(path), place) for path in paths} if len(layout.splits) == 1 else ()
    merged = merged_splits(folders)
    text += f"; images in {place}"
    text += f"; {merged}" if merged else ""
    used = {reason: names for reason, names in ignored.items() if names and reason in NOTED}
    lost = {reason: names for reason, names in ignored.items() if names and reason not in NOTED}
    text += f"; used: {listing(used)}" if used else ""
    text += f"; ignored: {listing(lost)}" if lost else ""
    loud = bool(used or merged) or any(not reason.expected for reason in lost)
    log_once(logging.WARNING if loud else logging.INFO, f"{text}.")


def names_of(
    title: str, root: str, layout: Layout, split: str, annotations: Annotations, classes: str
) -> tuple[str, ...]:
    """Returns the class names of all splits: from the annotations, the file `classes`, labels.txt, or train.

    Args:
        title: str. Name of the source.
        root: str. Its folder or file.
        layout: Layout. The annotations found.
        split: str. The split to read.
        annotations: Annotations of that split.
        classes: str. The option, or "".

    Raises:
        FileNotFoundError, ValueError: if there is no such file, or no image can be used.
    """
    folder = root if tf.io.gfile.isdir(root) else os.path.dirname(root)
    if annotations.class_names is not None:
        if classes and class_names(folder, classes) != annotations.class_names:
            raise ValueError(f'"{title}": remove classes={classes}: {annotations.where} already names the classes.')
        return _declared(title, layout, split, lambda: annotations.class_names)
    pictures = list(annotations.pictures)
    annotations.pictures = iter(pictures)
    check_some(title, annotations, [(picture.path, picture.fault) for picture in pictures])
    return class_names(folder, classes) or _declared(title, layout, split, lambda: _used_names(pictures))


def advancing(pictures: Iterable[Picture], work: Stage) -> Iterator[Picture]:
    """Yields `pictures` and advances a stage for each."""
    for picture in pictures:
        work.advance()
        yield picture
