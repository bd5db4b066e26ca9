"""Pictures of true and found segments: image, truth, found and error side by side. Needs only NumPy and Pillow."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_vit.inspection.mask_comparison import comparison, palette, side_by_side, with_legend

_TITLES = ("image", "truth", "found", "wrong class")


def classes_of(segments: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The class number of each pixel, -1 without one: segments (h, w), numbered from 1, and labels (s,) -> (h, w)."""
    return np.append(-1, labels)[segments]


def bordered(picture: np.ndarray, segments: np.ndarray) -> np.ndarray:
    """A picture (h, w, 3) uint8 with white lines between segments (h, w)."""
    edge = np.zeros(segments.shape, bool)
    edge[1:] |= segments[1:] != segments[:-1]
    edge[:, 1:] |= segments[:, 1:] != segments[:, :-1]
    return np.where(edge[..., None], np.uint8(255), picture)


def example_rows(examples: Sequence[tuple[Any, ...]], names: Sequence[str]) -> np.ndarray:
    """A picture (height, width, 3) uint8 with a row per example: image, truth, found and error, and a legend.

    Args:
        examples: images (h, w, c), their true segments (h, w) and the classes (s,) of these, and the same of the found
            ones. All of one size.
        names: class names.
    """
    rows, shown, colors = [], [], palette(len(names))
    for i, (image, segments, labels, found, guesses) in enumerate(examples):
        truth, guessed = classes_of(segments, labels), classes_of(found, guesses)
        pixels, true, own, wrong = comparison(image, truth, guessed, colors)
        parts = pixels, bordered(true, segments), bordered(own, found), wrong
        row = side_by_side(*parts, titles=() if i else _TITLES)
        rows += [row, np.full((8, row.shape[1], 3), 255, "uint8")]
        shown += [np.unique(truth), np.unique(guessed)]
    return with_legend(np.concatenate(rows), names, colors, np.concatenate(shown))
