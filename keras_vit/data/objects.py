"""Objects in batches: the boxes of each image as the same number of rows, of which the last ones are padding.

A row has the COLUMNS of io/target_values.py. A training target for detection is (b, m, 7) float32.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit.data.annotations.image_size import upright_size
from keras_vit.data.sources.base import Source
from keras_vit.io.suggest import listed
from keras_vit.io.target_values import COLUMNS, DIFFICULT, OBJECT, PADDING_ROW

_KEYS = ("boxes", "labels", "crowd", "area")


def object_rows(example: dict[str, Any]) -> tf.Tensor:
    """The objects of an example as rows (m, 7) float32, in tf.data.

    Raises:
        ValueError: if a key is missing.
    """
    missing = [key for key in _KEYS if key not in example]
    if missing:
        raise ValueError(f"Objects need {listed(list(_KEYS))}; the example has no {listed(missing)}: {list(example)}.")
    columns = [example["boxes"], *(example[key][:, None] for key in _KEYS[1:])]
    return tf.concat([tf.cast(column, tf.float32) for column in columns], 1)


def padded(rows: tf.Tensor, limit: int) -> tf.Tensor:
    """Rows (m, n), of which those with a positive area come first, in their order, then padding: (limit, n).

    Raises:
        InvalidArgumentError: at run time, for more objects than `limit`.
    """
    rows = rows[(rows[:, 2] > rows[:, 0]) & (rows[:, 3] > rows[:, 1])]
    count, width = tf.shape(rows)[0], rows.shape[1]
    message = ["The image has", count, "objects, more than the limit of", limit, "in a batch: raise the limit."]
    with tf.control_dependencies([tf.debugging.Assert(count <= limit, message)]):
        row = tf.constant([[*PADDING_ROW, *[0.0] * (width - len(COLUMNS))]])
        padding = tf.tile(row, [tf.maximum(limit - count, 0), 1])
        return tf.ensure_shape(tf.concat([rows, padding], 0), (limit, width))


def pack(example: dict[str, Any], limit: int) -> tf.Tensor:
    """The objects of an example as rows (limit, 7) float32, in tf.data.

    Boxes with a positive area come first, in their order; padding takes the place of the others, which lie outside of
    the crop, and fills the rest.

    Args:
        example: with boxes (m, 4), top, left, bottom, right as fractions of the image; labels, crowd and area (m,).
        limit: number of rows.

    Returns:
        Rows of COLUMNS. Padding has the label -1, and zeros.

    Raises:
        ValueError: if a key is missing.
        InvalidArgumentError: at run time, for more objects than `limit`.
    """
    return padded(object_rows(example), limit)


def complete(example: dict[str, Any]) -> dict[str, Any]:
    """An example with boxes and labels -> with all that detection takes, in the usual dtypes; runs in a graph.

    Without `crowd` all are objects; `difficult`, 1 or true for these, becomes a part of it. Without `area` it is that
    of the boxes, without `size` it is the image's.
    """
    image, boxes = example["image"], tf.cast(example["boxes"], tf.float32)
    size = example.get("size")
    if size is None:
        size = upright_size(image) if image.dtype == tf.string else tf.shape(image)[:2]
    size, labels = tf.cast(size, tf.int32), tf.cast(example["labels"], tf.int32)
    sides = (boxes[:, 2:] - boxes[:, :2]) * tf.cast(size, tf.float32)  # (m, 2)
    crowd = tf.cast(example.get("crowd", tf.zeros_like(labels)), tf.int32)
    if "difficult" in example:
        crowd = tf.where((crowd == OBJECT) & tf.cast(example["difficult"], tf.bool), DIFFICULT, crowd)
    area = tf.cast(example.get("area", tf.reduce_prod(sides, 1)), tf.float32)
    others = {key: value for key, value in example.items() if key != "difficult"}
    return {**others, "boxes": boxes, "labels": labels, "crowd": crowd, "area": area, "size": size}


def has_objects(source: Source) -> bool:
    """Whether any image of a source of boxes has an object with an area that is neither a crowd nor difficult.

    Reads images, but does not decode them, until it finds one; skips broken ones.
    """

    def found(example):
        top, left, bottom, right = tf.unstack(example["boxes"], 4, axis=1)
        return tf.reduce_any((example["crowd"] == OBJECT) & (bottom > top) & (right > left))

    return any(source.ordered().map(found).ignore_errors().as_numpy_iterator())


def pack_objects(
    boxes: Sequence[Any],
    labels: Sequence[Any],
    limit: int | None = None,
    crowd: Sequence[Any] | None = None,
    area: Sequence[Any] | None = None,
) -> np.ndarray:
    """The objects of images as rows (b, limit, 7) float32: targets for `fit` in a script.

    Args:
        boxes: (m, 4) per image: top, left, bottom, right as fractions of the image.
        labels: (m,) per image: class numbers from 0.
        limit: number of rows; None for the largest number of objects in one image, at least 1.
        crowd: (m,) per image: 0 an object, 1 a crowd, 2 difficult; None for objects only.
        area: (m,) per image, in pixels, for measures by size; None for 0.

    Returns:
        Rows of COLUMNS. Padding has the label -1, and zeros.

    Raises:
        ValueError: for other shapes, pixels instead of fractions, negative labels, or more objects than `limit`.
    """
    if len(boxes) != len(labels):
        raise ValueError(f"Expected boxes and labels of the same images, got {len(boxes)} and {len(labels)}.")
    return padded_arrays([rows_of_image(i, boxes[i], labels[i], crowd, area) for i in range(len(boxes))], limit)


def padded_arrays(rows: Sequence[np.ndarray], limit: int | None) -> np.ndarray:
    """The rows (m, n) of each image, of which those with a positive area are kept, and padding: (b, limit, n).

    Without a limit there is a row at least: losses compare something also in a batch without objects.

    Raises:
        ValueError: for more objects than `limit`.
    """
    rows = [found[(found[:, 2] > found[:, 0]) & (found[:, 3] > found[:, 1])] for found in rows]
    most = max(map(len, rows), default=0)
    limit = max(most, 1) if limit is None else limit
    if most > limit:
        number = next(i for i, image_rows in enumerate(rows) if len(image_rows) > limit)
        raise ValueError(f"Image {number} has {len(rows[number])} objects, more than limit={limit}: raise the limit.")
    width = rows[0].shape[1] if rows else len(COLUMNS)
    row = np.zeros(width, "float32")
    row[: len(COLUMNS)] = PADDING_ROW
    packed = np.tile(row, (len(rows), limit, 1))  # (b, m, n)
    for i, image_rows in enumerate(rows):
        packed[i, : len(image_rows)] = image_rows
    return packed


def rows_of_image(
    number: int,
    boxes: Any,
    labels: Any,
    crowd: Sequence[Any] | None,
    area: Sequence[Any] | None,
    things: str = "boxes",
) -> np.ndarray:
    """The rows (m, 7) of image `number`; crowd and area are those of all images. Raises ValueError, as pack_objects,
    about so many `things`.
    """
    for name, column in (("crowd", crowd), ("area", area)):
        if column is not None and len(column) <= number:
            raise ValueError(
                f"Image {number}: {name} has the values of {len(column)} images. Pass those of all images."
            )
    boxes = np.asarray(boxes, "float32").reshape(-1, 4) if not len(boxes) else np.asarray(boxes, "float32")
    if boxes.ndim != 2 or boxes.shape[1] != 4:
        raise ValueError(f"Image {number}: expected boxes (m, 4), got {boxes.shape}.")
    if not ((boxes >= 0) & (boxes <= 1)).all():  # NaN, too
        raise ValueError(
            f"Image {number}: boxes are fractions of the image's height and width, from 0 to 1: divide pixels by these."
        )
    further = [labels, *(np.zeros(len(boxes)) if column is None else column[number] for column in (crowd, area))]
    for name, values in zip(_KEYS[1:], further):
        if np.shape(values) != (len(boxes),):
            raise ValueError(
                f"Image {number}: {len(boxes)} {things} need {name} ({len(boxes)},), got {np.shape(values)}."
            )
    if len(boxes) and not np.issubdtype(np.asarray(labels).dtype, np.number):
        raise ValueError(f"Image {number}: labels are class numbers from 0, got {list(labels)[0]!r}.")
    if len(boxes) and np.min(labels) < 0:
        raise ValueError(f"Image {number}: the label {np.min(labels)}; classes are numbered from 0.")
    return np.column_stack([boxes, *(np.asarray(values, "float32") for values in further)])
