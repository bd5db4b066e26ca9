"""Pictures of true and found objects side by side: outlines of masks in the colours and styles of box_comparison.

Needs only NumPy and Pillow.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_vit.inspection.box_comparison import FOUND, KINDS, MISSED, NOT_COUNTED, OTHER_CLASS, match_marks
from keras_vit.inspection.mask_comparison import side_by_side
from keras_vit.io.box_pictures import Mark, draw_labels, enlarged, legend
from keras_vit.io.mask_pictures import drawable
from keras_vit.io.target_values import KIND, LABEL

_SHADE = 0.3  # share of the colour inside a mask


def outline(mask: np.ndarray, width: int) -> np.ndarray:
    """The pixels (h, w) of a mask (h, w) bool within `width` pixels of its edge; the image's edge is none."""
    inner = mask.copy()
    for axis in (0, 1):
        padded = np.pad(mask, [(width, width) if i == axis else (0, 0) for i in (0, 1)], mode="edge")
        for shift in (0, 2 * width):
            inner &= np.take(padded, range(shift, shift + mask.shape[axis]), axis)
    return mask & ~inner


def draw_masks(image: np.ndarray, masks: Sequence[np.ndarray], marks: Sequence[Mark]) -> np.ndarray:
    """An image (h, w, 3) uint8 with masks (h, w), shaded and outlined, and labels, as their marks say: (h, w, 3) uint8.

    Later ones cover earlier ones; labels cover all.
    """
    pixels, (h, w) = image.astype("float32"), image.shape[:2]
    width = max(2, round(max(h, w) / 160))
    diagonal = np.add.outer(np.arange(h), np.arange(w))
    for mask, mark in zip(masks, marks):
        color, (dash, gap) = np.array(mark.color, "float32"), mark.style
        pixels[mask] += _SHADE * (color - pixels[mask])
        edge = outline(mask, width)
        drawn = diagonal % max(round((dash + gap) * width), 1) < dash * width if gap else True
        pixels[edge] = 0
        pixels[edge & drawn] = color
    return draw_labels(np.round(pixels).astype("uint8"), marks)


def _true_marks(objects, found, labels, names):
    """The marks of true objects (m, 7): found, missed, taken for another class, or not counted."""
    words, marks = [drawable(name, number) for number, name in enumerate(names)], []
    for i, row in enumerate(objects):
        by = labels[found == i]
        kind = MISSED if not len(by) else FOUND if (by == row[LABEL]).any() else OTHER_CLASS
        color, style = NOT_COUNTED if row[KIND] > 0 else kind
        marks.append(Mark(row[:4], words[int(row[LABEL])], color, style))
    return marks


def compared(
    image: Any,
    true_masks: Sequence[np.ndarray],
    objects: np.ndarray,
    masks: Sequence[np.ndarray],
    boxes: np.ndarray,
    scores: np.ndarray,
    labels: np.ndarray,
    found: np.ndarray,
    names: Sequence[str],
) -> tuple[np.ndarray, set[str]]:
    """(the image twice, with true and with found objects, small ones enlarged: (h', w', 3) uint8; the KINDS in it).

    Args:
        image: (h, w, c). Pixels 0..255.
        true_masks: m masks (h, w) bool.
        objects: (m, 7). As in `evaluation.AveragePrecision.add`, without padding.
        masks: d masks (h, w) bool, those with the highest scores first.
        boxes, scores, labels: (d, 4), (d,), (d,). Of these masks.
        found: (d,). Index of the object that each one found, -1 for none.
        names: class names.
    """
    picture = enlarged(image)
    factor = len(picture) // len(image)
    true_marks = _true_marks(objects, found, labels, names)
    order = np.argsort(scores, kind="stable")  # as match_marks draws them
    found_marks = match_marks(objects, boxes, scores, labels, found, names)[-len(order) :] if len(order) else []
    sides = []
    for own, marks in ((true_masks, true_marks), ([masks[i] for i in order], found_marks)):
        larger = [mask.repeat(factor, axis=0).repeat(factor, axis=1) for mask in own]
        sides.append(draw_masks(picture, larger, marks))
    kinds = {(mark.color, mark.style) for mark in (*true_marks, *found_marks)}
    return side_by_side(*sides, titles=("true", "found")), {name for name, kind in KINDS.items() if kind in kinds}


def sheet(pairs: Sequence[tuple[np.ndarray, set[str]]]) -> np.ndarray:
    """Pictures of `compared`, of one size, below each other above a legend: (height, width, 3) uint8."""
    gap = np.full((8, pairs[0][0].shape[1], 3), 255, "uint8")
    rows = [part for picture, _ in pairs for part in (picture, gap)]
    shown = set().union(*(kinds for _, kinds in pairs))
    kinds = {name: kind for name, kind in KINDS.items() if name in shown}
    return np.concatenate([*rows, legend(kinds, gap.shape[1])])
