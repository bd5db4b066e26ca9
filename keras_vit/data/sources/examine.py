"""What can be said of image files on this machine before they are decoded: which are huge, and which are copies of
others.
"""

import collections
import hashlib
import heapq
import os
from collections.abc import Sequence

from keras_vit.data.ops.decode import LARGE
from keras_vit.data.sources.ignored import counted, listed
from keras_vit.data.sources.image_files import format_of, opened
from keras_vit.io.paths import in_threads

MOST = 50_000  # files that are examined; `trainers.deduplicate` takes any number
_LARGEST = 100  # files, in bytes, whose size in pixels is looked up
_SAMPLE = 4096  # bytes that are compared first


def _bytes(path):
    """The length of a file; None if it is empty or gone."""
    try:
        return os.stat(path).st_size or None
    except OSError:
        return None


def _sample(path):
    """A few bytes from the middle of a file; None if it cannot be read."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size // 2 - _SAMPLE // 2))
            return file.read(_SAMPLE)
    except OSError:
        return None


def _digest(path):
    """A hash of a file; None if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError:
        return None


def _finer(groups, key):
    """Groups of paths, divided by key(path); without paths whose key is None, and those that are then alone."""
    members = [(number, path) for number, group in enumerate(groups) for path in group]
    finer = collections.defaultdict(list)
    for (number, path), value in zip(members, in_threads(key, [path for _, path in members])):
        if value is not None:
            finer[number, value].append(path)
    return [group for group in finer.values() if len(group) > 1]


def copies(paths: Sequence[str]) -> list[list[str]]:
    """Files with the same contents, in groups, in the order of `paths`. Empty files, files in buckets and more than
    MOST are not compared.
    """
    groups = [[path for path in paths if "://" not in path]] if len(paths) <= MOST else []
    for key in (_bytes, _sample, _digest):
        groups = _finer(groups, key)
    return groups


def _pixels(path):
    """(width, height) of an image by its header; None if that is not legible."""
    try:
        with opened(path, format_of(path)) as image:
            return image.size
    except Exception:  # Pillow raises errors of any kind; decoding names what is damaged
        return None


def giants(paths: Sequence[str]) -> dict[str, tuple[int, int]]:
    """{path: (width, height)} of the images of more than LARGE pixels, slow to decode. Looks at the largest of at most
    MOST files.
    """
    paths = [path for path in paths if "://" not in path]
    if len(paths) > MOST:
        return {}
    if len(paths) > _LARGEST:
        lengths = [length or 0 for length in in_threads(_bytes, paths)]
        paths = [path for _, path in heapq.nlargest(_LARGEST, zip(lengths, paths))]
    sizes = {path: _pixels(path) for path in paths}
    return {path: size for path, size in sizes.items() if size and size[0] * size[1] > LARGE}


def warnings_of(name: str, paths: Sequence[str]) -> list[str]:
    """What a user should know of the files of the source `name`: huge images and copies, each named."""
    texts, huge, same = [], giants(paths), copies(paths)
    if huge:
        shown = [f"{path} ({width} x {height})" for path, (width, height) in huge.items()]
        texts.append(
            f"{name}: {counted(len(huge), 'image')} of more than {LARGE:,} pixels, slow to decode every time:"
            f" {listed(shown)}. Shrink them, or all images at once: keras-vit prepare --resize=512."
        )
    if same:
        again = counted(sum(len(group) - 1 for group in same), "file")
        texts.append(
            f"{name}: {again} with the same contents as another, such as {' = '.join(same[0][:2])}. What is trained on"
            " may be in the evaluation too, or in two classes: see keras-vit deduplicate."
        )
    return texts
