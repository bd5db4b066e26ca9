"""How much found masks and the true objects of an image overlap, one found mask at a time."""

import numpy as np


class MaskOverlaps:
    """Collects the IoU of found masks with an image's true objects; with a crowd the share of the mask inside the crowd.

    Args:
        segments: (h, w, 2). At each pixel the numbers of the topmost and of the lowest object, 1 to m; 0 for none.
        crowd: (m,) bool.

    Raises:
        ValueError: for a number above m.
    """

    def __init__(self, segments: np.ndarray, crowd: np.ndarray):
        if segments.size and segments.max() > len(crowd):
            raise ValueError(f"The segments have the number {segments.max()}, but there are {len(crowd)} objects.")
        self._crowd, self._segments = np.asarray(crowd, bool), segments
        self._both: list[np.ndarray] = []
        self._areas: list[int] = []

    def _counts(self, upper, lower):
        """The pixels of each object (m,), of numbers (n,) each; those of one object in both count once."""
        twice = np.bincount(lower[lower != upper], minlength=len(self._crowd) + 1)
        return (np.bincount(upper, minlength=len(twice)) + twice)[1:]

    def add(self, rows: slice, columns: slice, inside: np.ndarray) -> None:
        """Adds a found mask.

        Args:
            rows, columns: the part of the image that has all its pixels.
            inside: (rows, columns) bool.

        Raises:
            ValueError: for a part of another shape.
        """
        part = self._segments[rows, columns]
        if inside.shape != part.shape[:2]:
            raise ValueError(f"A found mask has {inside.shape} pixels, and its part of the image {part.shape[:2]}.")
        covered = part[inside]  # (n, 2)
        self._both.append(self._counts(covered[:, 0], covered[:, 1]))
        self._areas.append(len(covered))

    def result(self) -> tuple[np.ndarray, np.ndarray]:
        """(IoU (d, m), areas of the found masks in pixels (d,)), float64. Masks without pixels overlap nothing."""
        true = self._counts(*self._segments.reshape(-1, 2).T)
        areas = np.array(self._areas, "float64")
        inter = np.array(self._both, "float64").reshape(len(areas), len(true))
        either = np.where(self._crowd, areas[:, None], areas[:, None] + true - inter)
        return np.divide(inter, either, out=np.zeros_like(inter), where=inter > 0), areas
