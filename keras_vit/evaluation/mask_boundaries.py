"""Boundary IoU (Cheng et al., arXiv 2103.16562): the overlap of the pixels of masks near their edges.

A mask's boundary is what the erosion by a 3 x 3 square takes away, `thickness` times; the image's border is an edge,
too. The figures equal those of the paper's API.
"""

import math

import numpy as np

from keras_vit.evaluation.matched_masks import MaskOverlaps

DISTANCE = 0.02  # of the boundary's inner edge, as a share of the image's diagonal


def thickness(size: tuple[int, int]) -> int:
    """The thickness of boundaries in an image (height, width), in pixels."""
    return max(1, round(DISTANCE * math.hypot(*size)))


def boundary(mask: np.ndarray, steps: int) -> np.ndarray:
    """The boundary, `steps` pixels thick, of a mask (h, w) bool; outside of the array there is no mask."""
    inner = mask
    for axis in (0, 1):
        inner = _all_within(inner, steps, axis)
    return mask & ~inner


def _all_within(mask, steps, axis):
    """Where all pixels within `steps` along an axis are inside a mask (h, w)."""
    sides = [(steps, steps) if i == axis else (0, 0) for i in (0, 1)]
    found, width = np.moveaxis(np.pad(mask, sides), axis, 0), 1
    while width <= 2 * steps:  # `found`: that many pixels from here on are inside
        shift = min(width, 2 * steps + 1 - width)
        found, width = found[:-shift] & found[shift:], width + shift
    return np.moveaxis(found, 0, axis)


def boundaries(segments: np.ndarray, count: int, steps: int) -> np.ndarray:
    """Segments (h, w, 2) with the boundaries of objects 1 to `count` alone, and 0 elsewhere.

    Args:
        segments: (h, w, 2). At each pixel the numbers of the topmost and of the lowest object; 0 for none.
        count: m.
        steps: of `boundary`.
    """
    found = segments.copy()
    for i, (top, bottom, left, right) in enumerate(_windows(segments, count), 1):
        own = segments[top:bottom, left:right] == i
        inner = ~boundary(own.any(-1), steps)
        found[top:bottom, left:right][own & inner[..., None]] = 0
    return found


def _windows(segments, count):
    """Top, bottom, left, right of the pixels of objects 1 to `count`: (m, 4); zeros without a pixel."""
    h, w = segments.shape[:2]
    low, high = np.full((2, count + 1), max(h, w)), np.zeros((2, count + 1), int)
    for layer in np.moveaxis(segments, -1, 0):
        begins = np.ones((h, w), bool)  # a run of one object's pixels in a row
        begins[:, 1:] = layer[:, 1:] != layer[:, :-1]
        rows, columns = np.nonzero(begins)
        numbers, ends = layer[begins], np.append(columns[1:], 0)
        for axis, first, last in ((0, rows, rows + 1), (1, columns, np.where(ends == 0, w, ends))):
            np.minimum.at(low[axis], numbers, first)
            np.maximum.at(high[axis], numbers, last)
    return np.stack([np.minimum(low, high), high], 1).reshape(4, -1).T[1:]  # (2, 2, m + 1) -> (m, 4)


class BoundaryOverlaps(MaskOverlaps):
    """MaskOverlaps of boundaries; arguments are those of masks."""

    def __init__(self, segments: np.ndarray, crowd: np.ndarray):
        self._steps = thickness(segments.shape[:2])
        super().__init__(boundaries(segments, len(crowd), self._steps), crowd)

    def add(self, rows: slice, columns: slice, inside: np.ndarray) -> None:
        super().add(rows, columns, boundary(inside, self._steps))

    def combined(self, iou: np.ndarray) -> np.ndarray:
        """What Boundary AP compares, (d, m): the lower of masks' `iou` and boundaries', and of crowds the masks'."""
        return np.where(self._crowd, iou, np.minimum(iou, self.result()[0]))
