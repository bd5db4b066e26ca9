"""LabelMe JSON: one file for each image, with the shapes of its regions.

    PATH/a.jpg and PATH/a.json, or PATH/train/..., PATH/val/...

Later shapes cover earlier ones, as in LabelMe's own exports. `__ignore__` is void and `_background_` the background
there, and here. Polygons, rectangles, circles and masks have an area; lines and points are left out and counted.
"""

import base64
import binascii
import collections
import functools
import io
import math
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit.data.annotations import files, form
from keras_vit.data.annotations.form import Annotations, Fault, Ignored, Layout, Picture, Region
from keras_vit.data.sources.image_files import ENDINGS, ending
from keras_vit.io.paths import in_threads
from keras_vit.io.suggest import listed

OVERLAPS = "later shapes above earlier ones"
_NO_AREA = ("line", "linestrip", "point", "points")
_FLAT = 0.05  # pixels between a circle and the polygon that stands for it


def is_labelme(path: str) -> bool:
    """Whether a JSON file looks like LabelMe's."""
    start = files.start_of(path)
    return '"shapes"' in start or '"imageData"' in start


def _json_files(folder):
    """All JSON files in a folder and below it, sorted."""
    try:
        found = [os.path.join(place, name) for place, _, names in tf.io.gfile.walk(folder) for name in names]
    except tf.errors.OpError:
        return []
    hidden = lambda path: os.path.relpath(path, folder).startswith(".") or "/." in path  # noqa: E731
    return sorted(path for path in found if path.lower().endswith(".json") and not hidden(path))


def find(path: str) -> Layout | None:
    """LabelMe annotations in a folder; None if its first JSON files are of another kind."""
    parts = files.folders_of_splits(path)
    folders = {split: found for split, folder in parts.items() if (found := _json_files(folder))}
    folders = folders or {"train": _json_files(path)}
    if not any(is_labelme(file) for found in folders.values() for file in found[:3]):
        return None
    readers = {split: functools.partial(read, parts.get(split, path), found) for split, found in folders.items()}
    return Layout("LabelMe", OVERLAPS, readers, folders)


def _circle(points):
    """A circle, given by its centre and a point on it, as a polygon."""
    (x, y), edge = points
    radius = math.hypot(edge[0] - x, edge[1] - y)
    corners = max(12, math.ceil(math.pi / math.sqrt(2 * _FLAT / max(radius, 1.0))))
    angle = np.arange(corners) * (2 * math.pi / corners)
    return np.stack([x + radius * np.cos(angle), y + radius * np.sin(angle)], -1)


def _rectangle(points):
    """Two opposite corners, or all four, as a polygon."""
    if len(points) != 2:
        return points
    (left, top), (right, bottom) = points.min(0), points.max(0)
    return np.array([[left, top], [right, top], [right, bottom], [left, bottom]])


def _of_count(shape, points, name):
    """The polygon of a shape.

    Raises:
        Fault: for a rectangle or circle of another number of points.
    """
    if shape == "polygon":
        return points
    valid = {"rectangle": (2, 4), "circle": (2,)}[shape]
    if len(points) not in valid:
        raise Fault(f"{name}: a {shape} has {' or '.join(map(str, valid))} points, not {len(points)}")
    return _rectangle(points) if shape == "rectangle" else _circle(points)


def _mask_runs(text, points, size, name):
    """The run lengths of a shape "mask": a PNG in base64, whose corners are two points of the image.

    Raises:
        Fault: if it cannot be read, or does not fit into the image.
    """
    from PIL import Image

    try:
        inside = np.asarray(Image.open(io.BytesIO(base64.b64decode(text, validate=True)), formats=("PNG",))) > 0
    except (OSError, TypeError, binascii.Error):
        raise Fault(f"{name}: its mask should be a PNG in base64, and cannot be read") from None
    if size is None or inside.ndim != 2 or not len(points):
        raise Fault(f"{name}: a mask needs the image's imageHeight and imageWidth, its points, and grey pixels")
    left, top = (int(value) for value in np.round(points.min(0)))
    height, width = inside.shape
    if left < 0 or top < 0 or top + height > size[0] or left + width > size[1]:
        raise Fault(f"{name}: a mask of {height} x {width} at {top}, {left} does not fit into its image of {size}")
    whole = np.zeros(size, bool)
    whole[top : top + height, left : left + width] = inside
    flat = whole.T.reshape(-1)  # (h, w) -> (w * h)
    bounds = np.flatnonzero(np.diff(flat)) + 1
    counts = np.diff([0, *([0] if flat[0] else []), *bounds, flat.size])
    return np.append(counts, [0] * (len(counts) % 2))


