"""The loss of Faster R-CNN (Ren et al., 2015, arXiv 1506.01497), both of its stages at once.

Anchors learn whether they are an object, any object, and where it is: the region proposals. Regions, which are these
proposals and in training the true boxes, learn its class and its box. A model packs the rows of both (`region_rows`).

Letters: b images, n rows, m objects (padded), k classes.
"""

import dataclasses
from typing import Any

from keras import ops

from keras_vit.detection.assignment import overlapping, sampling_weights
from keras_vit.detection.dense_loss import ObjectLoss
from keras_vit.layers.arguments import number
from keras_vit.layers.boxes import areas, intersections, offsets
from keras_vit.layers.registration import serializable

_NEVER = -1e9  # logit
_FIELDS = 9  # of a row before its logits: reference, outputs, stage


@dataclasses.dataclass(frozen=True)
class Stage:
    """One of the stages: which boxes learn what.

    Attributes:
        number: in the rows.
        low, high, best_too: as in assignment.overlapping.
        samples, share: as in assignment.sampling_weights.
        units: outputs are offsets from the reference times these.
    """

    number: int
    low: float
    high: float
    best_too: bool
    samples: int
    share: float
    units: tuple[float, float, float, float]


ANCHORS = Stage(0, low=0.3, high=0.7, best_too=True, samples=256, share=0.5, units=(1.0, 1.0, 1.0, 1.0))
REGIONS = Stage(1, low=0.5, high=0.5, best_too=False, samples=128, share=0.25, units=(10.0, 10.0, 5.0, 5.0))


def region_rows(stage: Stage, references: Any, outputs: Any, logits: Any) -> Any:
    """Rows of a packed prediction, (b, n, 9 + k + 1); rows of several stages are concatenated.

    Args:
        stage: ANCHORS or REGIONS.
        references: the boxes (b, n, 4) from which offsets count; rows without area are padding.
        outputs: (b, n, 4), the offsets times the stage's units.
        logits: (b, n, k + 1), "no object" last.
    """
    number_of_stage = ops.full_like(references[..., :1], stage.number)
    return ops.concatenate([ops.stop_gradient(references), outputs, number_of_stage, logits], axis=-1)


def objectness_logits(objectness: Any, classes: int) -> Any:
    """Logits (b, n) of "an object" as those of class 0 among k, and of "no object": (b, n, k + 1). Softmax of these is
    the sigmoid.
    """
    first = objectness[..., None]
    others = [ops.full_like(first, _NEVER)] * (classes - 1)
    return ops.concatenate([first, *others, ops.zeros_like(first)], axis=-1)


def smooth_l1(x: Any, beta: float) -> Any:
    """The absolute value, quadratic below beta (Fast R-CNN, arXiv 1504.08083, equation 3)."""
    x = ops.abs(x)
    return ops.where(x < beta, 0.5 * x**2 / beta, x - 0.5 * beta)


@serializable
class RegionLoss(ObjectLoss):
    """The loss of the head "frcnn": cross-entropy and smooth L1 of anchors, and of regions.

    y (b, m, 7), y_pred (b, n, 9 + k + 1), as from `region_rows`. Rows that lie in crowds or difficult objects by more
    than half, and learn no object, are left out.

    The papers draw a sample of anchors and of regions; this is the mean of their loss over all samples, without random
    numbers. An image's losses are divided by its own number of samples, so that examples and replicas do not depend on
    each other.

    Args:
        anchor_weight, region_weight: of the two stages.
        box_weight: of smooth L1.
        beta: where smooth L1 becomes quadratic.
    """

    def __init__(
        self,
        anchor_weight: float = 1.0,
        region_weight: float = 1.0,
        box_weight: float = 1.0,
        beta: float = 1 / 9,
        name: str = "loss",
        **kwargs: Any,
    ):
        super().__init__(name, **kwargs)
        self.anchor_weight = number(anchor_weight, "RegionLoss: anchor_weight", least=0)
        self.region_weight = number(region_weight, "RegionLoss: region_weight", least=0)
        self.box_weight = number(box_weight, "RegionLoss: box_weight", least=0)
        self.beta = number(beta, "RegionLoss: beta", least=1e-6)

    def count_classes(self, prediction: Any) -> int:
        return prediction.shape[-1] - _FIELDS - 1

    def per_example(self, boxes: Any, labels: Any, is_object: Any, is_crowd: Any, prediction: Any) -> Any:
        anything = ops.zeros_like(labels)
        anchors = self._stage_loss(ANCHORS, boxes, anything, is_object, is_crowd, prediction)
        regions = self._stage_loss(REGIONS, boxes, labels, is_object, is_crowd, prediction)
        return self.anchor_weight * anchors + self.region_weight * regions

    def _stage_loss(self, stage, boxes, labels, is_object, is_crowd, prediction):
        """The loss of a stage's rows in each image, (b,)."""
        references, outputs, logits = prediction[..., :4], prediction[..., 4:8], prediction[..., _FIELDS:]
        references = ops.stop_gradient(references)
        there = (prediction[..., 8] == stage.number) & (areas(references) > 0)  # (b, n)
        object_of = overlapping(references, boxes, is_object, there, stage.low, stage.high, stage.best_too)
        positive, own = object_of >= 0, ops.maximum(object_of, 0)
        negative = (object_of == -1) & ~_within(references, boxes, is_crowd)
        weights = sampling_weights(positive, negative, stage.samples, stage.share)
        none = logits.shape[-1] - 1
        target = ops.where(positive, ops.take_along_axis(labels, own, axis=1), none)
        chosen = ops.one_hot(target, none + 1, dtype="float32") * ops.log_softmax(logits, axis=-1)
        box = ops.take_along_axis(boxes, own[..., None], axis=1)  # (b, n, 4)
        wrong = outputs - offsets(box, references) * ops.convert_to_tensor(stage.units, "float32")
        of_boxes = ops.where(positive, ops.sum(smooth_l1(wrong, self.beta), axis=-1), 0.0)
        return ops.sum(weights * (self.box_weight * of_boxes - ops.sum(chosen, axis=-1)), axis=1)


def _within(references, boxes, chosen):
    """Which references (b, n, 4) lie by more than half in one of the chosen (b, m) boxes: (b, n)."""
    shared = intersections(references[:, :, None], boxes[:, None])  # (b, n, m)
    return ops.any((shared > 0.5 * areas(references)[..., None]) & chosen[:, None], axis=2)
