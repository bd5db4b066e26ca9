"""Average precision of detections as COCO and Pascal VOC define it, in NumPy.

COCO: AP is the mean over classes and IoU thresholds .50:.05:.95 of precision, interpolated at 101 recalls; AR is the
mean recall of 1, 10 or 100 detections per image and class (cocodataset.org, "Detection evaluation"). The figures equal
pycocotools'. VOC: the area under the precision-recall curve at IoU .5 (Everingham et al., IJCV 2010, section 4.2; all
points, as since 2010).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_vit.evaluation import matched_boxes
from keras_vit.evaluation.matched_boxes import (
    RIGHT,
    THRESHOLDS,
    WRONG,
    any_class_matches,
    best_first,
    coco_matches,
    coco_parts,
    voc_parts,
)
from keras_vit.io.target_values import AREA, KIND, LABEL

RECALLS = np.linspace(0, 1, 101)
SIZES = {"all": (0, 1e10), "small": (0, 32**2), "medium": (32**2, 96**2), "large": (96**2, 1e10)}  # pixels, inclusive
LIMITS = (1, 10, 100)  # detections per image and class
_SKIPPED = -1  # instead of a class: a crowd or difficult object
_CURVES = 100  # classes up to which details have curves and the confusion matrix


def precision_recall(parts: np.ndarray, objects: int) -> tuple[np.ndarray, np.ndarray]:
    """(precision, recall), both (d,), after each detection. The precision is the highest at this recall or above.

    Args:
        parts: (d,) WRONG, RIGHT or IGNORED, best score first.
        objects: number of objects that count, above 0.
    """
    right, wrong = np.cumsum(parts == RIGHT), np.cumsum(parts == WRONG)
    precision = right / (right + wrong + np.spacing(1))
    return np.maximum.accumulate(precision[::-1])[::-1], right / objects


def interpolated(parts: np.ndarray, objects: int, recalls: np.ndarray = RECALLS) -> np.ndarray:
    """The precision at each of `recalls`, 0 beyond the last; arguments as in `precision_recall`."""
    precision, recall = precision_recall(parts, objects)
    return np.append(precision, 0.0)[np.searchsorted(recall, recalls)]


def area_under_curve(parts: np.ndarray, objects: int) -> float:
    """The area under the precision-recall curve; arguments as in `precision_recall`."""
    precision, recall = precision_recall(parts, objects)
    return float(np.sum(np.diff(recall, prepend=0.0) * precision))


def best_threshold(scores: np.ndarray, parts: np.ndarray, objects: int) -> tuple[float, float]:
    """(threshold, F1): keeping the detections with at least this score gives the highest F1, over all classes together.

    (1, 0) if no detection is right. Arguments as in `precision_recall`, in any order; `scores` is (d,).
    """
    order = np.argsort(-scores, kind="stable")
    scores, parts = scores[order], parts[order]
    right, wrong = np.cumsum(parts == RIGHT), np.cumsum(parts == WRONG)
    f1 = 2 * right / np.maximum(right + wrong + objects, 1)
    f1[:-1][scores[1:] == scores[:-1]] = 0  # a threshold keeps all of equal scores, or none
    best = f1.argmax() if f1.size else 0
    return (float(scores[best]), float(f1[best])) if f1.any() else (1.0, 0.0)


def _mean(values):
    """The mean of the values that are not NaN, or None."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else None


def _shown(values):
    """Values as a list rounded to 6 digits, None for NaN."""
    return [None if np.isnan(value) else round(float(value), 6) for value in values]


def _share(part, whole):
    """part / whole, NaN where the whole is 0."""
    return np.where(whole > 0, part / np.maximum(whole, 1), np.nan)


def _of_class(parts, ranks, voc, objects):
    """A class's AP (s, t), recall (3, s, t), curve (101,) and VOC's AP of all and of 11 points; NaN without objects.

    Its detections have parts (d, s, t), ranks (d,) and VOC's parts (d,), best score first; `objects` is (s,).
    """
    ap, curve, points = np.full(parts.shape[1:], np.nan), np.full(len(RECALLS), np.nan), [np.nan, np.nan]
    for s, t in np.ndindex(ap.shape):
        if objects[s]:
            ap[s, t] = interpolated(parts[:, s, t], objects[s]).mean()
    right = np.stack([(parts[ranks < limit] == RIGHT).sum(0) for limit in LIMITS])
    if objects[0]:
        curve = interpolated(parts[:, 0, 0], objects[0])
        points = [area_under_curve(voc, objects[0]), interpolated(voc, objects[0], RECALLS[::10]).mean()]
    return ap, _share(right, objects[:, None]), curve, np.array(points)


