"""Finds huge image files and copies before decoding. It reads every file, so only prepare and deduplicate call it."""

import collections
import hashlib
import heapq
import os
from collections.abc import Sequence

from absl import logging

from keras_vit.data.ops.headers import LARGE
from keras_vit.data.sources.base import RandomAccess, Source
from keras_vit.data.sources.image_files import format_inside, opened
from keras_vit.data.sources.written_table import image_files
from keras_vit.io.paths import in_threads
from keras_vit.io.progress import stage
from keras_vit.io.suggest import counted, listed

_LARGEST = 100  # files, in bytes, whose size in pixels is checked
_SAMPLE = 4096  # bytes compared first


def _bytes(path):
    """A file's length; None if empty or gone."""
    try:
        return os.stat(path).st_size or None
    except OSError:
        return None


def _sample(path):
    """A few bytes from a file's middle; None if unreadable."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size // 2 - _SAMPLE // 2))
            return file.read(_SAMPLE)
    except OSError:
        return None


def _digest(path):
    """A file's hash; None if unreadable."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError:
        return None


def _finer(groups, key):
    """Groups of paths, divided by key(path); drops paths with key None and paths left alone."""
    members = [(number, path) for number, group in enumerate(groups) for path in group]
    finer = collections.defaultdict(list)
    for (number, path), value in zip(members, in_threads(key, [path for _, path in members])):
        if value is not None:
            finer[number, value].append(path)
    return [group for group in finer.values() if len(group) > 1]


def copies(paths: Sequence[str]) -> list[list[str]]:
    """Groups of non-empty files with equal contents, in the order of `paths`."""
    groups = [list(dict.fromkeys(paths))]
    for key in (_bytes, _sample, _digest):
        groups = _finer(groups, key)
    return groups


def pixel_size(path: str) -> tuple[int, int] | None:
    """An image's (width, height) by its header; None if illegible."""
    try:
        with opened(path, format_inside(path)) as image:
            return image.size
    except Exception:  # Pillow raises errors of any kind; decoding reports damage
        return None


def giants(paths: Sequence[str]) -> dict[str, tuple[int, int]]:
    """{path: (width, height)} of images above LARGE pixels, slow to decode, among the largest files."""
    if len(paths) > _LARGEST:
        lengths = [length or 0 for length in in_threads(_bytes, paths)]
        paths = [path for _, path in heapq.nlargest(_LARGEST, zip(lengths, paths))]
    sizes = {path: pixel_size(path) for path in paths}
    return {path: size for path, size in sizes.items() if size and size[0] * size[1] > LARGE}


def warn_of_files(*sources: Source) -> None:
    """Warns about huge images and identical files among the sources' image files, by name. Skips files in buckets."""
    with_files = [source for source in sources if isinstance(source, RandomAccess) and source.names is not None]
    paths = [path for source in with_files for path in image_files(source) if "://" not in path]
    with stage("Looking for huge images and copies"):
        huge, same = giants(paths), copies(paths)
    if huge:
        shown = [f"{path} ({width} x {height})" for path, (width, height) in huge.items()]
        logging.warning(
            "%s of more than %s pixels, slow to decode every time: %s. Shrink them, or all images at once: keras-vit"
            " prepare --resize=512.",
            *(counted(len(huge), "image"), f"{LARGE:,}", listed(shown)),
        )
    if same:
        logging.warning(
            "%s with the same contents as another, such as %s. What is trained on may be in the evaluation too, or in"
            " two classes.",
            *(counted(sum(len(group) - 1 for group in same), "file"), " = ".join(same[0][:2])),
        )
