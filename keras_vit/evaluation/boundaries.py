"""Boundary F-score of masks: how well the predicted outlines of each class match the true ones.

A boundary pixel of a class has a neighbour to the left, right, above or below with another class; void does not count
as one, and predictions count only where the mask has a class. Precision is the share of predicted boundary pixels with
a true one of their class within the tolerance (Euclidean distance), recall the share of true ones with a predicted one
(Csurka et al., BMVC 2013, section 3). We sum pixels over the data set, where Csurka averages ratios over images; the
score is the mean over the classes with a boundary in masks or predictions.
"""

import math
from typing import Any

import numpy as np
from keras import ops

from keras_vit.segmentation.pixel_losses import VOID
from keras_vit.segmentation.scores import MaskMetric, count_where, mean_where

TOLERANCE = 0.0075  # share of the image's diagonal, as in the paper
_OWN, _OTHER = -1, -2  # pixels without a boundary; different, so that they never match


def boundary_classes(classes: Any, nothing: int) -> Any:
    """The class of each boundary pixel, `nothing` elsewhere; both (b, h, w) int32, with negative `classes` for void."""
    found = ops.zeros_like(classes, dtype="bool")
    pairs = (classes[:, :-1], classes[:, 1:]), (classes[:, :, :-1], classes[:, :, 1:])  # neighbours
    for axis, (first, second) in enumerate(pairs, start=1):
        differ = ops.logical_and(first != second, ops.logical_and(first >= 0, second >= 0))
        for pad in ((0, 1), (1, 0)):  # the first of each pair, then the second
            found = ops.logical_or(found, ops.pad(differ, [pad if i == axis else (0, 0) for i in range(3)]))
    return ops.where(found, classes, nothing)


def _offsets(tolerance):
    """Rows and columns (n, 2) from the corner of a window, for every offset of at most `tolerance` pixels."""
    radius = math.floor(tolerance)
    steps = np.arange(-radius, radius + 1)
    inside = steps[:, None] ** 2 + steps**2 <= tolerance**2
    return np.argwhere(inside).astype("int32")


def near(own: Any, other: Any, tolerance: float) -> Any:
    """Which pixels of `own` have an equal one in `other` within `tolerance` pixels; all (b, h, w)."""
    radius, offsets = math.floor(tolerance), ops.convert_to_tensor(_offsets(tolerance))
    padded = ops.pad(other, [(0, 0), (radius, radius), (radius, radius)], constant_values=_OTHER)

    def step(i, found):
        start = ops.concatenate([ops.zeros((1,), "int32"), offsets[i]])
        return ops.logical_or(found, ops.slice(padded, start, ops.shape(own)) == own)

    return ops.fori_loop(0, offsets.shape[0], step, ops.zeros_like(own, dtype="bool"))


def boundary_counts(masks: Any, predicted: Any, classes: int, void: int, tolerance: float) -> Any:
    """Boundary pixels of each class, (classes, 4) int32: predicted near a true one, predicted, true near one, true.

    Args:
        masks: (b, h, w) int32. Classes or `void`.
        predicted: (b, h, w) int32. Classes.
        classes: number of classes.
        void: value of pixels without a class.
        tolerance: largest distance in pixels.
    """
    labelled = ops.logical_and(masks != void, masks < classes)
    true = boundary_classes(ops.where(labelled, masks, -1), _OTHER)
    found = boundary_classes(ops.where(labelled, predicted, -1), _OWN)
    near_true = near(found, true, tolerance)
    # `near` expects _OTHER for pixels without a boundary in its second argument.
    swapped = ops.where(true == _OTHER, _OWN, true), ops.where(found == _OWN, _OTHER, found)
    near_found = near(*swapped, tolerance)

    parts = (found, near_true), (found, found >= 0), (true, near_found), (true, true >= 0)
    return ops.stack([count_where(*part, classes) for part in parts], axis=1)


def f_scores(counts: Any, xp: Any = np) -> tuple[Any, Any]:
    """(F-scores, which of them are defined), (classes,) each, from `boundary_counts`; `xp` is NumPy or keras.ops."""
    precision = counts[:, 0] / xp.maximum(counts[:, 1], 1)
    recall = counts[:, 2] / xp.maximum(counts[:, 3], 1)
    both = precision + recall
    f = 2 * precision * recall / xp.where(both == 0, 1.0, both)  # NaN stays NaN
    return f, counts[:, 1] + counts[:, 3] > 0


class BoundaryScores(MaskMetric):
    """Mean boundary F-score of the classes. `update_state` takes the arguments of training.SegmentationScores.

    Args:
        classes: number of classes.
        void: value of pixels without a class.
        tolerance: share of the image's diagonal.
    """

    _direction = "up"

    def __init__(
        self,
        classes: int,
        void: int = VOID,
        tolerance: float = TOLERANCE,
        name: str = "boundary_f",
        dtype: str | None = None,
    ):
        super().__init__((classes, 4), classes, void, name, dtype)
        self.tolerance = tolerance

    def counted(self, masks: Any, predicted: Any) -> Any:
        pixels = self.tolerance * math.hypot(*predicted.shape[1:]) + 1e-6  # keeps rounding from turning 6 into 5
        return boundary_counts(masks, predicted, self.classes, self.void, pixels)

    def result(self):
        return mean_where(*f_scores(self.totals(), ops), ops)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "tolerance": self.tolerance}
