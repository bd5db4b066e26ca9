"""LabelMe JSON: one file per image, with the shapes of its regions.

    PATH/a.jpg and PATH/a.json, or PATH/train/..., PATH/val/...

As in LabelMe's exports, later shapes cover earlier ones, `__ignore__` is void and `_background_` is the background.
Polygons, rectangles, circles and masks have an area; lines and points are dropped and counted. Shapes of one label and
group_id are parts of one object, with one box.
"""

import base64
import binascii
import collections
import functools
import io
import math

import numpy as np

from keras_vit.data.annotations import annotation_files, run_lengths, schema, sidecars
from keras_vit.data.annotations.schema import AnnotatedImage, Annotations, Fault, Ignored, Layout, Region
from keras_vit.io.suggest import counted, listed

OVERLAPS = "later shapes above earlier ones"
_NO_AREA = ("line", "linestrip", "point", "points")
_POLYGONS = ("polygon", "rotation")  # the latter: X-AnyLabeling's turned rectangles
_FLAT = 0.05  # pixels between a circle and its polygon


def is_labelme(path: str) -> bool:
    """Whether a JSON file looks like LabelMe's."""
    start = annotation_files.read_start(path)
    return '"shapes"' in start or '"imageData"' in start


def find(path: str, boxes: bool = False) -> Layout | None:
    """Finds LabelMe annotations in a folder; None if its first JSON files have another format.

    Args:
        path: str. Folder, local or in a bucket.
        boxes: bool. Whether to read boxes instead of outlined regions.
    """
    parts, folders = annotation_files.split_folders(path), annotation_files.files_by_split(path, ".json")
    if not any(is_labelme(file) for found in folders.values() for file in found[:3]):
        return None
    readers = {
        split: functools.partial(read, parts.get(split, path), found, boxes, path) for split, found in folders.items()
    }
    return Layout("LabelMe", OVERLAPS, readers, folders)


def _circle(points):
    """Converts a circle, given by its centre and a point on it, to a polygon."""
    (x, y), edge = points
    radius = math.hypot(edge[0] - x, edge[1] - y)
    corners = max(12, math.ceil(math.pi / math.sqrt(2 * _FLAT / max(radius, 1.0))))
    angle = np.arange(corners) * (2 * math.pi / corners)
    return np.stack([x + radius * np.cos(angle), y + radius * np.sin(angle)], -1)


def _rectangle(points):
    """Converts two opposite corners, or all four, to a polygon."""
    if len(points) != 2:
        return points
    (left, top), (right, bottom) = points.min(0), points.max(0)
    return np.array([[left, top], [right, top], [right, bottom], [left, bottom]])


def _to_polygon(shape, points, name):
    """Converts a shape to a polygon.

    Raises:
        Fault: for a rectangle or circle with a wrong number of points.
    """
    if shape in _POLYGONS:
        return points
    valid = {"rectangle": (2, 4), "circle": (2,)}[shape]
    if len(points) not in valid:
        raise Fault(f"{name}: expected {' or '.join(map(str, valid))} points for a {shape}, got {len(points)}")
    return _rectangle(points) if shape == "rectangle" else _circle(points)


def _mask_runs(text, points, size, name):
    """Converts a shape "mask", a base64 PNG placed by two corner points, to run lengths.

    Raises:
        Fault: if it is unreadable or does not fit into the image.
    """
    from PIL import Image

    try:
        inside = np.asarray(Image.open(io.BytesIO(base64.b64decode(text, validate=True)), formats=("PNG",))) > 0
    except (OSError, TypeError, binascii.Error):
        raise Fault(f"{name}: expected its mask as a base64 PNG, but it cannot be read") from None
    if size is None or inside.ndim != 2 or not len(points):
        raise Fault(f"{name}: a mask needs the image's imageHeight and imageWidth, its points, and grey pixels")
    left, top = (int(value) for value in np.round(points.min(0)))
    height, width = inside.shape
    if left < 0 or top < 0 or top + height > size[0] or left + width > size[1]:
        raise Fault(f"{name}: a mask of {height} x {width} at {top}, {left} does not fit into its image of {size}")
    whole = np.zeros(size, bool)
    whole[top : top + height, left : left + width] = inside
    return run_lengths.of_mask(whole)


