"""Which object each point or box of a detector learns: centre sampling, task-aligned assignment, and by overlap.

Letters: b images, n points or boxes, m objects (padded), k classes. Shapes are static and nothing has a gradient.
Arrays are (b, n, m) at most: 4,000 points and 300 objects take 5 MB each, and an image has about ten of them at a time.

Points (n, 4) or (b, n, 4): centre y, x and the height and width of its cell, in the units of boxes.
"""

from typing import Any

from keras import ops

from keras_vit.layers.boxes import areas, iou

_USUAL = 6.0  # sides of an object in cells of the level that learns it
_LEAST = 1e-30


def inside(points: Any, boxes: Any) -> Any:
    """Which points lie in boxes (b, m, 4): (b, n, m). A box counts as at least a cell, so none is without a point."""
    y, x, height, width = (points[..., i, None] for i in range(4))  # (b, n, 1)
    top, left, bottom, right = (boxes[:, None, :, i] for i in range(4))  # (b, 1, m)
    below = ops.abs(2 * y - top - bottom) <= ops.maximum(bottom - top, 1.02 * height)
    return below & (ops.abs(2 * x - left - right) <= ops.maximum(right - left, 1.02 * width))


def _best_candidates(preference, candidates):
    """The candidate (b, n, m) with the highest preference for each point, the earlier of equal ones: (b, n); or -1."""
    best = ops.argmax(ops.where(candidates, preference, -float("inf")), axis=2)
    return ops.where(ops.any(candidates, axis=2), ops.cast(best, "int32"), -1)


def center_sampled(points: Any, boxes: Any, positive: Any, radius: float = 1.5) -> Any:
    """Points near an object's centre learn it (FCOS, arXiv 2006.09214, section 3.2).

    A candidate lies in the object, at most `radius` cells from its centre, at the level where the object's longer side
    is nearest to six cells, by ratio (FCOS compares the farthest edge with limits for each level). Of several objects
    the smallest wins.

    Args:
        points: as above.
        boxes: (b, m, 4).
        positive: (b, m) booleans, the objects to learn.

    Returns:
        int32 (b, n): the number of the object, or -1.
    """
    y, x, height, width = (points[..., i, None] for i in range(4))  # (b, n, 1)
    top, left, bottom, right = (boxes[:, None, :, i] for i in range(4))  # (b, 1, m)
    off = ops.maximum(ops.abs(y - (top + bottom) / 2) / height, ops.abs(x - (left + right) / 2) / width)
    side = ops.maximum(ops.maximum((bottom - top) / height, (right - left) / width), 1e-6)  # (b, n, m)
    misfit = ops.abs(ops.log(side / _USUAL))
    at_level = misfit <= ops.min(misfit, axis=1, keepdims=True) + 1e-4
    near = (off <= radius) & at_level & inside(points, boxes) & positive[:, None]
    return _best_candidates(-areas(boxes)[:, None], near)


def task_aligned(
    points: Any,
    scores: Any,
    predicted: Any,
    boxes: Any,
    labels: Any,
    positive: Any,
    top: int = 10,
    alpha: float = 0.5,
    beta: float = 6.0,
) -> tuple[Any, Any]:
    """The points inside an object with the best predictions learn it (TOOD, arXiv 2108.07755, section 3.2).

    The fit is score^alpha * IoU^beta, of the object's class and box, and the `top` best points of an object learn it;
    of several objects the one that its predicted box overlaps most.

    Args:
        points: as above.
        scores: (b, n, k), probabilities.
        predicted: boxes (b, n, 4).
        boxes: (b, m, 4).
        labels: (b, m) int32, from 0.
        positive: (b, m) booleans, the objects to learn.

    Returns:
        int32 (b, n): the number of the object, or -1. float32 (b, n): the target for the score of its class, the fit
        scaled for each object so that the best is its highest IoU; 0 without object.
    """
    candidates = inside(points, boxes) & positive[:, None]  # (b, n, m)
    of_class = ops.cast(ops.one_hot(labels, scores.shape[2]), scores.dtype)  # (b, m, k)
    overlaps = iou(predicted[:, :, None], boxes[:, None])
    fit = ops.matmul(scores, ops.transpose(of_class, (0, 2, 1))) ** alpha * overlaps**beta
    fit = ops.where(candidates, fit, 0.0)
    best, _ = ops.top_k(ops.transpose(fit, (0, 2, 1)), min(top, fit.shape[1]))  # (b, m, top)
    chosen = candidates & (fit >= (1 - 1e-6) * best[:, None, :, -1])  # programs may round the same value differently
    object_of = _best_candidates(overlaps, chosen)  # (b, n)
    own = object_of[..., None] == ops.arange(fit.shape[2], dtype="int32")  # (b, n, m), one at most
    fit, overlaps = ops.where(own, fit, 0.0), ops.where(own, overlaps, 0.0)
    share = fit / ops.maximum(ops.max(fit, axis=1, keepdims=True), _LEAST)
    return object_of, ops.sum(share * ops.max(overlaps, axis=1, keepdims=True), axis=2)


def overlapping(
    references: Any, boxes: Any, positive: Any, there: Any, low: float, high: float, best_too: bool = False
) -> Any:
    """Boxes learn the object that they overlap most (Faster R-CNN, arXiv 1506.01497, section 3.1.2).

    Args:
        references: boxes (b, n, 4).
        boxes: (b, m, 4).
        positive: (b, m) booleans, the objects to learn.
        there: (b, n) booleans, the references that count.
        low: references with a highest IoU below it learn that there is no object.
        high: those at or above it learn the object.
        best_too: whether those with an object's highest IoU, however low, learn the one that they overlap most, too.

    Returns:
        int32 (b, n): the number of the object; -1 for no object; -2 to learn nothing.
    """
    counts = there[..., None] & positive[:, None]  # (b, n, m)
    overlaps = ops.where(counts, iou(references[:, :, None], boxes[:, None]), 0.0)
    highest, object_of = ops.max(overlaps, axis=2), ops.cast(ops.argmax(overlaps, axis=2), "int32")
    learns = highest >= high
    if best_too:
        best = ops.max(overlaps, axis=1, keepdims=True)  # (b, 1, m)
        learns = learns | ops.any((overlaps >= (1 - 1e-6) * best) & (overlaps > 0), axis=2)
    other = ops.where(there & (highest < low), -1, -2)
    return ops.where(learns & there, object_of, other)


def sampling_weights(positive: Any, negative: Any, samples: int, share: float) -> Any:
    """Expected weights in the mean over a random sample of `samples` rows, at most `share` of which are positive.

    A deterministic replacement for Faster R-CNN's sampling: the mean of its loss over all samples.

    Args:
        positive, negative: (b, n) booleans.

    Returns:
        (b, n) float32; the sum of an image's is 1, or 0 without rows.
    """
    positive, negative = ops.cast(positive, "float32"), ops.cast(negative, "float32")
    p, q = ops.sum(positive, axis=1, keepdims=True), ops.sum(negative, axis=1, keepdims=True)  # (b, 1)
    taken = ops.minimum(p, samples * share)
    others = ops.minimum(q, samples - taken)
    weights = positive * taken / ops.maximum(p, 1.0) + negative * others / ops.maximum(q, 1.0)
    return weights / ops.maximum(taken + others, 1.0)
