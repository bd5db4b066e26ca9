"""Images with the boxes of their objects, for detection: "boxes:PATH", a folder or file of annotations.

The files in the folder decide between VOC, COCO, YOLO, LabelMe and CSV: see the module of each.
Options: images=, the folder of the images of COCO's JSON and of CSV; classes=, a file of class names where the
annotations only name them at each object, as VOC, LabelMe and CSV do, or not at all; units= and box=, what the numbers
of CSV mean, where they leave a doubt.
"""

import os
import random

import numpy as np
import tensorflow as tf
from absl import logging

from keras_vit.data.annotations import box_numbers, coco, csv_boxes, form, labelme, voc, yolo
from keras_vit.data.annotations.advice import advice
from keras_vit.data.annotations.box_table import BoxTable, make_boxes, median_sides, object_reader
from keras_vit.data.annotations.form import Layout
from keras_vit.data.annotations.opening import advancing, asked_split, check_some, names_of, report
from keras_vit.data.annotations.turned import warn_of_turned
from keras_vit.data.sources.base import CocoIds, RandomAccess
from keras_vit.data.sources.classes_file import doubts
from keras_vit.data.sources.folder import check_folder
from keras_vit.data.sources.image_files import read_image
from keras_vit.data.sources.tree import listing
from keras_vit.data.splits import split_range
from keras_vit.io.logs import log_once
from keras_vit.io.object_rows import CROWD, DIFFICULT
from keras_vit.io.paths import locate, split_options
from keras_vit.io.progress import stage
from keras_vit.io.suggest import counted, did_you_mean, listed

OPTIONS = ("images", "classes", "units", "box")
_SHOWN = 30  # classes in the report


def find(path: str, images: str = "", classes: str = "", units: str = "", box: str = "") -> Layout | None:
    """The annotations of boxes in a folder, or in a JSON, YAML or CSV file; None if there are none.

    Args:
        path: local, or in a bucket.
        images: the folder of the images, for COCO and CSV; "" to look for it.
        classes: a file of class names, for YOLO and tables without them; "" without one.
        units, box: what the numbers of a table mean, as in `csv_boxes.find`; "" to find out.

    Raises:
        ValueError: if it is unclear which file is meant.
    """
    whole = tf.io.gfile.isdir(path)
    images = locate(images, path if whole else os.path.dirname(path)) if images else ""
    found = yolo.find(path, boxes=True) or coco.find(path, images, boxes=True)
    if found is None and whole:
        found = voc.find(path) or labelme.find(path, boxes=True)
    return found or csv_boxes.find(path, images, units, box, classes) or yolo.find_nameless(path, True, classes)


def _found(root, chosen) -> Layout:
    """The annotations at a path.

    Raises:
        FileNotFoundError: if there is no such folder or file.
        ValueError: if it has no annotations of boxes.
    """
    if not os.path.isfile(root):
        check_folder(root)
    layout = find(root, **chosen)
    if layout is None:
        raise ValueError(
            f'"{root}" has no annotations of boxes. Expected VOC (XML files), COCO (a JSON file), YOLO (data.yaml and'
            " text files), LabelMe (JSON files) or CSV (a row for each box: image, label, xmin, ymin, xmax, ymax)."
            f" {advice(root, find)}".rstrip()
        )
    return layout


def _numbers(names):
    """Returns a function: region, its picture -> its class number. It raises ValueError for an unknown class."""
    number = {name: i for i, name in enumerate(names)}

    def number_of(region, picture):
        found = number.get(region.label)
        if found is None:
            raise ValueError(
                f'{region.name} of "{picture.path}" has the class "{region.label}", which is not one of the'
                f" {len(names)}: {listed(list(names))}.{did_you_mean(region.label, names)}"
            )
        return found

    return number_of


