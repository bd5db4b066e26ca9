"""How much found masks and the true objects of an image overlap, without an array of masks: one (h, w) at a time."""

from collections.abc import Iterable

import numpy as np


def mask_overlaps(
    masks: Iterable[np.ndarray], segments: np.ndarray, crowd: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """IoU of found masks and true objects; with a crowd it is the share of the found mask inside the crowd.

    Args:
        masks: d masks (h, w) bool, each read once, in turn.
        segments: (h, w, 2). At each pixel the numbers of the topmost and of the lowest object, 1 to m; 0 for none.
        crowd: (m,) bool.

    Returns:
        (IoU (d, m), areas of the found masks in pixels (d,)), float64. Masks without pixels overlap nothing.

    Raises:
        ValueError: for a mask of another size, or a number above m.
    """
    m, upper, lower = len(crowd), segments[..., 0].reshape(-1), segments[..., 1].reshape(-1)
    if upper.size and max(upper.max(), lower.max()) > m:
        raise ValueError(f"The segments have the number {max(upper.max(), lower.max())}, but there are {m} objects.")
    lower = np.where(lower == upper, 0, lower)

    def counts(layer_pixels):
        return np.sum([np.bincount(pixels, minlength=m + 1)[1:] for pixels in layer_pixels], axis=0)

    true, both, own = counts((upper, lower)), [], []
    for mask in masks:
        if mask.shape != segments.shape[:2]:
            raise ValueError(f"A found mask has {mask.shape} pixels, and the true segments {segments.shape[:2]}.")
        inside = np.flatnonzero(mask)
        both.append(counts((upper[inside], lower[inside])))
        own.append(len(inside))
    inter, areas = np.array(both, "float64").reshape(len(own), m), np.array(own, "float64")
    either = np.where(crowd, areas[:, None], areas[:, None] + true - inter)
    return np.divide(inter, either, out=np.zeros_like(inter), where=inter > 0), areas
