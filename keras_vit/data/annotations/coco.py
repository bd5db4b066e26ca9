"""COCO JSON, as written by COCO, Roboflow and CVAT: polygons, and run lengths as lists or compressed.

    PATH/annotations/instances_train2017.json, PATH/train2017/*.jpg or PATH/images/train2017/*.jpg     COCO, CVAT
    PATH/train/_annotations.coco.json, PATH/train/*.jpg                                                Roboflow
    PATH/any.json, PATH/*.jpg or PATH/images/*.jpg                                                     one split

COCO does not order regions: crowds are lowest, then larger regions, so small objects stay visible.
"""

import collections
import dataclasses
import functools
import os
import re
from collections.abc import Iterator
from typing import Any

from keras_vit.data.annotations import annotation_files, run_lengths, schema
from keras_vit.data.annotations.schema import AnnotatedImage, Annotations, Fault, Ignored, Layout, Region
from keras_vit.io.suggest import listed

_MARKS = re.compile(r'"(?:annotations|categories|licenses|info|images)"\s*:')
# Datumaro, V7 Darwin and Hasty have some of these keys.
_FOREIGN = re.compile(r'"dm_format|"media_type"|"label"\s*:\s*\{\s*"labels"|"schema_ref"|"export_format_version"')
_OTHERS = ("captions", "person_keypoints", "image_info", "panoptic")  # COCO's files other than instances
OVERLAPS = "crowds below, then larger regions below smaller ones"


def is_coco(path: str) -> bool:
    """Whether a JSON file looks like COCO's, judged by its name and start."""
    if path.endswith(".coco.json"):
        return True
    start = annotation_files.read_start(path)
    whole = start.lstrip("\ufeff \r\n\t").startswith("{")  # Label Studio's and CreateML's are lists
    return whole and bool(_MARKS.search(start)) and '"shapes"' not in start and not _FOREIGN.search(start)


def json_files(root: str) -> list[str]:
    """Lists the COCO files of a folder, its split folders, and its folder "annotations"."""
    folders = [root, os.path.join(root, "annotations"), *annotation_files.split_folders(root).values()]
    paths = [os.path.join(folder, name) for folder in folders for name in annotation_files.list_names(folder)]
    found = [path for path in paths if path.lower().endswith(".json") and is_coco(path)]
    preferred = [path for path in found if os.path.basename(path).startswith("instances_")]
    return preferred or [path for path in found if not os.path.basename(path).startswith(_OTHERS)] or found


def find(path: str, images: str = "", boxes: bool = False, outlines: bool = False) -> Layout | None:
    """Finds COCO annotations in a folder or a JSON file, which is all "train"; None without any.

    Args:
        path: str. Folder or file, local or in a bucket.
        images: str. Folder of the images; "" to look for it.
        boxes: bool. Whether to read boxes instead of outlined regions.
        outlines: bool. Whether to read the outlines of boxes, too.

    Raises:
        ValueError: if several files contain one split.
    """
    alone = path.lower().endswith(".json")
    found = [path] if alone and is_coco(path) else [] if alone else json_files(path)
    splits = {"train": path} if alone and found else annotation_files.assign_splits(found, path)
    root = os.path.dirname(path) if alone else path
    readers = {
        split: functools.partial(read, file, split, images, boxes, root, outlines) for split, file in splits.items()
    }
    return Layout("COCO", OVERLAPS, readers, {split: [file] for split, file in splits.items()}) if splits else None


def _check_kind(content, path):
    """Raises ValueError for COCO's files of other things than objects."""
    annotations = content.get("annotations")
    first = annotations[0] if isinstance(annotations, list) and annotations else None
    kinds = {
        "segments_info": "panoptic segmentation, whose regions are PNGs (instances:PATH reads them)",
        "caption": "captions of whole images",
    }
    kind = next((kind for key, kind in kinds.items() if isinstance(first, dict) and key in first), None)
    if kind:
        raise ValueError(f'"{path}" contains {kind}. Open a file of objects, such as instances_train2017.json.')


def read_entries(content, key, path):
    """Returns the list `key` of objects, each with an id.

    Raises:
        ValueError: if it is missing or malformed.
    """
    entries = content.get(key)
    if not isinstance(entries, list):
        hint = " It has segments_info: panoptic masks are PNGs." if "segments_info" in str(content)[:10_000] else ""
        raise ValueError(f'"{path}" has no list "{key}". Expected images, annotations and categories.{hint}')
    kinds = int if key == "categories" else int | str

    def fits(entry):
        return isinstance(entry, dict) and isinstance(entry.get("id"), kinds)

    wrong = next((entry for entry in entries if not fits(entry)), None)
    if wrong is not None:
        raise ValueError(f'"{path}": expected {key} as objects with a number as id, got {str(wrong)[:80]}.')
    return entries


