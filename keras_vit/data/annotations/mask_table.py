"""Stores annotations in memory as a few arrays and draws each mask when its image is read.

COCO's 118,000 training images take 200 MB. Masks are drawn in TensorFlow, so in parallel, also by the workers of a data
service, and identically after a run resumes.
"""

import dataclasses
from collections.abc import Callable, Iterable

import numpy as np
import tensorflow as tf

from keras_vit.data.annotations.image_size import annotated_size
from keras_vit.data.annotations.rasterise import FIFTHS, group_numbers, painted, polygon_spans, run_spans, to_fifths
from keras_vit.data.annotations.schema import AnnotatedImage, Region
from keras_vit.data.ops import orientation


@dataclasses.dataclass(frozen=True)
class Table:
    """The regions of n images; "parts" are polygons and runs, in drawing order.

    Attributes:
        paths: (n,) str. The image files.
        faults: (n,) str. Why an image is unusable; "" if it is usable.
        sizes: (n, 2) int32. Stated heights and widths; 0 if not stated.
        parts: (n + 1,) int64. Start of each image's parts.
        values: (parts,) uint8 or int32. Value of each part.
        points: (parts + 1,) int64. Start of each part's vertices.
        vertices: (vertices, 2). x and y, as int32 fifths of a pixel or float32 fractions of width and height.
        runs: (parts + 1,) int64. Start of each part's counts.
        counts: (counts,) int32. Run lengths.
        background: int. Value of pixels in no part.
    """

    paths: list[str]
    faults: list[str]
    sizes: np.ndarray
    parts: np.ndarray
    values: np.ndarray
    points: np.ndarray
    vertices: np.ndarray
    runs: np.ndarray
    counts: np.ndarray
    background: int


def _starts(sizes):
    """Returns the starts of groups of these sizes, and the end: (2, 3) -> (0, 2, 5)."""
    return np.concatenate([[0], np.cumsum(sizes, dtype="int64")]).astype("int64")


def _joined(arrays, empty):
    return np.concatenate(arrays) if arrays else empty


def make_table(
    images: Iterable[AnnotatedImage],
    value_of: Callable[[Region, AnnotatedImage], int],
    fractions: bool,
    wide: bool,
    background: int,
) -> Table:
    """Makes the Table of images.

    Args:
        images: iterable of AnnotatedImage. Read once.
        value_of: callable. Maps a region and its image to the value to draw.
        fractions: bool. Whether coordinates are fractions, not pixels.
        wide: bool. Whether values exceed 255.
        background: int. Value of pixels in no region.
    """
    paths, faults, sizes, parts, values, points, runs = [], [], [], [], [], [], []
    vertices, counts = [], []
    kind = "float32" if fractions else "int32"
    for image in images:
        before, drawn = len(values), []
        for region in image.regions:
            value = value_of(region, image)
            drawn += region.polygons
            values += [value] * (len(region.polygons) + (region.runs is not None))
            points += map(len, region.polygons)
            runs += [0] * len(region.polygons)
            if region.runs is not None:
                points.append(0)
                runs.append(len(region.runs))
                counts.append(region.runs.astype("int32"))
        if drawn:
            together = np.concatenate(drawn)
            vertices.append((together if fractions else to_fifths(together)).astype(kind))
        paths.append(image.path)
        faults.append(image.fault)
        sizes.append(image.size or (0, 0))
        parts.append(len(values) - before)
    return Table(
        paths,
        faults,
        np.array(sizes, "int32").reshape(-1, 2),
        _starts(parts),
        np.array(values, "int32" if wide else "uint8"),
        _starts(points),
        _joined(vertices, np.zeros((0, 2), kind)),
        _starts(runs),
        _joined(counts, np.zeros(0, "int32")),
        background,
    )


def mask_drawer(table: Table, lowest: bool = False) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """Returns a function from an image's number, int64, and encoded bytes to its upright mask (h, w, 1); for graphs.

    With `lowest`, (h, w, 2): also the lowest region at each pixel.

    Annotations that state the size of an image's stored pixels are turned like EXIF data turns the image.

    Raises:
        InvalidArgumentError: at run time, for an image with a fault or a size unlike the stated one.
    """
    faults, sizes = tf.constant(table.faults), tf.constant(table.sizes)
    parts, values = tf.constant(table.parts), tf.constant(table.values)
    points, vertices = tf.constant(table.points), tf.constant(table.vertices)
    runs, counts = tf.constant(table.runs), tf.constant(table.counts)

    def owned(starts, items, first, last):
        """Returns the items of the image's parts, and each one's part, from 0."""
        bounds = starts[first : last + 1]
        own = items[bounds[0] : bounds[-1]]
        return own, group_numbers(tf.cast(bounds[1:] - bounds[:-1], tf.int32))

    def draw(number, encoded):
        size, turned, as_stored = annotated_size(encoded, faults[number], sizes[number])
        height, width = tf.unstack(tf.where(as_stored, size[::-1], size))
        first, last = parts[number], parts[number + 1]
        corners, rings = owned(points, vertices, first, last)
        if corners.dtype.is_floating:
            scale = tf.cast(FIFTHS * tf.stack([width, height]), tf.float64)
            corners = tf.cast(tf.cast(corners, tf.float64) * scale + 0.5, tf.int32)
        spans = polygon_spans(corners, rings, height, width), run_spans(*owned(runs, counts, first, last))
        order, start, end = (tf.concat(pair, 0) for pair in zip(*spans))
        mask = painted(order, start, end, values[first:last], table.background, height, width, lowest)
        return tf.cond(as_stored, lambda: orientation.upright(mask, turned), lambda: mask)

    return draw
