"""Panoptic quality (arXiv 1801.00868) of segments with classes, in NumPy; the figures equal panopticapi's.

A found segment matches a true one of its class if their IoU is above .5, which at most one can have. PQ is the sum of
the matches' IoU / (matches + half of the other found and true segments), SQ the mean IoU of the matches, RQ their F1.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

_NAMES = ("pq", "sq", "rq")


def _shares(parts, wholes):
    """parts / wholes, 0 where the whole is 0."""
    return np.divide(parts, wholes, out=np.zeros(np.shape(parts)), where=np.asarray(wholes) > 0)


def _checked(segments, labels, classes, name):
    """Segments (h, w) and labels (s,) as integers; ValueError for a number without a label, a label without a class."""
    segments, labels = np.asarray(segments).astype("int64"), np.asarray(labels, "int64").reshape(-1)
    if segments.ndim != 2:
        raise ValueError(f"Expected {name} segments (h, w), got {segments.shape}.")
    if segments.size and not 0 <= segments.min() <= segments.max() <= len(labels):
        raise ValueError(
            f"The {name} segments have numbers {segments.min()} to {segments.max()}, expected 0 (none) to"
            f" {len(labels)}: there are {len(labels)} labels."
        )
    if labels.size and not labels.max() < classes:
        raise ValueError(
            f"The {name} segments have the label {labels.max()}, expected at most {classes - 1}: there are {classes}"
            " classes, counted from 0."
        )
    return segments, labels


class PanopticQuality:
    """Collects segments image by image and computes PQ, SQ and RQ of all classes, of things, of stuff, and of each.

    Args:
        class_names: in the order of the labels.
        stuff: names of the classes that are stuff; the others are things.

    Attributes:
        images: number of images.
        matches, false_alarms, missed: (k,) segments of each class.
        iou: (k,) sums of the matches' IoU.
    """

    def __init__(self, class_names: Sequence[str], stuff: Sequence[str] = ()):
        self.class_names = tuple(class_names)
        unknown = sorted(set(stuff) - set(self.class_names))
        if unknown:
            raise ValueError(f"Stuff {unknown} is not among the classes {list(self.class_names)}.")
        self.stuff = np.isin(self.class_names, list(stuff)) if stuff else np.zeros(len(self.class_names), bool)
        self.images = 0
        self.matches, self.false_alarms, self.missed = np.zeros((3, len(self.class_names)), "int64")
        self.iou = np.zeros(len(self.class_names))

    def add(self, truth: Any, labels: Any, found: Any, found_labels: Any, crowd: Any = None) -> None:
        """Adds an image.

        Args:
            truth: (h, w) the number of the true segment at each pixel, 1 to s; 0 for void, which counts nowhere.
            labels: (s,) class numbers of the true segments; segments of -1 are void.
            found: (h, w) the number of the found segment, 1 to r; 0 for none.
            found_labels: (r,) class numbers of the found segments; those of -1 are none.
            crowd: (s,) whether a true segment is a crowd, which need not be found: found segments of its class that lie
                in it do not count. Of several crowds of a class the last one does so, as in panopticapi.

        Raises:
            ValueError: for other shapes, a number without a label, or a label without a class.
        """
        k = len(self.class_names)
        truth, labels = _checked(truth, labels, k, "true")
        found, found_labels = _checked(found, found_labels, k, "found")
        if truth.shape != found.shape:
            raise ValueError(f"The true segments have {truth.shape} pixels, the found ones {found.shape}.")
        skipped = np.zeros(len(labels), bool) if crowd is None else np.asarray(crowd, bool)
        shape = len(labels) + 1, len(found_labels) + 1
        both = np.bincount(truth.reshape(-1) * shape[1] + found.reshape(-1), minlength=shape[0] * shape[1])
        both = both.reshape(shape)
        void = both[0] + both[1:][labels < 0].sum(0)  # of each found segment, (r + 1,)
        self._count(both[1:, 1:], both[1:].sum(1), both[:, 1:].sum(0), void[1:], labels, found_labels, skipped)
        self.images += 1

    def _count(self, both, true_areas, found_areas, void, labels, found_labels, crowd):
        """Adds an image's pixels: in both (s, r), in true (s,) and found segments (r,), and of void in these (r,)."""
        countable = (true_areas > 0) & (labels >= 0)
        real = (found_areas > 0) & (found_labels >= 0)
        same = (labels[:, None] == found_labels) & (countable & ~crowd)[:, None] & real
        iou = np.where(same, _shares(both, true_areas[:, None] + found_areas - both - void), 0)
        rows, columns = np.nonzero(iou > 0.5)
        np.add.at(self.iou, labels[rows], iou[rows, columns])
        np.add.at(self.matches, labels[rows], 1)
        missed = countable & ~crowd
        missed[rows] = False
        np.add.at(self.missed, labels[missed], 1)
        ignored = void.copy()
        for label in np.unique(labels[countable & crowd]):
            own = found_labels == label
            ignored[own] += both[np.flatnonzero(countable & crowd & (labels == label))[-1], own]
        wrong = real & (_shares(ignored, found_areas) <= 0.5)
        wrong[columns] = False
        np.add.at(self.false_alarms, found_labels[wrong], 1)

    def result(self) -> tuple[dict[str, float], dict[str, Any]]:
        """(measures, details) of all images so far.

        Returns:
            Measures "pq", "sq" and "rq", means over the classes with a true or a wrongly found segment, and the same of
                things and stuff, "pq_things" ...; left out if there is no such class. Details: "classes"; "stuff",
                names; "per_class", of each {"name", "stuff", "pq", "sq", "rq", "segments", "matches", "false_alarms",
                "missed"}, with None for the scores without a segment.
        """
        half = self.matches + 0.5 * (self.false_alarms + self.missed)
        by_class = np.stack([_shares(self.iou, half), _shares(self.iou, self.matches), _shares(self.matches, half)])
        groups = {"": half >= 0, "_things": ~self.stuff, "_stuff": self.stuff}
        measures = {
            name + suffix: float(values[group & (half > 0)].mean())
            for suffix, group in groups.items()
            if (group & (half > 0)).any()
            for name, values in zip(_NAMES, by_class)
        }
        return measures, {
            "classes": list(self.class_names),
            "stuff": [name for name, stuff in zip(self.class_names, self.stuff) if stuff],
            "per_class": [self._row(i, by_class[:, i] if half[i] else (None,) * 3) for i in range(len(half))],
        }

    def _row(self, i, values):
        counts = {name: int(getattr(self, name)[i]) for name in ("matches", "false_alarms", "missed")}
        scores = {name: None if value is None else round(float(value), 6) for name, value in zip(_NAMES, values)}
        own = {"name": self.class_names[i], "stuff": bool(self.stuff[i]), **scores}
        return own | {"segments": counts["matches"] + counts["missed"], **counts}
