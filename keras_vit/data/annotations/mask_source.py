"""Sources of images with masks drawn from annotations: "masks:PATH" with COCO, LabelMe or YOLO files in PATH.

Pixels in no region belong to the class "background", number 0, or are void with the option background=void.
"""

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit.data.annotations import coco, labelme, schema, yolo
from keras_vit.data.annotations.mask_table import Table, make_table, mask_drawer
from keras_vit.data.annotations.opening import open_split
from keras_vit.data.annotations.schema import AnnotatedImage, Annotations, Ignored, Layout
from keras_vit.data.sources.base import RandomAccess
from keras_vit.data.sources.mask_tables import is_void_name
from keras_vit.data.splits import spread
from keras_vit.io.paths import in_threads, locate, split_options
from keras_vit.io.suggest import counted, did_you_mean, listed
from keras_vit.io.target_values import void_value

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
        by_name: dict. Value of each label's pixels.
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
        self.by_name = {name: i for i, name in enumerate(names)} | dict.fromkeys(self.ignored, self.void)
        if not background_is_void:
            self.by_name |= dict.fromkeys(filter(_is_background, declared), 0)
        if len(names) < 2:
            raise ValueError(
                f"Expected at least 2 classes, but the annotations have {counted(len(names), 'class')}"
                f" ({listed(names)}) and void. Without ?background=void, the pixels in no region are a class."
            )


def _drop_empty(images: Iterator[AnnotatedImage], ignored: Ignored) -> Iterator[AnnotatedImage]:
    """Drops and counts images without regions."""
    for image in images:
        if image.regions or image.fault:
            yield image
        else:
            ignored[schema.NO_REGION].append(image.path)


def _class_shares(source: RandomAccess) -> tuple[int, np.ndarray]:
    """Draws a sample of a source's masks, skipping failures; returns (their number, pixels of each class and void)."""
    classes = len(source.class_names)

    def count(i):
        mask = tf.cast(source.read(i)["mask"], tf.int32)
        return tf.math.bincount(tf.reshape(tf.minimum(mask, classes), [-1]), minlength=classes + 1, dtype=tf.int64)

    counter = tf.function(count, [tf.TensorSpec((), tf.int64)], autograph=False).get_concrete_function()

    def count_one(i):
        try:
            return counter(tf.constant(i, tf.int64)).numpy()
        except (tf.errors.OpError, ValueError):
            return None

    counts = in_threads(count_one, spread(range(source.size), _SAMPLE))
    counts = [found for found in counts if found is not None]
    return len(counts), sum(counts, np.zeros(classes + 1, "int64"))


class MaskTarget:
    """Masks drawn from annotations, for `open_split`.

    Args:
        background_is_void: bool. Whether pixels in no region have no class.
        ignore: str. Comma-separated labels that mean void; "none"; or "" for the usual ones.
    """

    needs_classes = True

    def __init__(self, background_is_void: bool, ignore: str):
        self._background_is_void, self._ignore = background_is_void, ignore

    def read(self, annotations: Annotations, class_names: Sequence[str]) -> Table:
        images = annotations.images
        if self._background_is_void:
            images = _drop_empty(images, annotations.ignored)
        self._numbers = numbers = _Numbers(class_names, self._background_is_void, self._ignore)
        self.class_names = numbers.names
        value_of = functools.partial(schema.class_number, numbers.by_name)
        return make_table(images, value_of, annotations.fractions, numbers.void > 255, numbers.background)

    def fields(self, table: Table, rows: Sequence[int]) -> dict[str, Any]:
        return {"void": self._numbers.void}

    def parser(self, table: Table) -> Callable[[dict[str, Any]], dict[str, Any]]:
        draw, void = mask_drawer(table), self._numbers.void

        def parse(example):
            mask = draw(example["number"], example["image"])
            some = tf.reduce_any(mask != tf.cast(void, mask.dtype))
            what = "The mask is all void: no pixel has a class to learn from."
            with tf.control_dependencies([tf.debugging.Assert(some, [what])]):
                mask = tf.identity(mask)
            return {"image": example["image"], "mask": mask, "void": tf.constant(void, mask.dtype)}

        return parse

    def describe(self, title: str, table: Table, whole: Callable[[], RandomAccess], layout: Layout) -> str:
        names, ignored = self.class_names, self._numbers.ignored
        looked, pixels = _class_shares(whole())
        part = pixels[:-1] / max(pixels[:-1].sum(), 1)
        shown = [f"{names[i]} {part[i]:.1%}" for i in np.argsort(-part, kind="stable")]
        empty = int((np.diff(table.parts) == 0).sum()) - sum(map(bool, table.faults))
        text = (
            f"{title}: {counted(len(table.paths), 'image')} with {layout.format} annotations of"
            f" {counted(len(names), 'class')} ({layout.overlaps}); share of pixels in {counted(looked, 'mask')}:"
            f" {listed(shown, _SHOWN)}; void {pixels[-1] / max(pixels.sum(), 1):.1%}"
        )
        text += f"; void is {listed(ignored)}" if ignored else ""
        return text + (f"; {counted(empty, 'image')} without regions, all {BACKGROUND}" if empty else "")


def open_masks(layout: Layout, text: str, split: str = "train", data_dir: str | None = None) -> RandomAccess:
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
    path, options = split_options(text, **dict.fromkeys(OPTIONS, ""))
    if options["background"] not in ("", "void"):
        raise ValueError(f'"{text}": expected background=void, got background={options["background"]}.')
    target = MaskTarget(options["background"] == "void", options["ignore"])
    return open_split(target, layout, f"masks:{path}", locate(path, data_dir), split, options["classes"])
