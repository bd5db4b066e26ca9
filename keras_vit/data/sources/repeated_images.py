"""Images with several rows in a table: a slice holds all rows of an image or none, so no image is on both sides."""

import os
from collections.abc import Sequence

import numpy as np

from keras_vit.io.paths import in_threads


def _links_in(folder):
    """Lists the names of links in a local folder; none if it does not exist."""
    try:
        with os.scandir(folder) as entries:
            return {entry.name for entry in entries if entry.is_symlink()}
    except OSError:
        return set()


def real_paths(paths: Sequence[str]) -> list[str]:
    """Resolves links and spellings such as "./a.jpg", so that a file has one path. Lists folders, not single files."""
    folders = sorted({os.path.dirname(path) for path in paths if "://" not in path})
    real = dict(zip(folders, in_threads(os.path.realpath, folders)))
    links = dict(zip(folders, in_threads(lambda folder: _links_in(folder or "."), folders)))

    def resolved(path):
        folder, name = os.path.split(path)
        if folder not in real:
            return path
        return os.path.realpath(path) if name in links[folder] else os.path.join(real[folder], name)

    return [resolved(path) for path in paths]


def image_numbers(files: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Numbers the images of rows with these files: (each row's image (n,), each image's first row (m,)), int64."""
    number: dict[str, int] = {}
    images = np.array([number.setdefault(file, len(number)) for file in files], "int64")
    return images, np.unique(images, return_index=True)[1]


def select_rows(images: np.ndarray, chosen: Sequence[int]) -> np.ndarray:
    """Returns the rows of the `chosen` images, in their order; `images` (n,) is each row's image."""
    by_image, counts = np.argsort(images, kind="stable"), np.bincount(images)
    if len(counts) == len(images):
        return by_image[chosen]
    ends = np.cumsum(counts)
    return np.concatenate([by_image[ends[i] - counts[i] : ends[i]] for i in chosen])
