"""Annotations in one file for each image: which image a file belongs to."""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from keras_vit.data.annotations import files, form
from keras_vit.data.annotations.form import Ignored, Picture
from keras_vit.data.sources.image_files import ENDINGS, ending
from keras_vit.io.paths import in_threads

_AT_A_TIME = 256  # files


def image_of(path: str, stated: str, existing: files.Existing, folders: Sequence[str], by_name: bool = False) -> str:
    """The path of the image of a file of annotations, where it should be if it is missing.

    Args:
        path: of the file.
        stated: the image's path, as the file states it; "" without one.
        existing: which files exist.
        folders: names of folders beside the file's own, which may hold images.
        by_name: whether an image of the file's own name comes before the stated one.
    """
    folder, name = os.path.split(path)
    stem, stated = os.path.splitext(name)[0], stated.replace("\\", "/")
    places = [folder, *(os.path.join(os.path.dirname(folder), beside) for beside in folders)]
    whole = os.path.join(folder, stated)
    of_stated = [os.path.join(place, os.path.basename(stated)) for place in places] if stated else []
    of_stated = [whole if "://" in folder else os.path.normpath(whole), *of_stated] if stated else []
    searched = places if by_name else places[:1]
    of_name = [os.path.join(place, stem + end) for place in searched for end in _endings(stem, existing.names(place))]
    choices = of_name + of_stated if by_name else of_stated + of_name
    missing = os.path.join(folder, os.path.basename(stated) or stem)
    return next((choice for choice in choices if choice in existing), missing)


def _endings(stem, names):
    """The endings, as they are spelled, of the images with this name."""
    return [end for kind in ENDINGS for end in (kind, kind.upper()) if stem + end in names]


def pictures(
    paths: Sequence[str],
    parse: Callable[[str], Any],
    picture: Callable[[str, Any, files.Existing], Picture | None],
    ignored: Ignored | None,
) -> Iterator[Picture]:
    """The Picture of each file, of which many are read together.

    Args:
        paths: of the files.
        parse: path -> its contents.
        picture: path, contents, which files exist -> the Picture; None to leave it out.
        ignored: counts images without a file beside those with one; None where they belong to other splits.

    Raises:
        ValueError: for two files of one image; as `parse`.
    """
    existing, owner = files.Existing(), {}
    for start in range(0, len(paths), _AT_A_TIME):
        part = paths[start : start + _AT_A_TIME]
        for path, content in zip(part, in_threads(parse, part)):
            found = picture(path, content, existing)
            if found is None:
                continue
            if found.path in owner:
                raise ValueError(f'"{owner[found.path]}" and "{path}" annotate the same image, "{found.path}".')
            owner[found.path] = path
            yield found
    for folder in () if ignored is None else sorted({os.path.dirname(path) for path in owner}):
        names = sorted(name for name in existing.names(folder) if ending(name) in ENDINGS)
        ignored[form.NOT_LISTED] += [path for name in names if (path := os.path.join(folder, name)) not in owner]
