"""Reads class names in label order from a file next to the data, and finds names that look alike."""

import collections
import unicodedata
from collections.abc import Sequence

import tensorflow as tf
from absl import logging

from keras_vit.io.logs import log_once
from keras_vit.io.paths import locate, read_text


def read_class_names(folder: str, choice: str) -> tuple[str, ...] | None:
    """Returns class names from a number of classes, or from a file with one name per line.

    Args:
        folder: str. Folder of the data.
        choice: str. "1000" or "names.txt", relative to the folder; "" for its labels.txt, if any.

    Returns:
        Names in label order; None if `choice` is "" and there is no labels.txt.

    Raises:
        FileNotFoundError: if the named file does not exist.
        ValueError: if it is empty or repeats a name.
    """
    if choice.isdecimal():
        return tuple(str(i) for i in range(int(choice)))
    path = locate(choice or "labels.txt", folder)
    if not choice and not tf.io.gfile.exists(path):
        return None
    names = tuple(unicodedata.normalize("NFC", line.strip()) for line in read_text(path).splitlines() if line.strip())
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if not names or twice:
        raise ValueError(
            f'"{path}": expected one class name per line, got {f"{twice[:5]} twice" if twice else "an empty file"}.'
        )
    return names


def check_first_label(text: str, first: str) -> None:
    """Raises ValueError unless the option first_label= of a source's `text` is an integer, or ""."""
    if first and not first.isdecimal():
        raise ValueError(f'"{text}": first_label={first}: expected an integer, such as 1.')


def _alike(names):
    """Groups names that differ only in case, spaces or Unicode form."""
    groups = collections.defaultdict(list)
    for name in names:
        groups[" ".join(unicodedata.normalize("NFKC", name).casefold().split())].append(name)
    return [group for group in groups.values() if len(group) > 1]


def warn_about_names(source: str, names: Sequence[str], needs_classes: bool = True) -> None:
    """Warns about a source's class names: a single class, unless one is enough, and names that look alike."""
    if len(names) == 1 and needs_classes:
        text = f'{source}: all images have the same class, "{names[0]}": there is nothing to classify.'
        log_once(logging.WARNING, text)
    for group in _alike(names):
        text = f"{source}: these classes differ only in case or spaces: {', '.join(map(repr, group))}."
        log_once(logging.WARNING, text)