def _region(shape, number, size, ignored, path) -> Region | None:
    """Makes a Region from a shape; None without an area.

    Raises:
        Fault: if it is malformed.
    """
    if not isinstance(shape, dict):
        raise Fault(f"shape {number}: expected an object, got {str(shape)[:60]}")
    label, kind = str(shape.get("label") or "").strip(), shape.get("shape_type") or "polygon"
    name = f"shape {number} ({label})"
    if not label:
        raise Fault(f"shape {number} has no label")
    if kind in _NO_AREA:
        ignored[schema.NOT_AN_AREA].append(f"{kind} {number} of {path}")
        return None
    if kind not in (*_POLYGONS, "rectangle", "circle", "mask"):
        raise Fault(f'{name} has the shape_type "{kind}"; expected polygon, rectangle, circle or mask')
    pairs = shape.get("points")
    if not isinstance(pairs, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        raise Fault(f"{name}: expected points as pairs [x, y], got {str(pairs)[:60]}")
    points = schema.parse_polygon([value for pair in pairs for value in pair], name)
    if kind == "mask":
        return Region(label, name, (), _mask_runs(shape.get("mask"), points, size, name))
    polygon = _to_polygon(kind, points, name)
    box = None
    if kind == "rectangle":
        (left, top), (right, bottom) = polygon.min(0).tolist(), polygon.max(0).tolist()
        box = (top, left, bottom, right)
    return Region(label, name, schema.drop_short_polygons([polygon], f"{name} of {path}", ignored), None, box)


def _objects(shapes, regions, size):
    """Makes one Region, with a box, of the shapes with the same label and group_id; others stay."""
    groups: dict[tuple, list[Region]] = {}
    for number, (shape, region) in enumerate(zip(shapes, regions)):
        if region is not None:
            group = shape.get("group_id")
            groups.setdefault((region.label, number if group is None else f"group {group}"), []).append(region)
    return [_together(parts, size) for parts in groups.values()]


def _together(parts, size):
    """Makes one Region of the parts of an object: the union of their outlines."""
    boxes = [box for part in parts if (box := schema.bounding_box(part, size)) is not None]
    if len(parts) == 1 or not boxes:
        return parts[0]
    tops, lefts, bottoms, rights = zip(*boxes)
    name = f"{parts[0].name} with {counted(len(parts) - 1, 'further part')}"
    polygons = tuple(polygon for part in parts for polygon in part.polygons)
    runs = run_lengths.united([part.runs for part in parts if part.runs is not None])
    return Region(parts[0].label, name, polygons, runs, (min(tops), min(lefts), max(bottoms), max(rights)))


def _read_image(path, content, existing, ignored, boxes, root) -> AnnotatedImage | None:
    """Makes the AnnotatedImage of a JSON file; None if its image is missing."""
    image = sidecars.find_image(path, str(content.get("imagePath") or ""), existing, ("images", "img", "imgs"), root)
    if image not in existing:
        embedded = " (only inside the JSON, as imageData: save it next to the file)" if content.get("imageData") else ""
        ignored[schema.MISSING].append(f"{image}{embedded}")
        return None
    shapes, size = content.get("shapes"), None
    if not isinstance(shapes, list):
        return AnnotatedImage(image, None, [], f'"{path}" has no list "shapes"')
    try:
        size = schema.parse_size(content.get("imageHeight"), content.get("imageWidth"))
        regions = [_region(shape, number, size, ignored, image) for number, shape in enumerate(shapes, 1)]
    except Fault as fault:
        return AnnotatedImage(image, size, [], f'"{path}": {fault}')
    if boxes:
        return AnnotatedImage(image, size, _objects(shapes, regions, size))
    result = AnnotatedImage(image, size, [region for region in regions if region is not None])
    return schema.drop_outside(result, ignored, fractions=False)


def read(folder: str, paths: list[str], boxes: bool = False, root: str = "") -> Annotations:
    """Reads the annotations in LabelMe's JSON files; the shapes define the class names.

    Args:
        folder: str. Folder of the files.
        paths: list of str. The JSON files.
        boxes: bool. Whether to read boxes instead of outlined regions.
        root: str. The folder that was opened, outside of which images belong to other data; "" for `folder`.

    Raises:
        ValueError: if a file has another format.
    """
    others = [path for path in paths[:3] if not is_labelme(path)]
    if others:
        raise ValueError(f'"{folder}" mixes LabelMe\'s JSON files with others, like {listed(others)}. Separate them.')
    ignored: Ignored = collections.defaultdict(list)

    def read_image(path, content, existing):
        return _read_image(path, content, existing, ignored, boxes, root or folder)

    return Annotations(
        sidecars.read_sidecars(paths, annotation_files.read_json, read_image, ignored),
        None,
        False,
        folder,
        ignored,
    )
