"""Overlapping tiles of large images, and which of the objects found in them to keep. NumPy alone.

A window is an image or a tile of one: top, left, bottom, right in whole pixels. Boxes are top, left, bottom, right in
pixels of the image. Letters: n objects found in all windows of an image; t windows.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from keras_vit.layers.arguments import integer, number
from keras_vit.segmentation.sliding_windows import batched, starts

Window = tuple[int, int, int, int]

IOU = 0.5  # boxes from two windows that overlap by more are one object
INSIDE = 0.5  # the share of a fragment's area inside another box
TRUST = 0.25  # a whole object with at least this share of a fragment's score is more credible
BORDER = 0.02  # of a window's side: boxes that end so near to its border are cut by it
MOST = 10_000  # tiles of an image
LIMIT = 1000  # objects of an image


@dataclasses.dataclass(frozen=True)
class Tiling:
    """How tiles cover an image.

    Attributes:
        size: a tile's (height, width) in pixels of the image; an int for squares.
        overlap: the share of a tile's sides that the next one sees again, 0 <= overlap < 1. Objects of up to this size
            are whole in some tile.
    """

    size: int | tuple[int, int]
    overlap: float = 0.2

    def __post_init__(self):
        if len(self.sides) != 2:
            raise ValueError(f"tiles must be a size in pixels, as 640 or (height, width), got {self.size!r}.")
        for side in self.sides:
            integer(side, "tiles")
        if not 0 <= number(self.overlap, "tile_overlap") < 1:
            raise ValueError(f"tile_overlap is a share of a tile, from 0 up to but not 1, got {self.overlap!r}.")

    @property
    def sides(self) -> tuple[int, ...]:
        """(height, width)."""
        return tuple(self.size) if isinstance(self.size, (tuple, list)) else (self.size, self.size)

    def windows(self, height: int, width: int) -> list[Window]:
        """The whole image, and its tiles row by row; the whole image alone if a tile holds it.

        The last tiles end at the border. Tiles are no larger than the image.

        Raises:
            ValueError: for more than 10,000 tiles.
        """
        sides = [min(pair) for pair in zip(self.sides, (height, width))]
        if sides == [height, width]:
            return [(0, 0, height, width)]
        tops, lefts = (starts(length, side, self.overlap) for length, side in zip((height, width), sides))
        if len(tops) * len(lefts) > MOST:
            raise ValueError(
                f"An image of {height} x {width} pixels has {len(tops) * len(lefts):,} tiles of {sides[0]} x {sides[1]}"
                f" with an overlap of {self.overlap:g}, more than {MOST:,}: pass larger tiles or a smaller overlap."
            )
        tiles = [(top, left, top + sides[0], left + sides[1]) for top, left in itertools.product(tops, lefts)]
        return [(0, 0, height, width), *tiles]


def over_windows(
    images: Iterable[np.ndarray],
    tiling: Tiling | None,
    find: Callable[[list[np.ndarray]], Iterable[Any]],
    batch_size: int,
) -> Iterator[tuple[np.ndarray, list[tuple[Window, Any]]]]:
    """(image, [(window, what was found in it)]) of each image (h, w, c), in order.

    Args:
        images: read as they are needed.
        tiling: None for each image as one window.
        find: from at most `batch_size` windows' pixels, of one or several images, to an answer for each.
    """

    def stream():
        for image in images:
            height, width = image.shape[:2]
            windows = [(0, 0, height, width)] if tiling is None else tiling.windows(height, width)
            yield from ((image, window, window is windows[-1]) for window in windows)

    answers: list[tuple[Window, Any]] = []
    for batch in batched(stream(), batch_size):
        found = find([image[top:bottom, left:right] for image, (top, left, bottom, right), _ in batch])
        for (image, window, last), answer in zip(batch, found, strict=True):
            answers.append((window, answer))
            if last:
                yield image, answers
                answers = []


def cut_by_border(boxes: np.ndarray, windows: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Which boxes (n, 4) end at a border of their window (n, 4) that is not one of the image (height, width): (n,)."""
    near = BORDER * np.tile(windows[:, 2:] - windows[:, :2], 2)  # (n, 4)
    inner = windows != np.array([0, 0, *size])
    return np.asarray((inner & (np.abs(boxes - windows) <= near)).any(-1))


def _shared(box, boxes):
    """The areas that a box (4,) shares with boxes (n, 4)."""
    sides = np.minimum(box[2:], boxes[:, 2:]) - np.maximum(box[:2], boxes[:, :2])
    return np.maximum(sides, 0).prod(-1)


def merged(
    boxes: np.ndarray,
    scores: np.ndarray,
    labels: np.ndarray,
    windows: np.ndarray,
    size: tuple[int, int],
    limit: int = LIMIT,
    iou: float = IOU,
    across_classes: bool = False,
) -> np.ndarray:
    """Numbers of the objects to keep, best score first: each object once, and whole where a window holds it.

    Objects of one window are different ones; those of two windows are compared. A box that overlaps a better one by
    more than `iou` is the same object. A box cut by an inner border of its window is a fragment if over half of it lies
    inside a larger or better box; only cut ones are, since a whole object may well lie inside another of its class.

    Args:
        boxes: (n, 4).
        scores: (n,).
        labels: (n,) class numbers.
        windows: (n, 4), the window of each.
        size: (height, width) of the image.
        limit: the most to keep.
        iou: boxes of a class that overlap by more are one object.
        across_classes: whether boxes of other classes are compared, too.
    """
    boxes, scores, windows = np.asarray(boxes, "float64"), np.asarray(scores, "float64"), np.asarray(windows)
    _, owner = np.unique(windows, axis=0, return_inverse=True)  # the window's number of each
    cut, areas = cut_by_border(boxes, windows, size), (boxes[:, 2:] - boxes[:, :2]).prod(-1)
    first, last = np.ascontiguousarray(boxes[:, :2].T), np.ascontiguousarray(boxes[:, 2:].T)  # (2, n)
    left, visited = np.ones(len(boxes), bool), np.zeros(len(boxes), bool)
    for i in np.argsort(-scores * np.where(cut, TRUST, 1), kind="stable"):
        visited[i] = True
        if not left[i]:
            continue
        rival = left & (owner != owner[i]) & (first[0] < boxes[i, 2]) & (first[1] < boxes[i, 3])
        rival &= (last[0] > boxes[i, 0]) & (last[1] > boxes[i, 1])
        others = np.flatnonzero(rival & ((labels == labels[i]) | across_classes))
        shared = _shared(boxes[i], boxes[others])
        same = ~visited[others] & (shared > iou * (areas[i] + areas[others] - shared))
        larger = (areas[others] < areas[i]) & (scores[i] >= TRUST * scores[others])
        fragment = cut[others] & (shared > INSIDE * areas[others]) & (larger | (scores[others] <= scores[i]))
        left[others[same | fragment]] = False
    kept = np.flatnonzero(left)
    return kept[np.argsort(-scores[kept], kind="stable")[:limit]]
