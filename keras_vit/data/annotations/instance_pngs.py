"""Instances whose outlines are PNGs: maps of object numbers, or one PNG for each object.

Opening a source needs each object's box and area, which the annotations state, or `regions` finds by reading all PNGs
once. `PngTarget` reads an image's PNGs again when the image is read, in TensorFlow ops.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit.data.annotations.box_table import object_reader
from keras_vit.data.annotations.image_size import annotated_size
from keras_vit.data.annotations.outline_target import OutlineTable, OutlineTarget
from keras_vit.data.annotations.schema import AnnotatedImage, Annotations, Layout, Region
from keras_vit.data.instances import tight_boxes
from keras_vit.data.ops import orientation
from keras_vit.data.ops.decode_mask import PALETTE, png_color_type, png_colors, png_values
from keras_vit.io.cache import cached_answer
from keras_vit.io.paths import in_threads


def grey_numbers(encoded: tf.Tensor) -> tf.Tensor:
    """Decodes a map of numbers, grey levels or palette indices, int32 (h, w)."""
    return png_values(encoded)[..., 0]


def color_numbers(encoded: tf.Tensor) -> tf.Tensor:
    """Decodes COCO's panoptic map of numbers, red + 256 green + 256^2 blue, int32 (h, w)."""
    return tf.reduce_sum(tf.cast(png_colors(encoded), tf.int32) * [1, 256, 65536], -1)


def one_or_none(encoded: tf.Tensor) -> tf.Tensor:
    """Decodes the mask of one object, int32 (h, w): 1 for values or colours other than 0."""
    is_grey = tf.reduce_any(png_color_type(encoded) == [0, PALETTE])
    levels = tf.cond(
        is_grey, lambda: grey_numbers(encoded), lambda: tf.reduce_max(tf.cast(png_colors(encoded), tf.int32), -1)
    )
    return tf.cast(levels > 0, tf.int32)


@dataclasses.dataclass(frozen=True)
class Segment(Region):
    """A region whose pixels have the number `id` in the image's PNG, or are in its PNG number `id`."""

    id: int = 0


@dataclasses.dataclass
class PngImage(AnnotatedImage):
    """An image with its map of numbers, or the masks of its objects."""

    pngs: Sequence[str] = ()


@dataclasses.dataclass(frozen=True)
class PngLayout(Layout):
    """PNGs found in a folder.

    Attributes:
        numbers: callable. Decodes a PNG to numbers: one of the three above.
    """

    numbers: Callable[[tf.Tensor], tf.Tensor] = grey_numbers


