"""Losses and scores of depth: y (b, h, w) or (b, h, w, 1) in metres, predictions (b, h, w, 1) or (b, h, w).

Depths of 0, negative ones, NaN and infinity are void: they have no truth, and count nowhere. Each image has one value,
a mean over its pixels with a depth; an image without any counts 0 in a loss, and not at all in the scores.
"""

from typing import Any

import keras
from keras import ops

from keras_vit.fit.losses import Loss, as_tensors
from keras_vit.layers.arguments import flag, number
from keras_vit.layers.registration import serializable

_LEAST = 1e-3  # metres: predictions below count as this in logarithms and inverses
MEASURES = ("abs_rel", "rmse", "delta1")


def known_depths(y_true: Any, y_pred: Any) -> tuple[Any, Any, Any]:
    """(true depths, 1 where void; predictions; 1 where there is a depth, else 0), each (b, h * w) float32.

    Raises:
        ValueError: if the two differ in their number of pixels.
    """
    truth, found = ops.cast(y_true, "float32"), ops.cast(y_pred, "float32")
    sizes = [tuple(x.shape[1:3]) for x in (truth, found)]
    if sizes[0] != sizes[1] or (len(truth.shape) == 4 and truth.shape[-1] != 1):
        raise ValueError(
            f"Expected depths (b, h, w) of the predictions' size, {sizes[1]}, got the shape {tuple(truth.shape)}."
        )
    n = sizes[1][0] * sizes[1][1]
    truth, found = ops.reshape(truth, (-1, n)), ops.reshape(found, (-1, n))  # (b, h, w[, 1]) -> (b, n)
    there = ops.logical_and(truth > 0, truth < float("inf"))  # false for NaN
    return ops.where(there, truth, 1.0), found, ops.cast(there, "float32")


def masked_mean(values: Any, there: Any) -> Any:
    """The mean of values (b, n) where `there` is 1, 0 without any: (b,)."""
    return ops.sum(values * there, axis=-1) / ops.maximum(ops.sum(there, axis=-1), 1.0)


def aligned(found: Any, target: Any, there: Any) -> Any:
    """`found` (b, n), scaled and shifted to `target` by least squares over the pixels that are `there`, image by image.

    The closed form of scale and shift (MiDaS, arXiv 1907.01341, equation 4). A constant image has the scale 0.
    """
    mean, other = masked_mean(found, there)[:, None], masked_mean(target, there)[:, None]
    x, y = found - mean, target - other
    variance = masked_mean(x * x, there)[:, None]
    scale = masked_mean(x * y, there)[:, None] / ops.maximum(variance, 1e-12)
    return scale * x + other


class _DepthLoss(Loss):
    """The base of both losses; a subclass defines `per_image(truth, found, there)`, (b, n) each -> (b,)."""

    def call(self, y_true, y_pred):
        return self.per_image(*known_depths(y_true, y_pred))

    def per_image(self, truth: Any, found: Any, there: Any) -> Any:
        raise NotImplementedError


@serializable
class ScaleInvariantLogLoss(_DepthLoss):
    """mean(e^2) - invariance * mean(e)^2 of an image's pixels, with e = log(prediction) - log(truth).

    Eigen et al. 2014, arXiv 1406.2283, equation 4.

    Args:
        invariance: how much of the error of the common scale is forgiven: 0 none, 0.5 in the paper, 0.85 in current
            practice (BTS, arXiv 1907.10326, and AdaBins, which take the square root, too), 1 all of it.
    """

    def __init__(self, invariance: float = 0.85, name: str = "loss", **kwargs: Any):
        super().__init__(name=name, **kwargs)
        self.invariance = number(invariance, "ScaleInvariantLogLoss: invariance", least=0.0)
        if self.invariance > 1:
            raise ValueError(f"ScaleInvariantLogLoss: invariance is from 0 to 1, got {invariance}.")

    def per_image(self, truth: Any, found: Any, there: Any) -> Any:
        errors = ops.log(ops.maximum(found, _LEAST)) - ops.log(ops.maximum(truth, _LEAST))
        return masked_mean(errors * errors, there) - self.invariance * masked_mean(errors, there) ** 2


@serializable
class DepthL1(_DepthLoss):
    """The mean of |prediction - truth| over an image's pixels, in metres.

    Args:
        align: for relative models: compare inverse depths, after the scale and shift of least squares for each image
            (MiDaS, arXiv 1907.01341).
    """

    def __init__(self, align: bool = False, name: str = "loss", **kwargs: Any):
        super().__init__(name=name, **kwargs)
        self.align = flag(align, "DepthL1: align")

    def per_image(self, truth: Any, found: Any, there: Any) -> Any:
        if self.align:
            truth = 1.0 / ops.maximum(truth, _LEAST)
            found = aligned(found, truth, there)
        return masked_mean(ops.abs(found - truth), there)


def depth_scores(truth: Any, found: Any, there: Any) -> dict[str, Any]:
    """{measure: (b,)} of depths (b, n) in metres: of pixels, mean |error| / truth, root of mean error^2, share with
    max(found / truth, truth / found) < 1.25 (Eigen et al. 2014).
    """
    found = ops.maximum(found, _LEAST)
    error, ratio = found - truth, ops.maximum(found / truth, truth / found)
    return {
        "abs_rel": masked_mean(ops.abs(error) / truth, there),
        "rmse": ops.sqrt(masked_mean(error * error, there)),
        "delta1": masked_mean(ops.cast(ratio < 1.25, "float32"), there),
    }


def as_depth(found: Any, truth: Any, there: Any, farthest: float) -> Any:
    """Relative predictions (b, n) as metres: aligned to the inverse of the truth, and at most `farthest`."""
    return 1.0 / ops.maximum(aligned(found, 1.0 / truth, there), 1.0 / farthest)


@serializable
class DepthScores(keras.metrics.Metric):
    """{"abs_rel", "rmse", "delta1"}: means over images, as in current practice, of each image's measures.

    Images of weight 0, and those without a depth, count nowhere.

    Args:
        align: for relative models: predictions are inverse depths, scaled and shifted to the truth for each image.
        farthest: metres, the largest depth of aligned predictions.
    """

    _direction = "down"

    def __init__(self, align: bool = False, farthest: float = 80.0, name: str = "abs_rel", dtype: str | None = None):
        super().__init__(name=name, dtype=dtype)
        self.align, self.farthest = flag(align, "DepthScores: align"), number(farthest, "DepthScores: farthest")
        self.sums = self.add_variable((len(MEASURES) + 1,), "zeros", dtype="float32", name="sums")

    def update_state(self, y_true, y_pred, sample_weight=None):
        y_true, y_pred, sample_weight = as_tensors(y_true, y_pred, sample_weight)
        truth, found, there = known_depths(y_true, y_pred)
        if self.align:
            found = as_depth(found, truth, there, self.farthest)
        weights = ops.cast(ops.any(there > 0, axis=-1), "float32")  # (b,)
        if sample_weight is not None:
            weights = weights * ops.reshape(ops.cast(sample_weight, "float32"), (-1,))
        scores = depth_scores(truth, found, there)
        sums = [ops.sum(ops.where(weights > 0, scores[name], 0.0) * weights) for name in MEASURES]
        self.sums.assign_add(ops.stack([*sums, ops.sum(weights)]))

    def result(self):
        sums = ops.convert_to_tensor(self.sums)
        return {name: sums[i] / ops.maximum(sums[-1], 1e-12) for i, name in enumerate(MEASURES)}

    def get_config(self) -> dict[str, Any]:
        return {"align": self.align, "farthest": self.farthest, "name": self.name, "dtype": self.dtype}