def _measures(ap, recall, voc_ap):
    """{name: mean over the classes that define it} of AP (k, s, t), recall (k, 3, s, t) and VOC's AP (k,)."""
    measures = {"ap": ap[:, 0], "ap50": ap[:, 0, 0], "ap75": ap[:, 0, 5]}
    measures |= {f"ap_{size}": ap[:, i] for i, size in enumerate(SIZES) if i}
    measures |= {f"ar{limit}": recall[:, i, 0] for i, limit in enumerate(LIMITS)} | {"voc_ap50": voc_ap}
    means = {name: _mean(values) for name, values in measures.items()}
    return {name: mean for name, mean in means.items() if mean is not None}


class AveragePrecision:
    """Collects detections image by image and computes AP, AR, curves, a confusion matrix and the best score threshold.

    It keeps about 70 bytes per detection. Only the 100 best detections of each class in an image count, also for VOC.

    Args:
        class_names: in the order of the labels.

    Attributes:
        images: number of images.
        objects: (k, s) objects of each class and size range; crowds and difficult ones do not count.
    """

    def __init__(self, class_names: Sequence[str]):
        self.class_names = tuple(class_names)
        self.images = 0
        self.objects = np.zeros((len(self.class_names), len(SIZES)), int)
        self._detections = []  # per image: scores, labels, ranks, parts, VOC's parts, classes found

    def add(
        self,
        size: Any,
        objects: Any,
        boxes: Any,
        scores: Any,
        labels: Any,
        overlaps: Any = None,
        areas: Any = None,
    ) -> None:
        """Adds an image.

        Args:
            size: (2,) height and width of the original image, in pixels.
            objects: (m, 7) true objects: top, left, bottom, right as fractions of the image, label, crowd (0; 1 a
                crowd, 2 difficult) and area in pixels. Rows with label -1 are padding.
            boxes: (d, 4) detections, as fractions of the image; None with `overlaps` and `areas`.
            scores: (d,).
            labels: (d,) integers; -1 is padding.
            overlaps: (d, m) IoU of masks instead of boxes, and
            areas: (d,) pixels of the detections' masks, as of `matched_masks.mask_overlaps`.

        Raises:
            ValueError: for a label without a class, or overlaps of another shape.
        """
        objects, labels = np.asarray(objects, "float64").reshape(-1, 7), np.asarray(labels)
        for name, given in (("objects", objects[:, LABEL]), ("detections", labels)):
            if len(given) and given.max() >= len(self.class_names):
                raise ValueError(
                    f"{name} contain the label {given.max():.0f}, expected at most {len(self.class_names) - 1}: there"
                    f" are {len(self.class_names)} classes, counted from 0."
                )
        if overlaps is None:
            pixels = np.tile(np.asarray(size, "float64"), 2)
            boxes = np.asarray(boxes, "float64").reshape(-1, 4) * pixels
            overlaps = matched_boxes.overlaps(boxes, objects[:, :4] * pixels, objects[:, KIND] == 1)
            areas = matched_boxes.areas(boxes)
        iou, areas, scores = np.asarray(overlaps), np.asarray(areas), np.asarray(scores)
        if iou.shape != (len(labels), len(objects)):
            raise ValueError(f"Expected overlaps {(len(labels), len(objects))}, (d, m), got {iou.shape}.")
        found = np.flatnonzero(labels >= 0)
        order, ranks = best_first(scores[found], labels[found])
        found, ranks = found[order][ranks < LIMITS[-1]], ranks[ranks < LIMITS[-1]]
        real = objects[:, LABEL] >= 0
        self._match(objects[real], iou[found][:, real], areas[found], scores[found], labels[found], ranks)

    def _match(self, objects, iou, areas, scores, labels, ranks):
        """Adds an image without padding, detections best score first: iou (d, m), the others (d,)."""
        truth, size = objects[:, LABEL].astype(int), objects[:, AREA]
        skipped = objects[:, KIND] > 0
        low, high = np.array(list(SIZES.values()), "float64").T[..., None]  # (s, 1)
        ignored = skipped | (size < low) | (size > high)  # (s, m)
        outside = ((areas < low) | (areas > high)).T  # (d, s)
        same = labels[:, None] == truth
        own = np.where(same, iou, 0)
        parts = coco_parts(coco_matches(own, ignored, skipped), ignored, outside)
        classes = np.append(np.where(skipped, _SKIPPED, truth), len(self.class_names))  # the last is background
        found = classes[any_class_matches(iou, same, skipped)]
        self._detections.append((scores, labels, ranks, parts, voc_parts(own, skipped), found))
        np.add.at(self.objects, truth, ~ignored.T)
        self.images += 1

    def result(self, threshold: float | None = None) -> tuple[dict[str, float], dict[str, Any]]:
        """(measures, details) of all images so far.

        Args:
            threshold: the score from which detections count in the confusion matrix, precision and recall; None for the
                one with the highest F1.

        Returns:
            Measures, means over the classes with such objects, or left out if there are none: "ap", "ap50", "ap75",
                "ap_small", "ap_medium", "ap_large", "ar1", "ar10", "ar100", "voc_ap50"; and "f1", the highest of any
                score threshold, with that "threshold". Details, None where undefined: "classes"; "per_class", of each
                {"name", "ap", "ap50", "precision", "recall", "objects", "best_threshold"}, the last for its highest F1;
                "sizes", {size: {"ap", "ar", "objects"}}; "score_threshold", the one used; "voc07_ap50", of 11 points;
                up to 100 classes also "curves", {name: precisions at recalls 0, .01, ..., 1 and IoU .5}, and
                "confusion", true by detected classes, the last the background.
        """
        scores, labels, ranks, parts, voc, found = self._collected()
        order = np.lexsort((-scores, labels))
        rows = np.split(order, np.searchsorted(labels[order], np.arange(1, len(self.class_names))))
        by_class = [_of_class(parts[r], ranks[r], voc[r], objects) for r, objects in zip(rows, self.objects)]
        ap, recall, curves, voc_ap = map(np.stack, zip(*by_class))  # (k, s, t), (k, 3, s, t), (k, 101), (k, 2)
        best, f1 = best_threshold(scores, parts[:, 0, 0], self.objects[:, 0].sum())
        thresholds = [best_threshold(scores[r], parts[r, 0, 0], m)[0] for r, m in zip(rows, self.objects[:, 0])]
        kept = scores >= (best if threshold is None else threshold)
        details = {
            "classes": list(self.class_names),
            "per_class": self._rows(ap[:, 0], labels[kept], parts[kept, 0, 0], thresholds),
            "sizes": {
                size: {"ap": _mean(ap[:, i]), "ar": _mean(recall[:, -1, i]), "objects": int(self.objects[:, i].sum())}
                for i, size in enumerate(SIZES)
            },
            "score_threshold": best if threshold is None else threshold,
            "voc07_ap50": _mean(voc_ap[:, 1]),
        }
        if len(self.class_names) <= _CURVES:
            known = [i for i, objects in enumerate(self.objects[:, 0]) if objects]
            details["curves"] = {self.class_names[i]: curves[i].round(4).tolist() for i in known}
            details["confusion"] = self._confusion(labels[kept], found[kept]).tolist()
        return _measures(ap, recall, voc_ap[:, 0]) | {"f1": f1, "threshold": best}, details

    def _collected(self):
        """The arrays of all detections; empty ones without any."""
        empty = np.zeros(0), np.zeros(0, int), np.zeros(0, int), np.zeros((0, len(SIZES), len(THRESHOLDS)), "int8")
        return map(np.concatenate, zip((*empty, np.zeros(0, "int8"), np.zeros(0, int)), *self._detections))

    def _rows(self, ap, labels, parts, thresholds):
        """Details of each class: AP (k, t), the labels and parts (d,) of the detections above the threshold, and each
        class's own best threshold.
        """
        right, wrong = (np.bincount(labels[parts == part], minlength=len(ap)) for part in (RIGHT, WRONG))
        objects = self.objects[:, 0]
        columns = {
            "ap": _shown(ap.mean(-1)),
            "ap50": _shown(ap[:, 0]),
            "precision": _shown(_share(right, right + wrong)),
            "recall": _shown(_share(right, objects)),
            "objects": objects.tolist(),
            "best_threshold": _shown(np.where(objects > 0, thresholds, np.nan)),
        }
        return [dict(zip(("name", *columns), row)) for row in zip(self.class_names, *columns.values())]

    def _confusion(self, labels, found):
        """Objects of each class by the class that they were detected as, (k + 1, k + 1): the last is background."""
        k = len(self.class_names)
        matrix = np.zeros((k + 1, k + 1), int)
        np.add.at(matrix, (found[found != _SKIPPED], labels[found != _SKIPPED]), 1)
        matrix[:k, k] = self.objects[:, 0] - matrix[:k].sum(1)
        return matrix
