"""Finds huge images and duplicate files before decoding. Reads every file, so only prepare and deduplicate use it."""

import collections
import hashlib
import heapq
import os
from collections.abc import Sequence

from absl import logging

from keras_vit.data.ops.headers import LARGE
from keras_vit.data.sources.base import RandomAccess, Source
from keras_vit.data.sources.image_files import read_header
from keras_vit.data.sources.written_table import image_files
from keras_vit.io.paths import in_threads
from keras_vit.io.progress import stage
from keras_vit.io.suggest import counted, listed

_LARGEST = 100  # largest files, in bytes, for which the pixels are counted
_SAMPLE = 4096  # bytes to compare first


def _bytes(path):
    """Returns a file's length; None if it is empty or missing."""
    try:
        return os.stat(path).st_size or None
    except OSError:
        return None


def _sample(path):
    """Reads a few bytes from a file's middle; None if unreadable."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size // 2 - _SAMPLE // 2))
            return file.read(_SAMPLE)
    except OSError:
        return None


def _digest(path):
    """Hashes a file; None if unreadable."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError:
        return None


def _finer(groups, key):
    """Divides groups of paths by key(path); drops paths with key None and groups of one."""
    members = [(number, path) for number, group in enumerate(groups) for path in group]
    finer = collections.defaultdict(list)
    for (number, path), value in zip(members, in_threads(key, [path for _, path in members])):
        if value is not None:
            finer[number, value].append(path)
    return [group for group in finer.values() if len(group) > 1]


def duplicate_files(paths: Sequence[str]) -> list[list[str]]:
    """Groups non-empty files with equal contents, in the order of `paths`."""
    groups = [list(dict.fromkeys(paths))]
    for key in (_bytes, _sample, _digest):
        groups = _finer(groups, key)
    return groups


def huge_images(paths: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Finds images above LARGE pixels, which decode slowly, among the largest files: {path: (height, width)}."""
    if len(paths) > _LARGEST:
        lengths = [length or 0 for length in in_threads(_bytes, paths)]
        paths = [path for _, path in heapq.nlargest(_LARGEST, zip(lengths, paths))]
    sizes = {path: header[0] for path in paths if (header := read_header(path))}
    return {path: size for path, size in sizes.items() if size[0] * size[1] > LARGE}


def warn_of_files(*sources: Source) -> None:
    """Warns about huge images and duplicate files of the sources, by name. Skips files in buckets."""
    with_files = [source for source in sources if isinstance(source, RandomAccess) and source.names is not None]
    paths = [path for source in with_files for path in image_files(source) if "://" not in path]
    with stage("Looking for huge images and copies"):
        huge, same = huge_images(paths), duplicate_files(paths)
    if huge:
        shown = [f"{path} ({width} x {height})" for path, (height, width) in huge.items()]
        logging.warning(
            "%s of more than %s pixels, slow to decode every time: %s. Shrink them, or shrink all images with keras-vit"
            " prepare --resize=512.",
            *(counted(len(huge), "image"), f"{LARGE:,}", listed(shown)),
        )
    if same:
        logging.warning(
            "%s with the same contents as another, such as %s. A training image may also be an evaluation image, or"
            " belong to two classes.",
            *(counted(sum(len(group) - 1 for group in same), "file"), " = ".join(same[0][:2])),
        )
