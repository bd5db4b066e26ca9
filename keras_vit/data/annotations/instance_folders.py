"""Folders of images and PNGs of objects.

    PATH/leftImg8bit/train/CITY/A_leftImg8bit.png, PATH/gtFine/train/CITY/A_gtFine_instanceIds.png   Cityscapes
    PATH/JPEGImages/A.jpg, PATH/SegmentationObject/A.png, PATH/SegmentationClass/A.png               VOC
    PATH/images/A.jpg, PATH/masks/A/*.png, or PATH/masks/A/CLASS/*.png                               a PNG per object
    PATH/A/images/A.png, PATH/A/masks/*.png                                                          a PNG per object

Folders train, val and test may be around the last two. PNGs are read once to find the objects.
"""

import collections
import functools
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from keras_vit.data.annotations import annotation_files, schema
from keras_vit.data.annotations.instance_pngs import PngImage, PngLayout, Segment, grey_numbers, one_or_none, regions
from keras_vit.data.annotations.schema import Annotations, Ignored
from keras_vit.data.sources.classes_file import read_class_names
from keras_vit.data.sources.image_files import ENDINGS, ending
from keras_vit.data.splits import SPLITS, canonical
from keras_vit.io.paths import read_text
from keras_vit.io.suggest import counted

# cityscapesScripts' labels.py: the classes of its benchmarks by id.
CITY_THINGS = {24: "person", 25: "rider", 26: "car", 27: "truck", 28: "bus", 31: "train", 32: "motorcycle"}
CITY_THINGS |= {33: "bicycle"}
CITY_STUFF = {7: "road", 8: "sidewalk", 11: "building", 12: "wall", 13: "fence", 17: "pole", 19: "traffic light"}
CITY_STUFF |= {20: "traffic sign", 21: "vegetation", 22: "terrain", 23: "sky"}
_CITY_MASK, _CITY_IMAGE = "_gtFine_instanceIds.png", "_leftImg8bit.png"
_PER_CLASS = 1000  # numbers of an object: 1000 times its class and on
# The Pascal VOC challenge's classes, from 1.
VOC_CLASSES = ("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable")
VOC_CLASSES += ("dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor")
VOID = 255
OBJECT = "object"


def _segment(label, found, k, crowd=False, number=None):
    """The Segment of the k-th of the regions in a PNG."""
    top, left, bottom, right = found["boxes"][k]
    number = found["ids"][k] if number is None else number
    return Segment(
        label,
        f"object {number}",
        box=(top, left, bottom, right),
        crowd=crowd,
        pixels=float(found["areas"][k]),
        id=number,
    )


def _map_image(image, png, found, region_of) -> PngImage:
    """The PngImage of a map of numbers; `region_of` makes a Segment of the k-th of its regions, or None."""
    if "fault" in found:
        return PngImage(image, None, [], found["fault"], pngs=[png])
    made = (region_of(found, k) for k in range(len(found["ids"])))
    return PngImage(image, tuple(found["size"]), [region for region in made if region is not None], pngs=[png])


def _existing(pairs: Sequence[tuple[str, Any]], ignored: Ignored) -> list[tuple[str, Any]]:
    """The (image, PNGs) whose image exists; counts the others."""
    index = annotation_files.FileIndex()
    index.add(os.path.dirname(image) for image, _ in pairs)
    ignored[schema.MISSING] += [image for image, _ in pairs if image not in index]
    return [pair for pair in pairs if pair[0] in index]


def _city_names(stuff):
    return {**(CITY_STUFF if stuff else {}), **CITY_THINGS}


def _read_cityscapes(root, pngs, stuff) -> Annotations:
    ignored: Ignored = collections.defaultdict(list)

    def image_of(png):
        folder, name = os.path.split(os.path.relpath(png, os.path.join(root, "gtFine")))
        return os.path.join(root, "leftImg8bit", folder, name.removesuffix(_CITY_MASK) + _CITY_IMAGE)

    pairs = _existing([(image_of(png), png) for png in pngs], ignored)
    names = _city_names(stuff)

    def region_of(found, k):
        number = found["ids"][k]
        label = number // _PER_CLASS if number >= _PER_CLASS else number
        crowd = label in CITY_THINGS and number < _PER_CLASS
        return _segment(names[label], found, k, crowd) if label in names else None

    found = regions([png for _, png in pairs], grey_numbers)
    images = (_map_image(*pair, one, region_of) for pair, one in zip(pairs, found))
    kept = tuple(CITY_STUFF.values()) if stuff else ()
    return Annotations(images, tuple(names.values()), False, root, ignored, stuff=kept)


def _find_cityscapes(root, stuff):
    folder = os.path.join(root, "gtFine")
    splits = collections.defaultdict(list)
    for png in annotation_files.find_files(folder, _CITY_MASK.lower()):
        splits[canonical(os.path.relpath(png, folder).split(os.sep)[0])].append(png)
    readers = {split: functools.partial(_read_cityscapes, root, pngs, stuff) for split, pngs in splits.items()}
    names = _city_names(stuff)
    return PngLayout("Cityscapes", "", readers, dict(splits), tuple(names.values())) if splits else None