def _twice(values):
    """Returns the first repeated value, or None."""
    seen = set()
    return next((value for value in values if value in seen or seen.add(value)), None)


def read_categories(content, path, ignored):
    """Returns {id: name}, sorted by id, without Roboflow's category 0, which only groups the others.

    Raises:
        ValueError: without categories, and for repeated ids and repeated or missing names.
    """
    entries = sorted(read_entries(content, "categories", path), key=lambda entry: entry["id"])
    texts = {entry["id"]: entry.get("name") for entry in entries}
    names = {number: "" if name is None else str(name).strip() for number, name in texts.items()}
    used = {number for a in content["annotations"] if isinstance(number := a.get("category_id"), int)}
    parents = {str(entry.get("supercategory")) for entry in entries if entry["id"] in used}
    for entry in entries:
        if entry["id"] not in used and names[entry["id"]] in parents and entry.get("supercategory") in (None, "none"):
            ignored[schema.PARENT].append(names.pop(entry["id"]))
    again = _twice([entry["id"] for entry in entries])
    if again is None:
        again = _twice(names.values())
    if again is not None or not names or not all(names.values()):
        what = (
            "there are none" if not names else f'"{again}" occurs twice' if again is not None else "a name is missing"
        )
        raise ValueError(f'"{path}": category ids and names must be unique: {what}.')
    return names


def _boxed(outlines, annotation, label, size, name, ignored):
    """Makes a Region from an annotation's box, or else its segmentation; from both with `outlines`.

    Raises:
        Fault: if both are missing, or one is malformed.
    """
    box, area, segmentation = (annotation.get(key) for key in ("bbox", "area", "segmentation"))
    if not box and not segmentation:
        raise Fault(f"{name} ({label}) has neither bbox nor segmentation")
    outlined = segmentation and (outlines or not box)
    region = _region(annotation, label, size, name, ignored) if outlined else Region(label, name)
    if box:
        top, left, height, width = schema.parse_box(box, name)
        region = dataclasses.replace(region, box=(top, left, top + height, left + width))
    stated = float(area) if isinstance(area, int | float) and 0 < area < float("inf") else None
    return dataclasses.replace(region, crowd=schema.is_set(annotation.get("iscrowd")), pixels=stated)


def _region(annotation, label, size, name, ignored):
    """Makes a Region from an annotation's segmentation.

    Raises:
        Fault: if it is missing or malformed.
    """
    segmentation = annotation.get("segmentation")
    crowd = schema.is_set(annotation.get("iscrowd"))
    if not segmentation:
        raise Fault(f"{name} ({label}) has a box but no segmentation; boxes are for object detection")
    if isinstance(segmentation, dict):
        counts, covered = run_lengths.runs(segmentation, name)
        if size is not None and covered != size:
            raise Fault(f"{name}: run lengths for {covered} pixels (height, width), but its image has {size}")
        return Region(label, name, (), counts, crowd=crowd)
    if not isinstance(segmentation, list):
        raise Fault(f"{name}: expected polygons or run lengths, got {str(segmentation)[:60]}")
    lists = segmentation if isinstance(segmentation[0], list) else [segmentation]
    polygons = schema.drop_short_polygons([schema.parse_polygon(numbers, name) for numbers in lists], name, ignored)
    return Region(label, name, polygons, crowd=crowd)


def _read_image(path, entry, annotations, names, ignored, boxes, outlines):
    """Reads an image's entry and annotations: regions in the order of OVERLAPS, boxes in that of the file."""
    try:
        size = schema.parse_size(entry.get("height"), entry.get("width"))
    except Fault as fault:
        return AnnotatedImage(path, None, [], str(fault))
    image = AnnotatedImage(path, size)
    make = functools.partial(_boxed, outlines) if boxes else _region
    for annotation in annotations:
        name = f"annotation {annotation['id']}"
        try:
            region = make(annotation, names[annotation["category_id"]], size, name, ignored)
        except Fault as fault:
            return AnnotatedImage(path, size, [], str(fault))
        if region.runs is not None and size is None:
            image.size = size = tuple(annotation["segmentation"]["size"])
        image.regions.append(region)
    if boxes:
        return image
    image.regions.sort(key=lambda region: (not region.crowd, -region.area))
    return schema.drop_outside(image, ignored, fractions=False)


