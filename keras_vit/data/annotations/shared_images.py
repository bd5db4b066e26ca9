"""Finds images that are in a data set twice: under two names, or in two splits."""

from collections.abc import Mapping, Sequence

from keras_vit.data.annotations import schema
from keras_vit.data.annotations.schema import Ignored
from keras_vit.data.sources.repeated_images import real_paths
from keras_vit.data.splits import SPLITS


def drop_repeated(paths: Sequence[str], ignored: Ignored) -> list[str]:
    """Keeps the first path of each real file; counts the others."""
    kept: dict[str, str] = {}
    for path, real in zip(paths, real_paths(paths)):
        if real in kept:
            ignored[schema.LISTED_AGAIN].append(path)
        kept.setdefault(real, path)
    return list(kept.values())


def count_shared(split: str, images: Mapping[str, Sequence[str]], ignored: Ignored) -> None:
    """Counts the images of a split that other splits have, too.

    Args:
        split: str. The split.
        images: dict. The image files of every split.
        ignored: dict that counts them.
    """
    paths = dict(zip(real_paths(images[split]), images[split]))
    others = [name for name in (*SPLITS, *images) if name in images and name != split]
    for other in dict.fromkeys(others):
        both = paths.keys() & set(real_paths(images[other]))
        ignored[schema.IN_SPLITS] += [f"{paths[path]} in {other}" for path in sorted(both)]
