"""Pictures of true and detected boxes: found, missed, detected as another class, or false alarms.

Line styles distinguish the four even without colours. Needs only NumPy and Pillow.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_vit.inspection import tiles
from keras_vit.io.box_pictures import DASHED, DOTTED, SOLID, Mark, draw, enlarged, legend
from keras_vit.io.mask_pictures import WRONG, drawable

FOUND = ((0, 158, 115), SOLID)
MISSED = ((240, 228, 66), DASHED)
FALSE_ALARM = (WRONG, DOTTED)
OTHER_CLASS = (WRONG, SOLID)
NOT_COUNTED = ((150, 150, 150), DOTTED)  # crowds, difficult objects, and their detections
KINDS = {
    "found": FOUND,
    "missed": MISSED,
    "another class": OTHER_CLASS,
    "false alarm": FALSE_ALARM,
    "not counted": NOT_COUNTED,
}


def match_marks(
    objects: np.ndarray,
    boxes: np.ndarray,
    scores: np.ndarray,
    labels: np.ndarray,
    found: np.ndarray,
    names: Sequence[str],
) -> list[Mark]:
    """The marks of an image: missed objects, then detections, lowest score first.

    Args:
        objects: (m, 7). As in `evaluation.AveragePrecision.add`, without padding.
        boxes, scores, labels: (d, 4), (d,), (d,). Detections to draw.
        found: (d,). Index of the object that each detection found, -1 for none.
        names: class names.
    """
    words = [drawable(name, number) for number, name in enumerate(names)]
    truth, skipped = objects[:, 4].astype(int), objects[:, 5] > 0
    result = []
    for i in np.setdiff1d(np.arange(len(objects)), found):
        color, style = NOT_COUNTED if skipped[i] else MISSED
        result.append(Mark(objects[i, :4], words[truth[i]], color, style))
    for i in np.argsort(scores, kind="stable"):
        label, own = f"{words[labels[i]]} {scores[i]:.2f}", found[i]
        color, style = FALSE_ALARM
        if own >= 0:
            color, style = NOT_COUNTED if skipped[own] else FOUND if truth[own] == labels[i] else OTHER_CLASS
            label += f", is {words[truth[own]]}" if truth[own] != labels[i] else ""
        result.append(Mark(boxes[i], label, color, style))
    return result


def sheet(images: Any, marks: Sequence[Sequence[Mark]], columns: int = 2) -> np.ndarray:
    """Images with their marks, small ones enlarged, in rows of `columns` above a legend: (height, width, 3) uint8.

    Args:
        images: (n, h, w, c). Pixels 0..255.
        marks: the marks of each image from `match_marks`.
        columns: images per row.
    """
    drawn = np.stack([draw(enlarged(image), own) for image, own in zip(images, marks)])
    whole = tiles.sheet(drawn, columns, gap=8)
    whole = np.where(whole[..., 3:] == 0, 255, whole[..., :3]).astype("uint8")
    kinds = {(mark.color, mark.style) for own in marks for mark in own}
    below = legend({name: kind for name, kind in KINDS.items() if kind in kinds}, whole.shape[1])
    return np.concatenate([whole, below])
