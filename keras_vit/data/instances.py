"""Objects with masks in batches: each image's objects as the same number of rows, of which the last ones are padding.

A row has the COLUMNS of io/target_values.py, then the object's mask on a coarse grid (h', w'), row by row: the share of
each cell's pixels inside the object. A training target is (b, m, 7 + h' * w') float32.

As in segmentation/mask_loss.py, a cell that is not a whole number of pixels is sampled, with the next whole number of
rows and columns. No pixel is left out, so an object of one pixel has a cell.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit.data.objects import object_rows, padded, padded_arrays, rows_of_image
from keras_vit.data.ops.op_registry import is_integer
from keras_vit.io.target_values import COLUMNS


def _sampled(size: Any, cells: int, numbers: Callable[[Any], Any]) -> tuple[Any, Any]:
    """(the pixels of a side of `size` that sample its cells, in order; how many sample a cell).

    Args:
        size: number of pixels.
        cells: number of cells.
        numbers: tf.range or np.arange.
    """
    times = (size + cells - 1) // cells
    return (2 * numbers(cells * times) + 1) * size // (2 * cells * times), times


def _mask_shares(segments, count, grid):
    """(count, h' * w') float32: the share of each cell's pixels in each object.

    Counts pixels by (object, cell), so that memory grows with the result, not with objects times pixels.
    """
    height, width = grid
    (rows, tall), (columns, wide) = (_sampled(tf.shape(segments)[i], grid[i], tf.range) for i in (0, 1))
    sampled = tf.gather(tf.gather(segments, rows, axis=0), columns, axis=1)  # (h' * tall, w' * wide, 2)
    top, low = sampled[..., 0], sampled[..., 1]
    down, across = tf.range(height * tall) // tall, tf.range(width * wide) // wide
    cells = down[:, None] * width + across  # (h' * tall, w' * wide)
    numbers = tf.stack([top, tf.where(low == top, 0, low)]) * (height * width) + cells
    ones = tf.ones([tf.size(numbers)])
    pixels = tf.math.unsorted_segment_sum(ones, tf.reshape(numbers, [-1]), (count + 1) * height * width)
    pixels = tf.reshape(pixels, (-1, height * width))[1:]  # ((m + 1) * h' * w') -> (m, h' * w')
    return pixels / tf.cast(tall * wide, tf.float32)


def tight_boxes(segments: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """The boxes (count, 4) float32 around the pixels of objects 1 to `count`, as fractions; zeros without a pixel.

    Args:
        segments: (h, w, n) int32. Numbers of objects; 0 for none.
        count: () int32.
    """
    shape = tf.shape(segments)
    numbers = tf.reshape(segments, [-1])
    low, high = [], []
    for axis in (0, 1):
        place = tf.range(shape[axis])[:, None, None] if axis == 0 else tf.range(shape[axis])[:, None]
        place = tf.reshape(tf.broadcast_to(place, shape), [-1])  # (h, w, n) -> (h * w * n,)
        low.append(tf.math.unsorted_segment_min(place, numbers, count + 1)[1:])
        high.append(tf.math.unsorted_segment_max(place, numbers, count + 1)[1:] + 1)
    corners = tf.cast(tf.stack([*low, *high], 1), tf.float32)  # top, left, bottom, right
    sides = tf.cast(tf.tile(shape[:2], [2]), tf.float32)
    return tf.where((high[0] > 0)[:, None], corners / sides, 0.0)


def pack_instances(example: dict[str, Any], limit: int, grid: tuple[int, int]) -> tf.Tensor:
    """The objects of an example as rows (limit, 7 + h' * w') float32, in tf.data.

    Objects with a pixel left come first, in their order, with their box cut to the box around their pixels; padding
    takes the place of the others and fills the rest.

    Args:
        example: with boxes (m, 4), labels, crowd and area (m,), and segments (h, w, 2).
        limit: number of rows.
        grid: (h', w') of the masks.

    Returns:
        Rows of COLUMNS and the mask's shares, 0 to 1. Padding has the label -1, and zeros.

    Raises:
        ValueError: if a key is missing.
        InvalidArgumentError: at run time, for more objects than `limit`.
    """
    if "segments" not in example:
        raise ValueError(
            f"Masks of objects need segments; the example has {', '.join(example)}. Open the data as instances:PATH."
        )
    rows, segments = object_rows(example), example["segments"]
    count = tf.shape(rows)[0]
    tight = tight_boxes(segments, count)
    first, last = tf.maximum(rows[:, :2], tight[:, :2]), tf.minimum(rows[:, 2:4], tight[:, 2:])
    packed = tf.concat([first, last, rows[:, 4:], _mask_shares(segments, count, grid)], 1)
    return padded(tf.ensure_shape(packed, (None, rows.shape[1] + grid[0] * grid[1])), limit)


def pack_masks(
    masks: Sequence[Any],
    labels: Sequence[Any],
    grid: tuple[int, int],
    limit: int | None = None,
    crowd: Sequence[Any] | None = None,
    area: Sequence[Any] | None = None,
) -> np.ndarray:
    """The objects of images as rows (b, limit, 7 + h' * w') float32: targets for `fit` in a script.

    Boxes are those around the masks; masks without a pixel are left out.

    Args:
        masks: (m, h, w) per image, booleans, or 0 and 1.
        labels: (m,) per image: class numbers from 0.
        grid: (h', w'), `model.mask_grid`.
        limit: number of rows; None for the largest number of objects in one image, at least 1.
        crowd: (m,) per image: 0 an object, 1 a crowd, 2 difficult; None for objects only.
        area: (m,) per image, in pixels, for measures by size; None for that of the masks.

    Returns:
        Rows of COLUMNS and the mask's shares, 0 to 1. Padding has the label -1, and zeros.

    Raises:
        ValueError: for other shapes or values, negative labels, or more objects than `limit`.
    """
    cells = grid if isinstance(grid, (tuple, list)) and len(grid) == 2 else ()
    if not cells or not all(is_integer(side, least=1) for side in cells):
        raise ValueError(f"grid is (height, width) in cells, such as model.mask_grid, got {grid!r}.")
    if limit is not None and not is_integer(limit, least=1):
        raise ValueError(f"limit is a number of rows, 1 or more, got {limit!r}.")
    if len(masks) != len(labels):
        raise ValueError(f"Expected masks and labels of the same images, got {len(masks)} and {len(labels)}.")
    if not len(masks):
        return np.zeros((0, limit or 1, len(COLUMNS) + grid[0] * grid[1]), "float32")
    checked = [_checked(i, found) for i, found in enumerate(masks)]
    area = [found.sum((1, 2)) for found in checked] if area is None else area
    rows = []
    for i, found in enumerate(checked):
        boxes = [_box(mask) for mask in found]
        columns = rows_of_image(i, boxes, labels[i], crowd, area, "masks")
        shares = np.array([_shares(mask, grid) for mask in found], "float32").reshape(len(found), grid[0] * grid[1])
        rows.append(np.concatenate([columns, shares], 1))
    return padded_arrays(rows, limit)


def _checked(number, masks):
    """The masks of an image as booleans (m, h, w)."""
    if len({np.shape(mask) for mask in masks}) > 1:
        sizes = [np.shape(mask) for mask in masks]
        raise ValueError(f"Image {number}: its masks have several sizes, {sizes}. Expected those of the image, (h, w).")
    masks = np.asarray(masks)
    if len(masks) == 0:
        return np.zeros((0, 1, 1), bool)
    if masks.ndim != 3 or not masks.size:
        raise ValueError(f"Image {number}: expected masks (m, h, w), one per object, got {masks.shape}.")
    if masks.dtype != bool and not np.isin(masks, (0, 1)).all():
        raise ValueError(
            f"Image {number}: expected masks of booleans, or of 0 and 1, got {masks.min()} to {masks.max()}. For a map"
            " of object numbers pass map == number for each object."
        )
    return masks.astype(bool)


def _box(mask):
    """The box around a mask's pixels, as fractions; zeros without one."""
    rows, columns = (np.flatnonzero(mask.any(axis)) for axis in (1, 0))
    if not len(rows):
        return [0.0] * 4
    h, w = mask.shape
    return [rows[0] / h, columns[0] / w, (rows[-1] + 1) / h, (columns[-1] + 1) / w]


def _shares(mask, grid):
    """The share of each cell's pixels in a mask: (h, w) -> (h', w')."""
    (rows, tall), (columns, wide) = (_sampled(mask.shape[i], grid[i], np.arange) for i in (0, 1))
    sampled = mask[rows][:, columns]  # (h' * tall, w' * wide)
    return sampled.reshape(grid[0], tall, grid[1], wide).mean((1, 3))  # (h', tall, w', wide) -> (h', w')
