"""Which detections find which objects of an image, in NumPy: the rules of COCO, Pascal VOC and a confusion matrix.

Boxes are top, left, bottom, right. Letters: d detections, best score first; m objects; s size ranges; t thresholds.
"""

import numpy as np

THRESHOLDS = np.linspace(0.5, 0.95, 10)  # of IoU
WRONG, RIGHT, IGNORED = 0, 1, 2  # a detection's part in precision


def areas(boxes: np.ndarray) -> np.ndarray:
    """Areas (n,) of boxes (n, 4)."""
    return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])


def overlaps(boxes: np.ndarray, others: np.ndarray, crowd: np.ndarray) -> np.ndarray:
    """IoU of boxes (d, 4) and objects (m, 4): (d, m). With a crowd it is the share of the box inside the crowd.

    `crowd` is (m,) bool. Boxes without area overlap nothing.
    """
    sides = np.minimum(boxes[:, None, 2:], others[:, 2:]) - np.maximum(boxes[:, None, :2], others[:, :2])
    both = np.maximum(sides, 0).prod(-1)  # (d, m, 2) -> (d, m)
    own = areas(boxes)[:, None]
    either = np.where(crowd, own, own + areas(others) - both)
    return np.divide(both, either, out=np.zeros_like(both), where=both > 0)


def best_first(scores: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(positions by falling score, rank within the class of each of these), both (d,); equal scores keep their order.

    `scores` and `labels` are (d,), in any order.
    """
    order = np.argsort(-scores, kind="stable")
    by_class = np.argsort(labels[order], kind="stable")
    _, first, counts = np.unique(labels[order][by_class], return_index=True, return_counts=True)
    ranks = np.empty(len(order), int)
    ranks[by_class] = np.arange(len(order)) - np.repeat(first, counts)
    return order, ranks


def coco_matches(
    iou: np.ndarray, ignored: np.ndarray, crowd: np.ndarray, thresholds: np.ndarray = THRESHOLDS
) -> np.ndarray:
    """The object that each detection finds, or -1, for each size range and threshold: (d, s, t) int.

    Each detection in turn takes the free object with the highest IoU, an ignored one only if no other is left. Of
    equal ones it takes the last, as pycocotools does.

    Args:
        iou: (d, m); 0 for another class.
        ignored: (s, m) bool, objects that do not count in a size range.
        crowd: (m,) bool, objects that stay free.
        thresholds: (t,), ascending.
    """
    found = np.full((len(iou), len(ignored), len(thresholds)), -1)
    free = np.ones((*found.shape[1:], len(crowd)), bool)  # (s, t, m)
    for i in np.flatnonzero((iou >= thresholds[0]).any(-1)):
        near = np.flatnonzero(iou[i] >= thresholds[0])[::-1]  # reversed: argmax takes the first of equals
        able = free[:, :, near] & (iou[i, near] >= thresholds[:, None])
        counting = able & ~ignored[:, None, near]
        able = np.where(counting.any(-1, keepdims=True), counting, able)
        best = near[np.where(able, iou[i, near], -1).argmax(-1)]  # (s, t)
        taken = able.any(-1)
        found[i][taken] = best[taken]
        rows, columns = np.nonzero(taken & ~crowd[best])
        free[rows, columns, best[rows, columns]] = False
    return found


def coco_parts(found: np.ndarray, ignored: np.ndarray, outside: np.ndarray) -> np.ndarray:
    """WRONG, RIGHT or IGNORED for each detection, size range and threshold: (d, s, t) int8.

    Args:
        found: of `coco_matches`.
        ignored: (s, m) bool, as there.
        outside: (d, s) bool, detections with a size outside a range: without an object they do not count.
    """
    skipped = np.zeros(found.shape, bool)
    if ignored.shape[1]:
        ranges = np.arange(len(ignored))[:, None]
        skipped = ignored[ranges, found] & (found >= 0)  # (d, s, t)
    skipped |= outside[..., None] & (found < 0)
    return np.where(skipped, IGNORED, np.where(found >= 0, RIGHT, WRONG)).astype("int8")


def voc_parts(iou: np.ndarray, difficult: np.ndarray) -> np.ndarray:
    """WRONG, RIGHT or IGNORED for each detection at IoU .5: (d,) int8.

    Only the object with the highest IoU counts; if an earlier detection has found it, the later one is wrong.

    Args:
        iou: (d, m); 0 for another class.
        difficult: (m,) bool; detections of these do not count.
    """
    parts = np.full(len(iou), WRONG, "int8")
    if iou.shape[1]:
        best = iou.argmax(-1)
        near = np.flatnonzero(iou.max(-1) >= 0.5)
        parts[near[np.unique(best[near], return_index=True)[1]]] = RIGHT
        parts[near[difficult[best[near]]]] = IGNORED
    return parts


def any_class_matches(iou: np.ndarray, same: np.ndarray, ignored: np.ndarray) -> np.ndarray:
    """The object of any class that each detection finds at IoU .5, or -1: (d,) int.

    Each detection in turn takes the free object of its class with the highest IoU, or else one of another class.
    Detections with lower scores change nothing: the matches at any score threshold are the first ones.

    Args:
        iou: (d, m), of all classes.
        same: (d, m) bool, where the classes are equal.
        ignored: (m,) bool, objects that only detections of their class may find, and any number of these.
    """
    near = (iou >= 0.5) & (same | ~ignored)
    return coco_matches(np.where(near, iou + same, 0), ignored[None], ignored, THRESHOLDS[:1])[:, 0, 0]


def objects_found(objects: np.ndarray, boxes: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """`any_class_matches` of boxes (d, 4) with labels (d,), best score first, and objects (m, 7): (d,) int."""
    truth, crowd = objects[:, 4], objects[:, 5]
    iou = overlaps(np.asarray(boxes, "float64"), np.asarray(objects[:, :4], "float64"), crowd == 1)
    return any_class_matches(iou, labels[:, None] == truth, crowd > 0)
