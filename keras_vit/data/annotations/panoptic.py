"""COCO's panoptic annotations: a JSON file of segments, and a folder of PNGs in which colours are segments.

    PATH/annotations/panoptic_val2017.json, PATH/annotations/panoptic_val2017/*.png, PATH/val2017/*.jpg

A segment's number is red + 256 green + 256^2 blue. Categories with "isthing": 0 are stuff.
"""

import collections
import functools
import os
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from keras_vit.data.annotations import annotation_files, coco, schema
from keras_vit.data.annotations.instance_pngs import PngImage, PngLayout, Segment, color_numbers
from keras_vit.data.annotations.schema import Annotations, Fault, Ignored
from keras_vit.io.suggest import listed

_KEY = b'"segments_info"'
_CHUNK = 1 << 22  # bytes


def _has_segments(path):
    """Whether a COCO file is panoptic; reads up to the first segment."""
    if os.path.basename(path).startswith("instances_"):
        return False
    before = b""
    with tf.io.gfile.GFile(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            if _KEY in before + chunk:
                return True
            before = chunk[-len(_KEY) :]
    return False


def find(path: str, images: str = "", chosen: bool = False) -> PngLayout | None:
    """Finds panoptic annotations in a folder or a JSON file, which is all "train"; None without any.

    Args:
        path: str. Folder or file, local or in a bucket.
        images: str. Folder of the images; "" to look for it.
        chosen: bool. Whether they take precedence over COCO's other files of objects.

    Raises:
        ValueError: if several files contain one split.
    """
    alone = path.lower().endswith(".json")
    folders = [path, os.path.join(path, "annotations"), *annotation_files.split_folders(path).values()]
    paths = [os.path.join(folder, name) for folder in folders for name in annotation_files.list_names(folder)]
    files = [file for file in ([path] if alone else paths) if file.lower().endswith(".json") and coco.is_coco(file)]
    found = [file for file in files if _has_segments(file)]
    others = [file for file in files if file not in found and os.path.basename(file).startswith("instances_")]
    if not found or (others and not chosen):
        return None
    splits = {"train": path} if alone else annotation_files.assign_splits(found, path)
    root = os.path.dirname(path) if alone else path
    readers = {split: functools.partial(read, file, split, images, root) for split, file in splits.items()}
    files_of = {split: [file] for split, file in splits.items()}
    return PngLayout("COCO panoptic", "", readers, files_of, numbers=color_numbers)


def _png_folder(path, names):
    """Returns the folder of the PNGs.

    Raises:
        FileNotFoundError: if it is missing.
    """
    folder, stem = os.path.split(os.path.splitext(path)[0])
    places = [os.path.join(folder, stem), os.path.join(folder, "panoptic"), folder]
    for place in places:
        if any(name in annotation_files.list_names(place) for name in names[:3]):
            return place
    raise FileNotFoundError(f'"{path}": no PNGs of segments ({listed(names, 1)}) found. Put them in "{places[0]}".')


def _segment(info, names):
    """Makes a Segment from an entry of segments_info.

    Raises:
        Fault: if it is malformed.
    """
    number, category, area = info.get("id"), info.get("category_id"), info.get("area")
    name = f"segment {number}"
    if not isinstance(number, int) or not 0 < number < 1 << 24 or category not in names:
        raise Fault(f"{name}: expected an id from 1 to {(1 << 24) - 1} and a known category_id, got {category!r}")
    top, left, height, width = schema.parse_box(info.get("bbox") or (), name)
    return Segment(
        names[category],
        name,
        box=(top, left, top + height, left + width),
        crowd=schema.is_set(info.get("iscrowd")),
        pixels=float(area) if isinstance(area, int | float) and 0 < area < float("inf") else None,
        id=number,
    )


def _read_image(entry, path, annotation, folder, names) -> PngImage:
    """Makes the PngImage of an image with annotations."""
    png = os.path.join(folder, str(annotation.get("file_name")))
    try:
        size = schema.parse_size(entry.get("height"), entry.get("width"))
        regions: list[Any] = [_segment(info, names) for info in annotation.get("segments_info") or ()]
    except Fault as fault:
        return PngImage(path, None, [], str(fault), entry["id"], [png])
    return PngImage(path, size, regions, "", entry["id"], [png])


def _read_images(content, paths, folder, existing, names, ignored) -> Iterator[PngImage]:
    """Yields the PngImage of each image with an existing file and annotations."""
    by_image = {annotation.get("image_id"): annotation for annotation in content["annotations"]}
    known = {entry["id"] for entry in content["images"]}
    ignored[schema.OTHER_IMAGE] += [f"image_id {number}" for number in by_image if number not in known]
    for entry, path in zip(content["images"], paths):
        if path not in existing:
            ignored[schema.MISSING].append(path)
        elif entry["id"] not in by_image:
            ignored[schema.NO_REGION].append(path)
        else:
            yield _read_image(entry, path, by_image[entry["id"]], folder, names)


def read(path: str, split: str, images: str = "", root: str = "") -> Annotations:
    """Reads the segments in a panoptic file.

    Args:
        path: str. The JSON file.
        split: str. Its split, used to look for the images.
        images: str. Folder of the images; "" to look for it.
        root: str. The folder that was opened, as in `annotation_files.image_paths`.

    Raises:
        FileNotFoundError: if the file, all images or all PNGs are missing.
        ValueError: if the file is malformed.
    """
    content = annotation_files.read_json(path)
    ignored: Ignored = collections.defaultdict(list)
    entries = coco.read_entries(content, "images", path)
    names = coco.read_categories(content, path, ignored)
    stuff = tuple(names[c["id"]] for c in content["categories"] if not schema.is_set(c.get("isthing", 1)))
    pngs = [str(annotation.get("file_name")) for annotation in content["annotations"]]
    folder = _png_folder(path, pngs)
    existing = annotation_files.FileIndex()
    paths = annotation_files.image_paths(path, split, images, coco.file_names(entries, path), existing, root)
    existing.add(os.path.dirname(file) for file in paths)
    read = _read_images(content, paths, folder, existing, names, ignored)
    categories = {name: number for number, name in names.items()}
    return Annotations(read, tuple(categories), False, path, ignored, categories, stuff=stuff)