def _source(title, table: BoxTable, names, order, categories) -> RandomAccess:
    """The source of the images `order`, (m,) positions in the table; `categories` are COCO's, or None."""
    most = int(table.counts[order].max(initial=0))
    encoded = [os.fsencode(path) for path in table.paths]
    ids = None
    if categories is not None:
        ids = CocoIds({path.decode(errors="replace"): id for path, id in zip(encoded, table.ids)}, categories)
    paths, order = tf.constant(encoded), tf.constant(order, tf.int64)
    objects = object_reader(table)

    def lookup(i):
        return {"image": read_image(paths[order[i]]), "number": order[i]}

    def parse(example):
        return {"image": example["image"], **objects(example["number"], example["image"])}

    def name_of(i):
        return paths[order[i]]

    return RandomAccess(
        title, names, None, lookup, name_of, count=len(order), parse=parse, most_objects=most, coco_ids=ids
    )


def _of_classes(table, names):
    """The boxes of each class, the most frequent first: "RBC 2,381 (median side 102 px), ..."."""
    counts = np.bincount(table.labels, minlength=len(names))
    sides, in_pixels = median_sides(table)
    shown = []
    for label in np.argsort(-counts, kind="stable").tolist():
        side = sides.get(label)
        size = "" if side is None else f" (median side {side:.0f} px)" if in_pixels else f" (median side {side:.1%})"
        shown.append(f"{names[label]} {counts[label]:,}{size}")
    return listed(shown, _SHOWN)


def _report(title, split, layout, table, names, ignored, read_as):
    """Reports in one line what was found; warns if some of it is ignored or changed."""
    sound = np.array([not fault for fault in table.faults])
    empty, crowds, difficult = (
        int(which.sum()) for which in (sound & (table.counts == 0), table.crowd == CROWD, table.crowd == DIFFICULT)
    )
    text = (
        f"{title}, {split}: {counted(len(table.paths), 'image')} with {layout.format} annotations,"
        f" {empty:,} without objects; {counted(len(table.labels), 'box')} of"
        f" {counted(len(names), 'class')}: {_of_classes(table, names)}; at most {int(table.counts.max(initial=0))} in"
        " an image"
    )
    text += f"; {read_as}" if read_as else ""
    text += f"; {counted(crowds, 'crowd')}" if crowds else ""
    text += f"; {difficult:,} difficult" if difficult else ""
    report(text, table.paths, ignored, layout)


def boxes(text: str, split: str = "train", data_dir: str | None = None) -> RandomAccess:
    """The source of `split` of images with boxes.

    Examples have image, boxes, labels, crowd, area and size, as docs/data.md describes them. All annotations are read
    at once; one line reports what was found.

    Args:
        text: a folder or a file, with options.
        split: a split or a slice of one; slices are of a fixed random order.
        data_dir: base of a relative path.

    Raises:
        FileNotFoundError: if there is no such folder, or no image is found.
        ValueError: if there are no annotations of boxes, they are of no use, or the split is missing.
    """
    path, chosen = split_options(text, **dict.fromkeys(OPTIONS, ""))
    root, title = locate(path, data_dir), f"boxes:{path}"
    box_numbers.check_options(text, chosen["units"], chosen["box"])
    layout = _found(root, chosen)
    if layout.format != "CSV" and (chosen["units"] or chosen["box"]):
        raise ValueError(f'"{text}": remove units= and box=, which are for tables: {layout.format} defines them.')
    asked = asked_split(layout, split, root)
    with stage(f"Reading the annotations in {root}", unit="images") as work:
        annotations = layout.splits[asked]()
        names = names_of(title, root, layout, asked, annotations, chosen["classes"])
        names = tuple(name for name in names if name not in form.NO_CLASSES)
        pictures = advancing(annotations.pictures, work)
        table = make_boxes(pictures, _numbers(names), annotations.fractions, annotations.ignored)
    check_some(title, annotations, list(zip(table.paths, table.faults)))
    if not names or not len(table.labels):
        lost = listing(annotations.ignored)
        raise ValueError(f'"{root}": no image of {asked} has a box.{f" Ignored: {lost}." if lost else ""}')
    _report(title, asked, layout, table, names, annotations.ignored, annotations.read_as)
    warn_of_turned(title, table.paths, table.sizes)
    for doubt in doubts(title, names) if len(names) > 1 else ():
        log_once(logging.WARNING, doubt)
    order = list(range(len(table.paths)))
    random.Random(0).shuffle(order)
    return _source(title, table, names, order[slice(*split_range(split, len(order)))], annotations.categories)
