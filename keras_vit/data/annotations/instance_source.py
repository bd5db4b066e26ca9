"""Images with an outline of each object, for instance and panoptic segmentation: "instances:PATH".

COCO, LabelMe and YOLO outlines are drawn when an image is read. The example has the keys of "boxes:PATH" and

    segments   (h, w, 2) int32, at each pixel the number of the topmost and of the lowest object: its row of `boxes` + 1
               (0 for none). So the overlap of two objects is kept, and memory does not grow with the objects.

Crowds lie lowest and larger objects below smaller ones; of LabelMe's, later ones above earlier ones.

PNGs of object numbers, or one for each object, are read as panoptic.py and instance_folders.py describe. Options:
images= and classes=, as for boxes; format=panoptic, for COCO's panoptic files where there are files of objects, too;
stuff=keep, for Cityscapes' stuff.
"""

import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from keras_vit.data.annotations import coco, instance_folders, labelme, panoptic, schema, yolo
from keras_vit.data.annotations.advice import advice
from keras_vit.data.annotations.box_table import BoxTable, object_reader
from keras_vit.data.annotations.instance_pngs import PngLayout, PngTarget, one_or_none
from keras_vit.data.annotations.mask_table import Table, make_table, mask_drawer
from keras_vit.data.annotations.opening import open_split
from keras_vit.data.annotations.outline_target import OutlineTable, OutlineTarget
from keras_vit.data.annotations.schema import AnnotatedImage, Annotations, Layout, Region
from keras_vit.data.sources.base import RandomAccess
from keras_vit.data.sources.folder import check_folder
from keras_vit.io.paths import locate, split_options

OPTIONS = ("images", "classes", "format", "stuff")


def find(path: str, images: str = "", classes: str = "", format: str = "", stuff: str = "") -> Layout | None:
    """Finds annotations with outlines in a folder, or in a JSON or YAML file; None without any.

    Args:
        path: str. Folder or file, local or in a bucket.
        images: str. Folder of COCO's images; "" to look for it.
        classes: str. A file of class names, for YOLO without them and VOC's PNGs; "" without one.
        format: str. "panoptic" for COCO's panoptic files where there are others, or "".
        stuff: str. "keep" for Cityscapes' stuff, or "".

    Raises:
        ValueError: if several files are candidates.
    """
    whole = tf.io.gfile.isdir(path)
    images = locate(images, path if whole else os.path.dirname(path)) if images else ""
    found = panoptic.find(path, images, chosen=format == "panoptic")
    if found is None and whole and not format:
        found = instance_folders.find(path, classes, stuff=stuff == "keep")
    if found is not None or format:
        return found
    found = yolo.find(path, boxes=True) or coco.find(path, images, boxes=True, outlines=True)
    if found is None and whole:
        found = labelme.find(path, boxes=True)
    return found or yolo.find_nameless(path, True, classes)


@dataclasses.dataclass(frozen=True)
class InstanceTable(OutlineTable):
    """Objects and their outlines; the values of `regions` are row numbers of an image's boxes, from 1."""

    regions: Table


@dataclasses.dataclass(frozen=True)
class _Numbered(Region):
    """A region and its number in `segments`."""

    number: int = 0


def _number(region, image):
    return region.number


def _with_outlines(annotations: Annotations) -> list[AnnotatedImage]:
    """Returns the images, without regions that are only boxes, which are counted.

    Raises:
        OnlyBoxes: if no region has an outline.
    """
    images, total, lost = list(annotations.images), 0, []
    for image in images:
        total += len(image.regions)
        lost += [f"{region.name} of {image.path}" for region in image.regions if not region.outlined]
        image.regions = [region for region in image.regions if region.outlined]
    if total and total == len(lost):
        raise schema.OnlyBoxes(
            f'"{annotations.where}" has no outlines, only {total:,} boxes, which are for object detection (boxes:PATH).'
            " Export the data with polygons or masks."
        )
    annotations.ignored[schema.NO_OUTLINE] += lost
    return images


def _in_drawing_order(images: Sequence[AnnotatedImage], boxes: BoxTable, by_size: bool) -> Iterator[AnnotatedImage]:
    """Yields images with the regions of their rows of `boxes`, the lowest first."""
    for i, image in enumerate(images):
        kept = boxes.places[boxes.starts[i] : boxes.starts[i + 1]].tolist()
        regions: list[Region] = [
            _Numbered(**vars(image.regions[place]), number=row) for row, place in enumerate(kept, 1)
        ]
        if by_size:
            regions.sort(key=lambda region: (not region.crowd, -region.area))
        yield dataclasses.replace(image, regions=regions)


class InstanceTarget(OutlineTarget):
    """Boxes and outlines of objects, for `open_split`.

    Args:
        by_size: bool. Whether crowds lie lowest and larger objects below smaller ones; False for the order of the file.
    """

    def __init__(self, by_size: bool = True):
        super().__init__()
        self._by_size = by_size

    def read(self, annotations: Annotations, class_names: Sequence[str]) -> InstanceTable:
        images = _with_outlines(annotations)
        boxes = self.read_boxes(annotations, images, class_names)
        ordered = _in_drawing_order(images, boxes, self._by_size)
        return InstanceTable(boxes, make_table(ordered, _number, annotations.fractions, wide=True, background=0))

    def parser(self, table: InstanceTable) -> Callable[[dict[str, Any]], dict[str, Any]]:
        objects, draw = object_reader(table.boxes), mask_drawer(table.regions, lowest=True)

        def parse(example):
            number, image = example["number"], example["image"]
            return {"image": image, **objects(number, image), "segments": draw(number, image)}

        return parse


def instances(text: str, split: str = "train", data_dir: str | None = None) -> RandomAccess:
    """Opens a split of images with a mask of each object.

    Examples have image, boxes, labels, crowd, area, size and segments, as docs/data.md describes them. All annotations
    are read at once; one line reports what was found.

    Args:
        text: str. A folder or a file, with options.
        split: str. A split, or a slice of its fixed random order.
        data_dir: str. Base of a relative path.

    Raises:
        FileNotFoundError: if there is no such folder, or no image is found.
        ValueError: if there are no outlines, they are unusable, or the split is missing.
    """
    path, options = split_options(text, **dict.fromkeys(OPTIONS, ""))
    for key, valid in (("format", "panoptic"), ("stuff", "keep")):
        if options[key] not in ("", valid):
            raise ValueError(f'"{text}": expected {key}={valid}, or no {key}=, got {key}={options[key]}.')
    root = locate(path, data_dir)
    if not os.path.isfile(root):
        check_folder(root)
    layout = find(root, **options)
    if layout is None:
        raise ValueError(
            f'"{root}" has no outlines of objects. Expected COCO (a JSON file), YOLO (data.yaml and text files),'
            " LabelMe (JSON files), COCO's panoptic JSON and PNGs, Cityscapes, VOC's SegmentationObject, or images and"
            f" masks/NAME/*.png, one for each object. {advice(root, find)}".rstrip()
        )
    target: OutlineTarget = InstanceTarget(by_size=layout.format != "LabelMe")
    classes = options["classes"]
    if isinstance(layout, PngLayout):
        target, classes = PngTarget(layout.numbers), classes if layout.numbers is one_or_none else ""
    return open_split(target, layout, f"instances:{path}", root, split, classes)