def _check_annotations(annotations, names, path, boxes):
    """Raises ValueError for unknown categories, and if no annotation has a box or, unless `boxes`, a segmentation."""

    def known(number):
        return isinstance(number, int) and number in names

    unknown = next((a for a in annotations if not known(a.get("category_id"))), None)
    if unknown is not None:
        raise ValueError(
            f'"{path}": annotation {unknown["id"]} has the unknown category_id {unknown.get("category_id")!r}. Valid:'
            f" {listed([f'{number} ({name})' for number, name in names.items()])}."
        )
    if boxes and not any(a.get("bbox") or a.get("segmentation") for a in annotations):
        raise ValueError(f'"{path}" has no annotations with a bbox or a segmentation.')
    if not boxes and not any(a.get("segmentation") for a in annotations):
        what = "boxes without a segmentation" if any("bbox" in a for a in annotations) else "no segmentation"
        raise schema.OnlyBoxes(
            f'"{path}" has {what if annotations else "no annotations"}: boxes are for object detection'
            " (boxes:PATH). Export the data with polygons or masks (COCO segmentation)."
        )


def _name_in_url(entry):
    """Returns the last folder and name of an image's address: LVIS states only that, train2017/a.jpg."""
    return "/".join(str(entry.get("coco_url") or "").split("/")[-2:])


def file_names(entries, path):
    """Returns each image's file name, with "/".

    Raises:
        ValueError: if one is missing, or two images share an id or a file.
    """
    names = [str(entry.get("file_name") or _name_in_url(entry)).replace("\\", "/") for entry in entries]
    if not all(names):
        raise ValueError(f'"{path}": image {entries[names.index("")]["id"]} has no file_name.')
    for what, values in (("the id", [entry["id"] for entry in entries]), ("the file", names)):
        again = _twice(values)
        if again is not None:
            raise ValueError(f'"{path}": two images have {what} {again!r}, so their annotations are ambiguous.')
    return names


def _read_images(content, paths, existing, names, ignored, boxes, outlines) -> Iterator[AnnotatedImage]:
    """Yields the AnnotatedImage of each image with an existing file."""
    by_image: dict[Any, list] = collections.defaultdict(list)
    known, seen = {entry["id"] for entry in content["images"]}, set()
    as_text = {str(number): number for number in known}  # VIA writes an image's id as a number, and as text
    for annotation in content["annotations"]:
        if annotation["id"] in seen:
            ignored[schema.SAME_ID].append(f"annotation {annotation['id']}")
        seen.add(annotation["id"])
        image = annotation.get("image_id")
        image = as_text.get(image, image) if isinstance(image, str) and image not in known else image
        if isinstance(image, int | str) and image in known:
            by_image[image].append(annotation)
        else:
            ignored[schema.OTHER_IMAGE].append(f"annotation {annotation['id']}")
    for entry, path in zip(content["images"], paths):
        if path in existing:
            image = _read_image(path, entry, by_image.pop(entry["id"], ()), names, ignored, boxes, outlines)
            yield dataclasses.replace(image, id=entry["id"])
        else:
            ignored[schema.MISSING].append(path)


def read(
    path: str, split: str, images: str = "", boxes: bool = False, root: str = "", outlines: bool = False
) -> Annotations:
    """Reads the annotations in a COCO file.

    Args:
        path: str. The JSON file.
        split: str. Its split, used to look for the images.
        images: str. Folder of the images; "" to look for it.
        boxes: bool. Whether to read boxes instead of outlined regions.
        root: str. The folder that was opened, as in `annotation_files.image_paths`.
        outlines: bool. Whether to read the outlines of boxes, too.

    Raises:
        FileNotFoundError: if the file or all images are missing.
        ValueError: if the file is malformed, ids are repeated or unknown, or outlines are missing.
    """
    content = annotation_files.read_json(path)
    ignored: Ignored = collections.defaultdict(list)
    _check_kind(content, path)
    entries, annotations = read_entries(content, "images", path), read_entries(content, "annotations", path)
    if not entries:
        raise ValueError(f'"{path}" lists no images.')
    names = read_categories(content, path, ignored)
    _check_annotations(annotations, names, path, boxes and not outlines)
    existing = annotation_files.FileIndex()
    paths = annotation_files.image_paths(path, split, images, file_names(entries, path), existing, root)
    existing.add(os.path.dirname(file) for file in paths)
    ignored[schema.NOT_LISTED] += annotation_files.unlisted_images(paths, existing)
    read = _read_images(content, paths, existing, names, ignored, boxes, outlines)
    categories = {name: number for number, name in names.items()}
    return Annotations(read, tuple(categories), False, path, ignored, categories)
