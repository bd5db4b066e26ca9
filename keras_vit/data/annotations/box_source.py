"""Images with the boxes of their objects, for detection: "boxes:PATH", a folder or file of annotations.

The files in the folder decide between VOC, COCO, YOLO, LabelMe and CSV: see the module of each.
Options: images=, the folder of the images of COCO's JSON and of CSV; classes=, a file of class names where the
annotations only name them at each object, as VOC, LabelMe and CSV do, or not at all; units= and box=, what the numbers
of CSV mean, where they leave a doubt.
"""

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit.data.annotations import box_numbers, coco, csv_boxes, labelme, schema, voc, yolo
from keras_vit.data.annotations.advice import advice
from keras_vit.data.annotations.box_table import BoxTable, make_boxes, median_sides, object_reader
from keras_vit.data.annotations.opening import open_split
from keras_vit.data.annotations.schema import Annotations, Layout
from keras_vit.data.sources.base import CocoIds, RandomAccess
from keras_vit.data.sources.folder import check_folder
from keras_vit.data.sources.tree import describe_ignored
from keras_vit.io.paths import locate, split_options
from keras_vit.io.suggest import counted, listed
from keras_vit.io.target_values import CROWD, DIFFICULT

OPTIONS = ("images", "classes", "units", "box")
_SHOWN = 30  # classes in the report


def find(path: str, images: str = "", classes: str = "", units: str = "", box: str = "") -> Layout | None:
    """Finds annotations of boxes in a folder, or in a JSON, YAML or CSV file; None without any.

    Args:
        path: str. Folder or file, local or in a bucket.
        images: str. Folder of the images of COCO and CSV; "" to look for it.
        classes: str. A file of class names, for YOLO and tables without them; "" without one.
        units, box: str. The meaning of a table's numbers, as in `csv_boxes.find`; "" to decide by the numbers.

    Raises:
        ValueError: if several files are candidates.
    """
    whole = tf.io.gfile.isdir(path)
    images = locate(images, path if whole else os.path.dirname(path)) if images else ""
    found = yolo.find(path, boxes=True) or coco.find(path, images, boxes=True)
    if found is None and whole:
        found = voc.find(path) or labelme.find(path, boxes=True)
    return found or csv_boxes.find(path, images, units, box, classes) or yolo.find_nameless(path, True, classes)


def _find_or_raise(root, options) -> Layout:
    """Returns the annotations at a path.

    Raises:
        FileNotFoundError: if there is no such folder or file.
        ValueError: if it has no annotations of boxes.
    """
    if not os.path.isfile(root):
        check_folder(root)
    layout = find(root, **options)
    if layout is None:
        raise ValueError(
            f'"{root}" has no annotations of boxes. Expected VOC (XML files), COCO (a JSON file), YOLO (data.yaml and'
            " text files), LabelMe (JSON files) or CSV (a row for each box: image, label, xmin, ymin, xmax, ymax)."
            f" {advice(root, find)}".rstrip()
        )
    return layout


def _describe_classes(table, names):
    """Describes the boxes of each class, the most frequent first: "RBC 2,381 (median side 102 px), ..."."""
    counts = np.bincount(table.labels, minlength=len(names))
    sides, in_pixels = median_sides(table)
    shown = []
    for label in np.argsort(-counts, kind="stable").tolist():
        side = sides.get(label)
        size = "" if side is None else f" (median side {side:.0f} px)" if in_pixels else f" (median side {side:.1%})"
        shown.append(f"{names[label]} {counts[label]:,}{size}")
    return listed(shown, _SHOWN)


class BoxTarget:
    """Boxes of objects, for `open_split`; the report calls them `noun`."""

    needs_classes = False

    def __init__(self, noun: str = "box"):
        self._noun = noun

    def read(self, annotations: Annotations, class_names: Sequence[str]) -> BoxTable:
        self.class_names = names = tuple(name for name in class_names if name not in schema.NO_CLASSES)
        self._annotations = annotations
        number_of = functools.partial(schema.class_number, {name: i for i, name in enumerate(names)})
        return make_boxes(annotations.images, number_of, annotations.fractions, annotations.ignored)

    def fields(self, table: BoxTable, rows: Sequence[int]) -> dict[str, Any]:
        fields: dict[str, Any] = {"most_objects": int(table.counts[rows].max(initial=0))}
        if self._annotations.categories is not None:
            names = (os.fsencode(path).decode(errors="replace") for path in table.paths)
            fields["coco_ids"] = CocoIds(dict(zip(names, table.ids)), self._annotations.categories)
        return fields

    def parser(self, table: BoxTable) -> Callable[[dict[str, Any]], dict[str, Any]]:
        objects = object_reader(table)
        return lambda example: {"image": example["image"], **objects(example["number"], example["image"])}

    def describe(self, title: str, table: BoxTable, whole: Callable[[], RandomAccess], layout: Layout) -> str:
        names = self.class_names
        if not names or not len(table.labels):
            lost, an = describe_ignored(self._annotations.ignored), "an" if self._noun[0] in "aeiou" else "a"
            raise ValueError(f"{title}: no image has {an} {self._noun}.{f' Ignored: {lost}.' if lost else ''}")
        sound = np.array([not fault for fault in table.faults])
        empty, crowds, difficult = (
            int(which.sum()) for which in (sound & (table.counts == 0), table.crowd == CROWD, table.crowd == DIFFICULT)
        )
        text = (
            f"{title}: {counted(len(table.paths), 'image')} with {layout.format} annotations, {empty:,} without"
            f" objects; {counted(len(table.labels), self._noun)} of {counted(len(names), 'class')}:"
            f" {_describe_classes(table, names)}; at most {int(table.counts.max(initial=0))} in an image"
        )
        text += f"; {self._annotations.read_as}" if self._annotations.read_as else ""
        text += f"; {counted(crowds, 'crowd')}" if crowds else ""
        return text + (f"; {difficult:,} difficult" if difficult else "")


def boxes(text: str, split: str = "train", data_dir: str | None = None) -> RandomAccess:
    """Opens a split of images with boxes.

    Examples have image, boxes, labels, crowd, area and size, as docs/data.md describes them. All annotations are read
    at once; one line reports what was found.

    Args:
        text: str. A folder or a file, with options.
        split: str. A split, or a slice of its fixed random order.
        data_dir: str. Base of a relative path.

    Raises:
        FileNotFoundError: if there is no such folder, or no image is found.
        ValueError: if there are no annotations of boxes, they are unusable, or the split is missing.
    """
    path, options = split_options(text, **dict.fromkeys(OPTIONS, ""))
    root = locate(path, data_dir)
    box_numbers.check_options(text, options["units"], options["box"])
    layout = _find_or_raise(root, options)
    if layout.format != "CSV" and (options["units"] or options["box"]):
        raise ValueError(f'"{text}": remove units= and box=, which are for tables: {layout.format} defines them.')
    return open_split(BoxTarget(), layout, f"boxes:{path}", root, split, options["classes"])
