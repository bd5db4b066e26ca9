"""Boxes (..., 4): top, left, bottom, right, in any unit; pure functions of tensors that broadcast.

Pairs come from broadcasting: `iou(a[:, :, None], b[:, None])` of boxes (b, n, 4) and (b, m, 4) is (b, n, m).
"""

import math
from typing import Any

from keras import ops

_LEAST = 1e-12  # area in a division; a pixel of an image of 10,000 x 10,000 has 1e-8
_SIDE = 1e-6  # in a logarithm
_GROWTH = math.log(1000 / 16)  # as in Faster R-CNN's programs: from the smallest stride to a whole image


def _edges(boxes):
    """top, left, bottom, right, (...) each."""
    return boxes[..., 0], boxes[..., 1], boxes[..., 2], boxes[..., 3]


def _area(top, left, bottom, right):
    return ops.maximum(bottom - top, 0.0) * ops.maximum(right - left, 0.0)


def areas(boxes: Any) -> Any:
    """The areas of boxes, (..., 4) -> (...); 0 for a box with bottom < top or right < left."""
    return _area(*_edges(boxes))


def _overlaps(a, b):
    """Areas of the intersections and of the unions of boxes, (...) each."""
    (top, left, bottom, right), (top_b, left_b, bottom_b, right_b) = _edges(a), _edges(b)
    lower, higher = ops.minimum, ops.maximum
    inner = _area(higher(top, top_b), higher(left, left_b), lower(bottom, bottom_b), lower(right, right_b))
    return inner, areas(a) + areas(b) - inner


def intersections(a: Any, b: Any) -> Any:
    """The areas that boxes (..., 4) share: (...)."""
    return _overlaps(a, b)[0]


def iou(a: Any, b: Any) -> Any:
    """Intersection over union of boxes (..., 4): (...), from 0 to 1; 0 for two boxes without area."""
    inner, union = _overlaps(a, b)
    return inner / ops.maximum(union, _LEAST)


def giou(a: Any, b: Any) -> Any:
    """Generalised IoU (arXiv 1902.09630) of boxes (..., 4): (...), from -1 to 1.

    The IoU minus the share of the smallest box around both that neither covers: boxes far apart have a gradient too.
    """
    inner, union = _overlaps(a, b)
    (top, left, bottom, right), (top_b, left_b, bottom_b, right_b) = _edges(a), _edges(b)
    lower, higher = ops.minimum, ops.maximum
    hull = _area(lower(top, top_b), lower(left, left_b), higher(bottom, bottom_b), higher(right, right_b))
    return inner / ops.maximum(union, _LEAST) - (hull - union) / ops.maximum(hull, _LEAST)


def from_centers(boxes: Any) -> Any:
    """Boxes (..., 4) of centre y, centre x, height, width as top, left, bottom, right."""
    y, x, height, width = _edges(boxes)
    return ops.stack([y - height / 2, x - width / 2, y + height / 2, x + width / 2], axis=-1)


def to_centers(boxes: Any) -> Any:
    """Boxes (..., 4) of top, left, bottom, right as centre y, centre x, height, width."""
    top, left, bottom, right = _edges(boxes)
    return ops.stack([(top + bottom) / 2, (left + right) / 2, bottom - top, right - left], axis=-1)


def offsets(boxes: Any, references: Any) -> Any:
    """The offsets for `moved` from references (..., 4) to boxes (..., 4): the shifts of the centre y and x in heights
    and widths of the reference, and the logarithms of the changes of height and width (R-CNN, arXiv 1311.2524, appendix
    C).
    """
    y, x, height, width = _edges(to_centers(boxes))
    own_y, own_x, own_height, own_width = _edges(to_centers(references))
    height, width, own_height, own_width = (ops.maximum(side, _SIDE) for side in (height, width, own_height, own_width))
    shifts = [(y - own_y) / own_height, (x - own_x) / own_width]
    return ops.stack([*shifts, ops.log(height / own_height), ops.log(width / own_width)], axis=-1)


def moved(references: Any, by: Any) -> Any:
    """Boxes (..., 4) at offsets (..., 4) from references; a side grows 62-fold at most."""
    y, x, height, width = _edges(to_centers(references))
    dy, dx, by_height, by_width = _edges(by)
    height_now = height * ops.exp(ops.minimum(by_height, _GROWTH))
    width_now = width * ops.exp(ops.minimum(by_width, _GROWTH))
    return from_centers(ops.stack([y + dy * height, x + dx * width, height_now, width_now], axis=-1))
