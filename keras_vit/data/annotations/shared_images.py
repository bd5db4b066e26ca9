"""Finds images that are in a data set twice: under two names, or in two splits."""

import os
from collections.abc import Iterable, Mapping, Sequence

from keras_vit.data.annotations import form
from keras_vit.data.annotations.form import Ignored
from keras_vit.data.splits import SPLITS


def real_paths(paths: Iterable[str]) -> list[str]:
    """Resolves links, which buckets lack; one system call for an image, and one for its folder."""
    folders: dict[str, str] = {}

    def real(path):
        if "://" in path:
            return path
        folder, name = os.path.split(path)
        if folder not in folders:
            folders[folder] = os.path.realpath(folder)
        whole = os.path.join(folders[folder], name)
        return os.path.realpath(whole) if os.path.islink(whole) else whole

    return [real(path) for path in paths]


def once(paths: Sequence[str], ignored: Ignored) -> list[str]:
    """Keeps the first path of each real file; counts the others."""
    kept: dict[str, str] = {}
    for path, real in zip(paths, real_paths(paths)):
        if real in kept:
            ignored[form.LISTED_AGAIN].append(path)
        kept.setdefault(real, path)
    return list(kept.values())


def count_shared(split: str, images: Mapping[str, Sequence[str]], ignored: Ignored) -> None:
    """Counts the images of a split that other splits have, too.

    Args:
        split: str. The split.
        images: dict. The image files of every split.
        ignored: dict that counts them.
    """
    own = dict(zip(real_paths(images[split]), images[split]))
    others = [name for name in (*SPLITS, *images) if name in images and name != split]
    for other in dict.fromkeys(others):
        both = own.keys() & set(real_paths(images[other]))
        ignored[form.IN_SPLITS] += [f"{own[path]} in {other}" for path in sorted(both)]
