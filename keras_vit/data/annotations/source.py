"""Sources of images with masks drawn from annotations: "masks:PATH" with COCO, LabelMe or YOLO files in PATH.

Pixels in no region belong to the class "background", number 0, or are void with the option background=void.
"""

import os
import random
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf
from absl import logging

from keras_vit.data.annotations import coco, form, labelme, yolo
from keras_vit.data.annotations.form import Layout, Picture, Region
from keras_vit.data.annotations.mask_table import Table, make_table, mask_drawer
from keras_vit.data.annotations.opening import advancing, asked_split, check_some, names_of, report
from keras_vit.data.annotations.turned import warn_of_turned
from keras_vit.data.sources.base import RandomAccess
from keras_vit.data.sources.classes_file import doubts
from keras_vit.data.sources.image_files import read_image
from keras_vit.data.sources.mask_tables import is_void_name
from keras_vit.data.splits import split_range
from keras_vit.io.logs import log_once
from keras_vit.io.paths import in_threads, locate, split_options
from keras_vit.io.progress import stage
from keras_vit.io.suggest import counted, did_you_mean, listed
from keras_vit.io.void import void_value

OPTIONS = ("background", "images", "classes", "ignore")
BACKGROUND = "background"
_SAMPLE = 100  # masks to draw for the report
_SHOWN = 30  # classes to report


def find(path: str, images: str = "", classes: str = "") -> Layout | None:
    """Finds annotations in a folder, or in a JSON or YAML file; None without any.

    Args:
        path: str. Folder or file, local or in a bucket.
        images: str. Folder of COCO's images; "" to look for it.
        classes: str. A file of class names, for YOLO without them; "" without one.

    Raises:
        ValueError: if several files are candidates.
    """
    images = locate(images, path if tf.io.gfile.isdir(path) else os.path.dirname(path)) if images else ""
    found = yolo.find(path) or coco.find(path, images) or (labelme.find(path) if tf.io.gfile.isdir(path) else None)
    return found or yolo.find_nameless(path, False, classes)


def _is_background(name):
    return name.strip("_").lower() == BACKGROUND


class _Numbers:
    """Maps labels to class numbers.

    Attributes:
        names: tuple of str. Class names, in order.
        void: int. Value of pixels without a class.
        background: int. Value of pixels in no region.
        ignored: list of str. Labels that mean void.
    """

    def __init__(self, declared: Sequence[str], background_is_void: bool, ignore: str):
        chosen = [name.strip() for name in ignore.split(",") if name.strip()]
        known = {name.lower(): name for name in declared}
        unknown = [name for name in chosen if name.lower() not in known and name != "none"]
        if unknown:
            raise ValueError(
                f"ignore={ignore}: {unknown[0]} is not a class. Expected none, or comma-separated classes:"
                f" {listed(list(declared))}.{did_you_mean(unknown[0], declared)}"
            )

        def is_void(name):
            return name.lower() in map(str.lower, chosen) or (not chosen and is_void_name(name))

        self.ignored = [name for name in declared if is_void(name)]
        names = [name for name in declared if name not in self.ignored]
        if not background_is_void:
            names = [BACKGROUND, *(name for name in names if not _is_background(name))]
        self.names = tuple(names)
        self.void = void_value(len(names))
        self.background = self.void if background_is_void else 0
        self._number = {name: i for i, name in enumerate(names)} | dict.fromkeys(self.ignored, self.void)
        if not background_is_void:
            self._number |= dict.fromkeys(filter(_is_background, declared), 0)
        if len(names) < 2:
            raise ValueError(
                f"Expected at least 2 classes, but the annotations have {counted(len(names), 'class')}"
                f" ({listed(names)}) and void. Without ?background=void, the pixels in no region are a class."
            )

    def value_of(self, region: Region, picture: Picture) -> int:
        """Returns the value of a region's pixels.

        Raises:
            ValueError: for an unknown label.
        """
        number = self._number.get(region.label)
        if number is None:
            raise ValueError(
                f'{region.name} of "{picture.path}" has the unknown class "{region.label}".'
                f"{did_you_mean(region.label, self._number)} Valid: {listed(list(self.names))}."
            )
        return number


def _with_regions(pictures: Iterator[Picture], needed: bool, ignored) -> Iterator[Picture]:
    """Yields `pictures`; if `needed`, drops and counts pictures without regions."""
    for picture in pictures:
        if needed and not picture.regions and not picture.fault:
            ignored[form.NO_REGION].append(picture.path)
        else:
            yield picture


