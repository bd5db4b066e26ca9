"""The loss of LW-DETR and RF-DETR (arXiv 2406.03459, section 3.2): set prediction in groups, after every layer.

A model predicts a set of boxes with classes for each of several groups of queries, after each decoder layer and for
the proposals that the queries come from. In each of these sets every object is matched with one prediction.

Letters: b images, s predictions (layers, then proposals), g groups, q queries, m objects (padded), k classes.
"""

from typing import Any

from keras import ops

from keras_vit.detection.dense_loss import ObjectLoss
from keras_vit.detection.set_loss import pair_losses
from keras_vit.layers.arguments import number
from keras_vit.layers.boxes import iou
from keras_vit.layers.registration import serializable
from keras_vit.models.matching import match

_ALPHA, _GAMMA = 0.25, 2.0  # of the cost of a class, as in the focal loss
_LEAST = 1e-8  # probability in a logarithm
_WORST = 0.01  # the least target of a matched prediction


def class_costs(logits: Any) -> Any:
    """The cost of matching a prediction with an object of each class: logits (..., k) -> (..., k)."""
    p = ops.sigmoid(logits)
    positive = -_ALPHA * (1.0 - p) ** _GAMMA * ops.log(p + _LEAST)
    return positive + (1.0 - _ALPHA) * p**_GAMMA * ops.log(1.0 - p + _LEAST)


def quality_entropy(logits: Any, is_class: Any, overlap: Any) -> Any:
    """Binary cross-entropy that learns how well a box fits (IA-BCE, equation 2 of the paper), of each logit.

    A matched prediction learns its class up to p^alpha IoU^(1 - alpha), p its probability now; all others learn 0,
    weighted by p^2.

    Args:
        logits: (..., k).
        is_class: (..., k), 1 for the class of a matched prediction, else 0.
        overlap: (..., 1), its IoU with its object.
    """
    p = ops.sigmoid(logits)
    quality = ops.stop_gradient(ops.maximum(p**_ALPHA * overlap ** (1.0 - _ALPHA), _WORST))
    positive = ops.where(is_class > 0, quality, 0.0)
    negative = ops.where(is_class > 0, 1.0 - quality, p**_GAMMA)
    return -positive * ops.log_sigmoid(logits) - negative * ops.log_sigmoid(-logits)


@serializable
class GroupedSetPredictionLoss(ObjectLoss):
    """Matching in each set, then IoU-aware cross-entropy of classes, L1 and GIoU losses of the matched boxes.

    y (b, m, 7), y_pred (b, s, g, q, 4 + k): boxes and logits of each set. The loss is the sum over the s predictions,
    and the mean over groups. Crowds and difficult objects are not matched. An image with more objects than queries
    leaves the rest of them out.

    An image's losses are divided by its own number of objects, at least 1, so that examples and replicas do not depend
    on each other; the paper divides a batch's by the batch's.

    Args:
        class_weight, box_weight, giou_weight: of the three losses.
        class_cost, box_cost, giou_cost: in the cost of a match.
    """

    def __init__(
        self,
        class_weight: float = 1.0,
        box_weight: float = 5.0,
        giou_weight: float = 2.0,
        class_cost: float = 2.0,
        box_cost: float = 5.0,
        giou_cost: float = 2.0,
        name: str = "loss",
        **kwargs: Any,
    ):
        super().__init__(name, **kwargs)
        self.class_weight = number(class_weight, "GroupedSetPredictionLoss: class_weight", least=0)
        self.box_weight = number(box_weight, "GroupedSetPredictionLoss: box_weight", least=0)
        self.giou_weight = number(giou_weight, "GroupedSetPredictionLoss: giou_weight", least=0)
        self.class_cost = number(class_cost, "GroupedSetPredictionLoss: class_cost", least=0)
        self.box_cost = number(box_cost, "GroupedSetPredictionLoss: box_cost", least=0)
        self.giou_cost = number(giou_cost, "GroupedSetPredictionLoss: giou_cost", least=0)

    def count_classes(self, prediction: Any) -> int:
        return prediction.shape[-1] - 4

    def per_example(self, boxes: Any, labels: Any, is_object: Any, is_crowd: Any, prediction: Any) -> Any:
        return self._loss(boxes, labels, is_object, prediction)

    def _loss(self, boxes, labels, is_object, prediction, costs=None, more=None):
        """The loss of each image, (b,); subclasses add costs of each match, (b, s, g, q, m), and losses of the matches:
        `more` maps the query of each object or -1, (b, s, g, m), to (b, s, g).
        """
        _, s, g, q, c = prediction.shape
        m = labels.shape[1]
        count = ops.maximum(ops.sum(ops.cast(is_object, "float32"), axis=1), 1.0)  # (b,)
        boxes, labels, is_object = (ops.repeat(x, s * g, axis=0) for x in (boxes, labels, is_object))  # (b*s*g, m, ...)
        prediction = ops.reshape(prediction, (-1, q, c))
        of_matches = self._costs(boxes, labels, prediction)
        if costs is not None:
            of_matches = of_matches + ops.reshape(costs, (-1, q, m))
        found = match(of_matches, is_object)  # (b*s*g, m), -1 for none
        losses = ops.reshape(self._set_losses(boxes, labels, found, prediction), (-1, s, g))
        if more is not None:
            losses = losses + more(ops.reshape(found, (-1, s, g, m)))
        return ops.sum(losses, axis=(1, 2)) / (g * count)

    def _costs(self, boxes, labels, prediction):
        """The cost of each match in each set, (b*s*g, q, m), from predictions (b*s*g, q, 4 + k)."""
        hot = ops.one_hot(labels, prediction.shape[-1] - 4, dtype="float32")  # (b*s*g, m, k)
        costs = ops.matmul(class_costs(prediction[..., 4:]), ops.transpose(hot, (0, 2, 1)))
        return self.class_cost * costs + pair_losses(prediction[..., :4], boxes, self.box_cost, self.giou_cost)

    def _set_losses(self, boxes, labels, found, prediction):
        """The sum of each set's losses, (b*s*g,), for the query of each object, (b*s*g, m)."""
        predicted, logits = prediction[..., :4], prediction[..., 4:]
        hot = ops.one_hot(labels, logits.shape[-1], dtype="float32")  # (b*s*g, m, k)
        matched = ops.transpose(ops.one_hot(found, predicted.shape[1], dtype="float32"), (0, 2, 1))  # (b*s*g, q, m)
        pairs = pair_losses(predicted, boxes, self.box_weight, self.giou_weight)
        overlap = ops.stop_gradient(iou(predicted[:, :, None], boxes[:, None])) * matched
        overlap = ops.sum(overlap, axis=2, keepdims=True)  # (b*s*g, q, 1)
        of_classes = quality_entropy(logits, ops.matmul(matched, hot), overlap)
        of_boxes = ops.sum(ops.where(matched > 0, pairs, 0.0), axis=(1, 2))
        return self.class_weight * ops.sum(of_classes, axis=(1, 2)) + of_boxes
