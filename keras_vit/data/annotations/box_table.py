"""Boxes of annotations in memory as a few arrays, from which an image's objects are looked up when it is read.

Boxes of all images are checked together: COCO's 860,000 take seconds.
"""

import collections
import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit.data.annotations import schema
from keras_vit.data.annotations.image_size import annotated_size
from keras_vit.data.annotations.schema import AnnotatedImage, Ignored, Region
from keras_vit.io.target_values import CROWD, DIFFICULT, OBJECT


@dataclasses.dataclass(frozen=True)
class BoxTable:
    """The boxes of n images, m in all.

    Attributes:
        paths: (n,) of the image files.
        faults: (n,) why an image cannot be used; "" if it can.
        sizes: (n, 2) int32 stated heights and widths; 0 if not stated.
        starts: (n + 1,) int64, where each image's boxes begin.
        boxes: (m, 4) float32 top, left, bottom, right: fractions; pixels where no size is stated, unless `fractions`.
        labels: (m,) int32 class numbers.
        crowd: (m,) int32: 0 an object, 1 a crowd, 2 difficult.
        area: (m,) float32 pixels; -1 where that takes the image's size.
        fractions: whether the annotations state fractions.
        ids: (n,) of the images in COCO's annotations; None elsewhere.
        places: (m,) int64, the place of each box among its image's regions.
    """

    paths: list[str]
    faults: list[str]
    sizes: np.ndarray
    starts: np.ndarray
    boxes: np.ndarray
    labels: np.ndarray
    crowd: np.ndarray
    area: np.ndarray
    fractions: bool
    ids: list[int | str | None]
    places: np.ndarray

    @property
    def counts(self) -> np.ndarray:
        """(n,) boxes of each image."""
        return np.diff(self.starts)


def crowd_value(region: Region) -> int:
    """The value of "crowd" for a region."""
    return CROWD if region.crowd else DIFFICULT if region.difficult else OBJECT


def _clean(boxes, limits, names, ignored, fractions):
    """((m, 4) boxes with corners in order and cut off at the image's edge, (m,) bool which to keep); counts the others.

    Args:
        boxes: (m, 4) as stated.
        limits: (m, 2) height and width of each box's image in the units of boxes; infinite if unknown.
        names: position -> the box's name.
        ignored: where to count.
        fractions: whether boxes are fractions.
    """
    low, high = np.minimum(boxes[:, :2], boxes[:, 2:]), np.maximum(boxes[:, :2], boxes[:, 2:])
    beside = schema.BESIDE / 100 if fractions else schema.BESIDE
    empty = (high <= low).any(-1)
    outside = ~empty & ((high <= 0) | (low >= limits)).any(-1)
    kept = ~empty & ~outside
    found = {
        schema.NO_AREA: empty,
        schema.OUTSIDE: outside,
        schema.SWAPPED: kept & (boxes[:, 2:] < boxes[:, :2]).any(-1),
        schema.CLIPPED: kept & ((low < -beside) | (high > limits + beside)).any(-1),
    }
    for reason, which in found.items():
        ignored[reason] += [names(i) for i in np.flatnonzero(which)]
    return np.concatenate([np.maximum(low, 0), np.minimum(high, limits)], -1), kept


def _repeated(owner, labels, boxes):
    """(m,) bool: whether a box has the image, class and corners of an earlier one."""
    rows = np.column_stack([owner, labels, boxes])
    order = np.lexsort(rows.T)  # stable
    same = np.zeros(len(rows), bool)
    same[order[1:]] = (rows[order[1:]] == rows[order[:-1]]).all(-1)
    return same


@dataclasses.dataclass
class _Rows:
    """The boxes as they are read: lists with an entry for each box."""

    owner: list[int] = dataclasses.field(default_factory=list)
    places: list[int] = dataclasses.field(default_factory=list)
    boxes: list[schema.Box] = dataclasses.field(default_factory=list)
    labels: list[int] = dataclasses.field(default_factory=list)
    crowd: list[int] = dataclasses.field(default_factory=list)
    area: list[float] = dataclasses.field(default_factory=list)
    names: list[str] = dataclasses.field(default_factory=list)

    def add(self, number: int, place: int, region: Region, box: schema.Box, label: int) -> None:
        self.owner.append(number)
        self.places.append(place)
        self.boxes.append(box)
        self.labels.append(label)
        self.crowd.append(crowd_value(region))
        self.area.append(-1.0 if region.pixels is None else region.pixels)
        self.names.append(region.name)


def make_boxes(
    images: Iterable[AnnotatedImage],
    number_of: Callable[[Region, AnnotatedImage], int],
    fractions: bool,
    ignored: Ignored,
) -> BoxTable:
    """The BoxTable of images.

    Args:
        images: read once.
        number_of: callable. Maps a region and its image to the class number.
        fractions: whether coordinates are fractions, not pixels.
        ignored: counts boxes that are left out, cut off or put in order.
    """
    paths, faults, sizes, ids, rows = [], [], [], [], _Rows()
    for number, image in enumerate(images):
        paths.append(image.path)
        faults.append(image.fault)
        ids.append(image.id)
        sizes.append(image.size or (0, 0))
        for place, region in enumerate(image.regions):
            box = schema.bounding_box(region, image.size)
            if region.label in schema.NO_CLASSES:
                ignored[schema.TO_IGNORE].append(f"{region.name} of {image.path}")
            elif box is not None:
                rows.add(number, place, region, box, number_of(region, image))
    stated = np.array(sizes, "int32").reshape(-1, 2)
    return _table(paths, faults, stated, rows, fractions, ids, ignored)


