"""How much found masks and the true objects of an image overlap, one found mask at a time."""

import numpy as np


class MaskOverlaps:
    """Collects the IoU of found masks with an image's true objects; for a crowd the share of the mask inside it.

    Args:
        segments: (h, w, 2). At each pixel the numbers of the topmost and of the lowest object, 1 to m; 0 for none.
        crowd: (m,) bool.

    Raises:
        ValueError: for a number above m.
    """

    def __init__(self, segments: np.ndarray, crowd: np.ndarray):
        if segments.size and segments.max() > len(crowd):
            raise ValueError(f"The segments have the number {segments.max()}, but there are {len(crowd)} objects.")
        self._crowd = np.asarray(crowd, bool)
        numbers = segments.astype("uint16" if len(crowd) < 2**16 else "int32")  # half the memory to read, for each mask
        upper, lower = np.moveaxis(numbers, -1, 0)
        self._layers = [upper.copy()]
        if (upper != lower).any():
            self._layers.append(np.where(upper == lower, 0, lower))
        self._both: list[np.ndarray] = []
        self._areas: list[int] = []

    def _counts(self, pixels):
        """The pixels of each object (m,), of an iterable of numbers (n,) for each layer."""
        m = len(self._crowd)
        return np.sum([np.bincount(numbers, minlength=m + 1)[1:] for numbers in pixels], axis=0)

    def add(self, rows: slice, columns: slice, inside: np.ndarray) -> None:
        """Adds a found mask.

        Args:
            rows, columns: the part of the image that has all its pixels.
            inside: (rows, columns) bool.

        Raises:
            ValueError: for a part of another shape.
        """
        parts = [layer[rows, columns] for layer in self._layers]
        if inside.shape != parts[0].shape:
            raise ValueError(f"A found mask has {inside.shape} pixels, and its part of the image {parts[0].shape}.")
        self._both.append(self._counts(part[inside] for part in parts))
        self._areas.append(int(np.count_nonzero(inside)))

    def result(self) -> tuple[np.ndarray, np.ndarray]:
        """(IoU (d, m), areas of the found masks in pixels (d,)), float64. Masks without pixels overlap nothing."""
        true = self._counts(layer.reshape(-1) for layer in self._layers)
        areas = np.array(self._areas, "float64")
        inter = np.array(self._both, "float64").reshape(len(areas), len(true))
        either = np.where(self._crowd, areas[:, None], areas[:, None] + true - inter)
        return np.divide(inter, either, out=np.zeros_like(inter), where=inter > 0), areas
