"""Matches annotation files with images, for formats with one file per image."""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from keras_vit.data.annotations import annotation_files, schema
from keras_vit.data.annotations.schema import AnnotatedImage, Ignored
from keras_vit.data.sources.image_files import ENDINGS, ending
from keras_vit.io.paths import in_threads
from keras_vit.io.suggest import listed

_AT_A_TIME = 256  # files
_LEVELS = 3  # of subfolders of annotations that the images' folder may have, too


def _places(folder, beside, root):
    """Lists the folders that may contain the images of annotation files in `folder`.

    These are the folder itself, those named `beside` next to it, and next to the folders above, up to `root`, with the
    same subfolders, or without them: images/a, or images, for annotations/a.
    """
    places = [folder]
    for above in annotation_files.parent_folders(folder, root)[1 : _LEVELS + 1]:
        inside = os.path.relpath(folder, above).partition(os.sep)[2]
        places += [os.path.join(above, other, inside).rstrip("/") for other in beside]
    places += [
        os.path.join(above, other)
        for above in annotation_files.parent_folders(folder, root)[1 : _LEVELS + 1]
        for other in beside
    ]
    return [*dict.fromkeys(places), *(os.path.join(folder, other) for other in beside)]


def _image_with_stem(path, stem, stated, places, existing):
    """Returns the image with the annotation file's name; of several the stated one. "" without any.

    Raises:
        ValueError: if it is unclear which one is meant.
    """
    for place in places:
        found = [os.path.join(place, stem + end) for end in _endings(stem, existing.names(place))]
        chosen = [image for image in found if os.path.basename(image) == os.path.basename(stated)] or found
        if len(chosen) > 1:
            names = listed([os.path.basename(image) for image in chosen])
            raise ValueError(
                f'"{path}": its image could be any of {names} in "{place}", and it names'
                f" {stated or 'none'}. Write the image's name into it, or remove the other images."
            )
        if chosen:
            return chosen[0]
    return ""


def find_image(
    path: str,
    stated: str,
    existing: annotation_files.FileIndex,
    folders: Sequence[str],
    root: str,
    by_name: bool = False,
) -> str:
    """Returns the path of an annotation file's image, or its expected path if it is missing.

    Args:
        path: str. Path of the annotation file.
        stated: str. Image path stated in the file, or "".
        existing: FileIndex. The files that exist.
        folders: sequence of str. Names of folders beside that may contain images, as in `_places`.
        root: str. The folder that was opened, outside of which images belong to other data.
        by_name: bool. Whether an image with the file's name takes precedence over the stated path.

    Raises:
        ValueError: if images with the file's name differ in their extension, and none is stated.
    """
    folder, name = os.path.split(path)
    stem, stated = os.path.splitext(name)[0], stated.replace("\\", "/")
    places = _places(folder, folders, root)
    whole = os.path.join(folder, stated)
    stated_paths = [os.path.join(place, os.path.basename(stated)) for place in places] if stated else []
    stated_paths = [whole if "://" in folder else os.path.normpath(whole), *stated_paths] if stated else []
    found = next((image for image in stated_paths if image in existing), "")
    if by_name or not found:
        same_stem = _image_with_stem(path, stem, stated, places if by_name else places[:1], existing)
        found = same_stem or found
    return found or os.path.join(folder, os.path.basename(stated) or stem)


def _endings(stem, names):
    """Lists the extensions, as spelled, of the images with this name."""
    return [end for kind in ENDINGS for end in (kind, kind.upper(), kind.title()) if stem + end in names]


def read_sidecars(
    paths: Sequence[str],
    parse: Callable[[str], Any],
    read: Callable[[str, Any, annotation_files.FileIndex], AnnotatedImage | None],
    ignored: Ignored | None,
) -> Iterator[AnnotatedImage]:
    """Yields the AnnotatedImage of each file; reads many files at a time.

    Args:
        paths: sequence of str. Annotation files.
        parse: callable. Maps a path to its contents.
        read: callable. Maps (path, contents, FileIndex) to an AnnotatedImage, or None to skip it.
        ignored: dict that counts images without annotations next to annotated images; None if they belong to other
            splits.

    Raises:
        ValueError: if two files annotate one image; see also `parse`.
    """
    existing, owner = annotation_files.FileIndex(), {}
    for start in range(0, len(paths), _AT_A_TIME):
        part = paths[start : start + _AT_A_TIME]
        for path, content in zip(part, in_threads(parse, part)):
            found = read(path, content, existing)
            if found is None:
                continue
            if found.path in owner:
                raise ValueError(
                    f'"{owner[found.path]}" and "{path}" annotate the same image, "{found.path}". Remove one.'
                )
            owner[found.path] = path
            yield found
    for folder in () if ignored is None else sorted({os.path.dirname(path) for path in owner}):
        names = sorted(name for name in existing.names(folder) if ending(name) in ENDINGS)
        ignored[schema.NOT_LISTED] += [path for name in names if (path := os.path.join(folder, name)) not in owner]