def regions(pngs: Sequence[str], numbers: Callable, class_maps: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Finds the regions in PNGs, reading all once; the answer is cached.

    Args:
        pngs: sequence of str. The files.
        numbers: callable. Decodes a PNG.
        class_maps: sequence of str. A PNG of class numbers for each, or none.

    Returns:
        For each PNG its "size" and, without number 0, "ids", "boxes" (pixels), "areas" and "classes" (the largest class
        number of the pixels); or the "fault".
    """

    def find(path, class_path):
        found = numbers(tf.io.read_file(path))
        ids, place, counts = tf.unique_with_counts(tf.reshape(found, [-1]))
        place = tf.reshape(place + 1, (*tf.unstack(tf.shape(found)), 1))  # (h * w,) -> (h, w, 1)
        classes = grey_numbers(tf.io.read_file(class_path)) if class_maps else tf.zeros_like(found)
        same = tf.debugging.Assert(tf.reduce_all(tf.shape(classes) == tf.shape(found)), ["The PNGs differ in size."])
        with tf.control_dependencies([same]):
            largest = tf.math.unsorted_segment_max(tf.reshape(classes, [-1]), tf.reshape(place, [-1]), tf.size(ids) + 1)
        boxes = tight_boxes(place, tf.size(ids)) * tf.cast(tf.tile(tf.shape(found), [2]), tf.float32)
        return tf.shape(found), ids, boxes, counts, largest[1:]

    text = tf.TensorSpec((), tf.string)
    traced = tf.function(find, [text, text], autograph=False).get_concrete_function()

    def find_one(paths):
        try:
            size, ids, boxes, areas, classes = (part.numpy() for part in traced(*map(tf.constant, paths)))
        except (tf.errors.OpError, ValueError) as error:
            return {"fault": f'"{paths[0]}": {getattr(error, "message", error)}'}
        some = ids != 0
        values = {"ids": ids, "boxes": boxes.round(), "areas": areas, "classes": classes}
        return {"size": size.tolist(), **{key: value[some].tolist() for key, value in values.items()}}

    def find_all():
        return in_threads(find_one, list(zip(pngs, class_maps or pngs)))

    return cached_answer(f"regions by {numbers.__name__}", [*pngs, *class_maps], find_all)


@dataclasses.dataclass(frozen=True)
class PngTable(OutlineTable):
    """Objects and their PNGs.

    Attributes:
        boxes: BoxTable of n images and m objects.
        ids: (m,) int32. The objects' numbers in the PNGs.
        starts: (n + 1,) int64. Start of each image's PNGs.
        pngs: list of str. The PNGs.
    """

    ids: np.ndarray
    starts: np.ndarray
    pngs: list[str]


def _by_number(found, ids):
    """Returns `segments` (h, w, 2) for a map of numbers (h, w): the places of its numbers in `ids` (m,), plus 1."""
    ids = tf.concat([ids, [-1]], 0)  # never empty
    order = tf.argsort(ids)
    known = tf.gather(ids, order)
    place = tf.searchsorted(known, tf.reshape(found, [-1]))
    place = tf.reshape(tf.minimum(place, tf.size(ids) - 1), tf.shape(found))  # (h * w,) -> (h, w)
    rows = tf.where(tf.gather(known, place) == found, tf.gather(order, place) + 1, 0)
    return tf.stack([rows, rows], -1)


def _by_file(pngs, ids, numbers, size):
    """Returns `segments` (h, w, 2) for objects with a PNG each, later ones above earlier ones."""

    def add(row, segments):
        inside = numbers(tf.io.read_file(pngs[ids[row]])) > 0
        same = tf.debugging.Assert(tf.reduce_all(tf.shape(inside) == size), ["A mask has another size than the first."])
        with tf.control_dependencies([same]):
            top, low = tf.unstack(segments, axis=-1)
        return row + 1, tf.stack([tf.where(inside, row + 1, top), tf.where(inside & (low == 0), row + 1, low)], -1)

    empty = tf.zeros(tf.concat([size, [2]], 0), tf.int32)
    shape = tf.TensorShape((None, None, 2))
    return tf.while_loop(
        lambda row, segments: row < tf.size(ids), add, (0, empty), shape_invariants=(tf.TensorShape(()), shape)
    )[1]


class PngTarget(OutlineTarget):
    """Boxes and PNGs of objects, for `open_split`; `numbers` is that of the layout."""

    def __init__(self, numbers: Callable[[tf.Tensor], tf.Tensor]):
        super().__init__()
        self._numbers = numbers

    def read(self, annotations: Annotations, class_names: Sequence[str]) -> PngTable:
        images: list[Any] = list(annotations.images)
        boxes = self.read_boxes(annotations, images, class_names)
        owner = np.repeat(np.arange(len(images)), boxes.counts)
        ids = [images[i].regions[place].id for i, place in zip(owner.tolist(), boxes.places.tolist())]
        starts = np.cumsum([0, *(len(image.pngs) for image in images)])
        return PngTable(boxes, np.array(ids, "int32"), starts, [png for image in images for png in image.pngs])

    def parser(self, table: PngTable) -> Callable[[dict[str, Any]], dict[str, Any]]:
        objects, numbers, each = object_reader(table.boxes), self._numbers, self._numbers is one_or_none
        faults, sizes, rows = map(tf.constant, (table.faults, table.sizes, table.boxes.starts))
        ids, starts, pngs = tf.constant(table.ids), tf.constant(table.starts), tf.constant(table.pngs, tf.string)

        def parse(example):
            i, image = example["number"], example["image"]
            size, turned, as_stored = annotated_size(image, faults[i], sizes[i])
            own, files = ids[rows[i] : rows[i + 1]], pngs[starts[i] : starts[i + 1]]
            if each:
                segments = _by_file(files, own, numbers, tf.where(as_stored, size[::-1], size))
            else:
                segments = _by_number(numbers(tf.io.read_file(files[0])), own)
            segments = tf.cond(as_stored, lambda: orientation.upright(segments, turned), lambda: segments)
            return {"image": image, **objects(i, image), "segments": tf.ensure_shape(segments, (None, None, 2))}

        return parse