def _read_voc(root, stems, names) -> Annotations:
    ignored: Ignored = collections.defaultdict(list)
    pairs = _existing([(os.path.join(root, "JPEGImages", f"{stem}.jpg"), stem) for stem in stems], ignored)
    pngs, classes = (
        [os.path.join(root, folder, f"{stem}.png") for _, stem in pairs]
        for folder in ("SegmentationObject", "SegmentationClass")
    )

    def region_of(found, k):
        number, label = found["ids"][k], found["classes"][k]
        if number == VOID or label in (0, VOID):
            return None
        if label > len(names):
            raise ValueError(
                f'"{root}" has the class number {label} in SegmentationClass, but only {counted(len(names), "class")}'
                " of VOC: specify a file of the class names, from 1: ?classes=FILE."
            )
        return _segment(names[label - 1], found, k)

    found = regions(pngs, grey_numbers, classes)
    images = (_map_image(image, png, one, region_of) for (image, _), png, one in zip(pairs, pngs, found))
    return Annotations(images, names, False, root, ignored)


def _find_voc(root, classes):
    stems = [
        name.removesuffix(".png")
        for name in annotation_files.list_names(os.path.join(root, "SegmentationObject"))
        if name.endswith(".png")
    ]
    if not stems:
        return None
    lists = os.path.join(root, "ImageSets", "Segmentation")
    splits = {}
    for name in annotation_files.list_names(lists):
        split = canonical(name.removesuffix(".txt"))
        if split in SPLITS:
            known = set(read_text(os.path.join(lists, name)).split())
            splits[split] = [stem for stem in stems if stem in known]
    splits = {split: found for split, found in splits.items() if found} or {"train": stems}
    names = tuple(read_class_names(root, classes) or VOC_CLASSES)
    readers = {split: functools.partial(_read_voc, root, found, names) for split, found in splits.items()}
    files = {
        split: [os.path.join(root, "SegmentationObject", f"{stem}.png") for stem in found]
        for split, found in splits.items()
    }
    return PngLayout("VOC PNG", "", readers, files, names)


def _masks_of(folder: str) -> list[tuple[str, str]]:
    """The (class, PNG) of an image's masks; the class is that of the PNG's folder, if it has one."""
    pngs = annotation_files.find_files(folder, ".png")
    parts = [os.path.relpath(png, folder).split(os.sep) for png in pngs]
    return [(part[0] if len(part) > 1 else OBJECT, png) for part, png in zip(parts, pngs)]


def _pairs(folder: str) -> list[tuple[str, list[tuple[str, str]]]]:
    """The (image, masks) in one folder, of either layout; [] without any."""
    found = []
    names = annotation_files.list_names(folder)
    if "images" in names and "masks" in names:
        masks = set(annotation_files.list_names(os.path.join(folder, "masks")))
        for name in annotation_files.list_names(os.path.join(folder, "images")):
            stem = os.path.splitext(name)[0]
            if ending(name) in ENDINGS and stem in masks:
                found.append((os.path.join(folder, "images", name), os.path.join(folder, "masks", stem)))
    for name in () if found else names:
        inner = [os.path.join(folder, name, part) for part in ("images", "masks")]
        images = [image for image in annotation_files.list_names(inner[0]) if ending(image) in ENDINGS]
        if len(images) == 1 and annotation_files.list_names(inner[1]):
            found.append((os.path.join(inner[0], images[0]), inner[1]))
    return [(image, _masks_of(masks)) for image, masks in found]


def _objects_image(image, masks, found) -> PngImage:
    """The PngImage of masks, a PNG each; those without a pixel are left out."""
    pngs = [png for _, png in masks]
    fault = next((one["fault"] for one in found if "fault" in one), "")
    if fault:
        return PngImage(image, None, [], fault, pngs=pngs)
    parts = [
        _segment(label, one, 0, number=place) for place, ((label, _), one) in enumerate(zip(masks, found)) if one["ids"]
    ]
    return PngImage(image, tuple(found[0]["size"]) if found else None, parts, pngs=pngs)


def _read_objects(root, pairs) -> Annotations:
    ignored: Ignored = collections.defaultdict(list)
    found = iter(regions([png for _, masks in pairs for _, png in masks], one_or_none))
    images = (_objects_image(image, masks, list(itertools.islice(found, len(masks)))) for image, masks in pairs)
    return Annotations(images, None, False, root, ignored)


def _find_objects(root):
    folders: Mapping[str, str] = annotation_files.split_folders(root) or {"train": root}
    splits = {split: pairs for split, folder in folders.items() if (pairs := _pairs(folder))}
    readers: dict[str, Callable[[], Annotations]] = {
        split: functools.partial(_read_objects, root, pairs) for split, pairs in splits.items()
    }
    files = {split: [png for _, masks in pairs for _, png in masks] for split, pairs in splits.items()}
    overlaps = "later PNGs above earlier ones"
    return PngLayout("a PNG per object", overlaps, readers, files, numbers=one_or_none) if splits else None


def find(path: str, classes: str = "", stuff: bool = False) -> PngLayout | None:
    """Finds one of the layouts above in a folder; None without any.

    Args:
        path: str. Folder, local or in a bucket.
        classes: str. A file of VOC's class names, from 1; "" for those of the challenge.
        stuff: bool. Whether to read Cityscapes' stuff, too.
    """
    return _find_cityscapes(path, stuff) or _find_voc(path, classes) or _find_objects(path)