def _table(paths, faults, sizes, rows, fractions, ids, ignored):
    """The BoxTable of _Rows."""
    owner, labels = np.array(rows.owner, "int64"), np.array(rows.labels, "int32")
    crowd, area = np.array(rows.crowd, "int32"), np.array(rows.area, "float64")
    boxes = np.array(rows.boxes, "float64").reshape(-1, 4)
    scale = sizes[owner].astype("float64")  # (m, 2)
    limits = np.ones_like(scale) if fractions else np.where(scale > 0, scale, np.inf)

    def name(i):
        return f"{rows.names[i]} of {paths[owner[i]]}"

    boxes, kept = _clean(boxes, limits, name, ignored, fractions)
    again = kept & _repeated(owner, labels, boxes)
    ignored[schema.TWICE] += [name(i) for i in np.flatnonzero(again)]
    kept &= ~again
    own_area = (boxes[:, 2:] - boxes[:, :2]).prod(-1) * (scale.prod(-1) if fractions else 1)
    area = np.where((area < 0) & (scale > 0).all(-1), own_area, area)
    if not fractions:
        boxes = boxes / np.tile(np.where(scale > 0, scale, 1), 2)
    counts = np.bincount(owner[kept], minlength=len(paths))
    return BoxTable(
        paths,
        faults,
        sizes,
        np.concatenate([[0], np.cumsum(counts)]).astype("int64"),
        boxes[kept].astype("float32"),
        labels[kept],
        crowd[kept],
        area[kept].astype("float32"),
        fractions,
        ids,
        np.array(rows.places, "int64")[kept],
    )


def upright_boxes(boxes: tf.Tensor, turned: tf.Tensor) -> tf.Tensor:
    """Boxes (m, 4), fractions of a stored image, as fractions of the upright one, by EXIF's orientation 5 to 8."""
    top, left, bottom, right = tf.unstack(boxes, axis=1)
    top, left, bottom, right = left, top, right, bottom
    left, right = _mirrored(left, right, (turned == 6) | (turned == 7))
    top, bottom = _mirrored(top, bottom, turned >= 7)
    return tf.stack([top, left, bottom, right], 1)


def _mirrored(low, high, where):
    return tf.where(where, 1 - high, low), tf.where(where, 1 - low, high)


def object_reader(table: BoxTable) -> Callable[[tf.Tensor, tf.Tensor], dict[str, Any]]:
    """Returns a function from an image's number, int64, and encoded bytes to its objects; for graphs.

    These are boxes, labels, crowd, area and size, as in docs/data.md. Boxes of an image annotated as stored, judged by
    the stated size, are turned with it.

    Raises:
        InvalidArgumentError: at run time, for an image with a fault, or of another size than stated.
    """
    columns = {key: tf.constant(getattr(table, key)) for key in ("boxes", "labels", "crowd", "area")}
    faults, sizes, starts = (tf.constant(values) for values in (table.faults, table.sizes, table.starts))

    def read(number, encoded):
        size, turned, as_stored = annotated_size(encoded, faults[number], sizes[number])
        row = {key: values[starts[number] : starts[number + 1]] for key, values in columns.items()}
        whole = tf.cast(tf.tile(size, [2]), tf.float32)  # height, width, height, width
        in_pixels = (sizes[number][0] == 0) & (not table.fractions)
        boxes = tf.clip_by_value(row["boxes"] / tf.where(in_pixels, whole, 1.0), 0.0, 1.0)
        boxes = tf.where(as_stored, upright_boxes(boxes, turned), boxes)
        by_size = tf.reduce_prod((boxes[:, 2:] - boxes[:, :2]) * whole[:2], 1)
        area = tf.where(row["area"] < 0, by_size, row["area"])
        return {**row, "boxes": boxes, "area": area, "size": size}

    return read


def median_sides(table: BoxTable) -> tuple[dict[int, float], bool]:
    """({class number: the median of the square root of its boxes' areas}, whether that is in pixels, or a fraction)."""
    in_pixels = not table.fractions or (table.area > 0).all()
    sides = np.sqrt((table.boxes[:, 2:] - table.boxes[:, :2]).prod(-1))
    if in_pixels:
        owner = np.repeat(np.arange(len(table.paths)), table.counts)
        scale = table.sizes[owner].prod(-1)
        sides = sides * np.sqrt(np.where(scale > 0, scale, 1))
    by_class = collections.defaultdict(list)
    for label, side in zip(table.labels.tolist(), sides.tolist()):
        by_class[label].append(side)
    return {label: float(np.median(found)) for label, found in by_class.items()}, bool(in_pixels)