def _region(shape, number, size, ignored, path) -> Region | None:
    """A Region of one shape; None for one without an area.

    Raises:
        Fault: if it is malformed.
    """
    if not isinstance(shape, dict):
        raise Fault(f"shape {number} should be an object, got {str(shape)[:60]}")
    label, kind = str(shape.get("label") or "").strip(), shape.get("shape_type") or "polygon"
    name = f"shape {number} ({label})"
    if not label:
        raise Fault(f"shape {number} has no label")
    if kind in _NO_AREA:
        ignored[form.NOT_AN_AREA].append(f"{kind} {number} of {path}")
        return None
    if kind not in ("polygon", "rectangle", "circle", "mask"):
        raise Fault(f'{name} has the shape_type "{kind}"; expected polygon, rectangle, circle or mask')
    pairs = shape.get("points")
    if not isinstance(pairs, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        raise Fault(f"{name}: expected points as pairs [x, y], got {str(pairs)[:60]}")
    points = form.polygon([value for pair in pairs for value in pair], name)
    if kind == "mask":
        return Region(label, name, (), _mask_runs(shape.get("mask"), points, size, name))
    polygon = _of_count(kind, points, name)
    box = None
    if kind == "rectangle":
        (left, top), (right, bottom) = polygon.min(0).tolist(), polygon.max(0).tolist()
        box = (top, left, bottom, right)
    return Region(label, name, form.with_area([polygon], f"{name} of {path}", ignored), None, box)


def _image_of(path, content, existing):
    """The path of a JSON file's image, where it should be if it is missing."""
    folder, name = os.path.split(path)
    stem, stated = os.path.splitext(name)[0], str(content.get("imagePath") or "").replace("\\", "/")
    places = [os.path.join(folder, stem + end) for end in ENDINGS if stem + end in existing.names(folder)]
    if stated:
        base, above = os.path.basename(stated), os.path.join(os.path.dirname(folder), "images")
        places = [os.path.join(place, base) for place in (folder, above)] + places
        whole = os.path.join(folder, stated)
        places.insert(0, whole if "://" in folder else os.path.normpath(whole))
    return next(
        (place for place in places if place in existing), os.path.join(folder, os.path.basename(stated) or stem)
    )


def _picture(path, content, existing, ignored) -> Picture | None:
    """The Picture of one JSON file; None if its image is missing."""
    image = _image_of(path, content, existing)
    if image not in existing:
        embedded = (
            " (it is only inside of the JSON, as imageData: save it beside it)" if content.get("imageData") else ""
        )
        ignored[form.MISSING].append(f"{image}{embedded}")
        return None
    shapes, (height, width) = content.get("shapes"), (content.get("imageHeight"), content.get("imageWidth"))
    size = (height, width) if isinstance(height, int) and isinstance(width, int) else None
    if not isinstance(shapes, list):
        return Picture(image, size, [], f'"{path}" has no list "shapes"')
    try:
        regions = [_region(shape, number, size, ignored, image) for number, shape in enumerate(shapes, 1)]
    except Fault as fault:
        return Picture(image, size, [], f'"{path}": {fault}')
    picture = Picture(image, size, [region for region in regions if region is not None])
    return form.checked(picture, ignored, fractions=False)


def _parsed(path) -> dict[str, Any] | ValueError:
    try:
        return files.read_json(path)
    except ValueError as error:
        return error


def _pictures(paths, ignored, read_all: Callable) -> Iterator[Picture]:
    """The Picture of each JSON file whose image exists.

    Raises:
        ValueError: for a file that is not JSON, and for two files of one image.
    """
    existing, owner = files.Existing(), {}
    for start in range(0, len(paths), 256):
        part = paths[start : start + 256]
        for path, content in zip(part, read_all(_parsed, part)):
            if isinstance(content, ValueError):
                raise content
            picture = _picture(path, content, existing, ignored)
            if picture is None:
                continue
            if picture.path in owner:
                raise ValueError(f'"{owner[picture.path]}" and "{path}" annotate the same image, "{picture.path}".')
            owner[picture.path] = path
            yield picture
    for folder in sorted({os.path.dirname(path) for path in owner}):
        names = sorted(name for name in existing.names(folder) if ending(name) in ENDINGS)
        ignored[form.NOT_LISTED] += [path for name in names if (path := os.path.join(folder, name)) not in owner]


def read(folder: str, paths: list[str]) -> Annotations:
    """The annotations in LabelMe's JSON files; class names are those of the shapes.

    Args:
        folder: that holds them.
        paths: of the files.

    Raises:
        ValueError: if one of them is COCO's.
    """
    others = [path for path in paths[:3] if not is_labelme(path)]
    if others:
        raise ValueError(f'"{folder}" holds LabelMe\'s JSON files and others, such as {listed(others)}: separate them.')
    ignored: Ignored = collections.defaultdict(list)
    return Annotations(_pictures(paths, ignored, in_threads), None, False, folder, ignored)