def _source(title, table: Table, numbers: _Numbers, order) -> RandomAccess:
    """Makes a source of the images at positions `order`, (m,), in the table."""
    paths = tf.constant([os.fsencode(path) for path in table.paths])
    order = tf.constant(order, tf.int64)
    draw = mask_drawer(table)

    def lookup(i):
        return {"image": read_image(paths[order[i]]), "number": order[i]}

    def parse(example):
        mask = draw(example["number"], example["image"])
        some = tf.reduce_any(mask != tf.cast(numbers.void, mask.dtype))
        what = "The mask is all void: no pixel has a class to learn from."
        with tf.control_dependencies([tf.debugging.Assert(some, [what])]):
            mask = tf.identity(mask)
        return {"image": example["image"], "mask": mask, "void": tf.constant(numbers.void, mask.dtype)}

    def name_of(i):
        return paths[order[i]]

    return RandomAccess(title, numbers.names, None, lookup, name_of, count=len(order), void=numbers.void, parse=parse)


def _shares(source: RandomAccess) -> tuple[int, np.ndarray]:
    """Draws a sample of a source's masks, skipping failures; returns (their number, pixels of each class and void)."""
    classes = len(source.class_names)

    def count(i):
        mask = tf.cast(source.read(i)["mask"], tf.int32)
        return tf.math.bincount(tf.reshape(tf.minimum(mask, classes), [-1]), minlength=classes + 1, dtype=tf.int64)

    counter = tf.function(count, [tf.TensorSpec((), tf.int64)], autograph=False).get_concrete_function()

    def one(i):
        try:
            return counter(tf.constant(i, tf.int64)).numpy()
        except (tf.errors.OpError, ValueError):
            return None

    size = min(source.size, _SAMPLE)
    counts = [found for found in in_threads(one, [i * source.size // size for i in range(size)]) if found is not None]
    return len(counts), sum(counts, np.zeros(classes + 1, "int64"))


def _report(title, split, layout, table, numbers, source, ignored):
    """Logs one line about the annotations; warns if some are ignored."""
    looked, pixels = _shares(source)
    part = pixels[:-1] / max(pixels[:-1].sum(), 1)
    shown = [f"{numbers.names[i]} {part[i]:.1%}" for i in np.argsort(-part, kind="stable")]
    empty = int((np.diff(table.parts) == 0).sum()) - sum(map(bool, table.faults))
    text = (
        f"{title}, {split}: {counted(len(table.paths), 'image')} with {layout.format} annotations of"
        f" {counted(len(numbers.names), 'class')} ({layout.overlaps}); share of pixels in {counted(looked, 'mask')}:"
        f" {listed(shown, _SHOWN)}; void {pixels[-1] / max(pixels.sum(), 1):.1%}"
    )
    text += f"; void is {listed(numbers.ignored)}" if numbers.ignored else ""
    text += f"; {counted(empty, 'image')} without regions, all {BACKGROUND}" if empty else ""
    report(text, table.paths, ignored, layout)


def annotated(layout: Layout, text: str, split: str = "train", data_dir: str | None = None) -> RandomAccess:
    """Opens a split of annotations as masks.

    Args:
        layout: Layout. From `find`.
        text: str. The path, with options: background=void; classes=, a file with the order of LabelMe's labels;
            ignore=, class names that mean void.
        split: str. A split, or a slice of its fixed random order.
        data_dir: str. Base of a relative path.

    Raises:
        FileNotFoundError: if no image is found.
        ValueError: if the annotations are unusable, or the split is missing.
    """
    path, chosen = split_options(text, **dict.fromkeys(OPTIONS, ""))
    root, title = locate(path, data_dir), f"masks:{path}"
    if chosen["background"] not in ("", "void"):
        raise ValueError(f'"{text}": expected background=void, got background={chosen["background"]}.')
    asked = asked_split(layout, split, root)
    with stage(f"Reading the annotations in {root}", unit="images") as work:
        annotations, is_void = layout.splits[asked](), chosen["background"] == "void"
        names = names_of(title, root, layout, asked, annotations, chosen["classes"])
        numbers = _Numbers(names, is_void, chosen["ignore"])
        pictures = advancing(_with_regions(annotations.pictures, is_void, annotations.ignored), work)
        table = make_table(pictures, numbers.value_of, annotations.fractions, numbers.void > 255, numbers.background)
    check_some(title, annotations, list(zip(table.paths, table.faults)))
    order = list(range(len(table.paths)))
    random.Random(0).shuffle(order)
    whole = _source(title, table, numbers, order)
    _report(title, asked, layout, table, numbers, whole, annotations.ignored)
    warn_of_turned(title, table.paths, table.sizes)
    for doubt in doubts(title, numbers.names):
        log_once(logging.WARNING, doubt)
    return _source(title, table, numbers, order[slice(*split_range(split, len(order)))])
