"""The loss of set prediction (DETR, Carion et al., 2020, arXiv 2005.12872, section 3.1).

A model predicts a set of boxes with classes. Every object of an image is matched with one prediction, at the least
total cost; this one learns its class and box, and the others learn to be "no object".

Letters: b images, q predictions, m objects (padded), k classes.
"""

from typing import Any

from keras import ops

from keras_vit.detection.dense_loss import ObjectLoss
from keras_vit.layers.arguments import number
from keras_vit.layers.boxes import giou, to_centers
from keras_vit.layers.registration import serializable
from keras_vit.models.matching import match


def distances(predicted: Any, boxes: Any) -> Any:
    """L1 distances of centres, heights and widths of every pair: (b, q, 4), (b, m, 4) -> (b, q, m)."""
    a, b = to_centers(predicted)[:, :, None], to_centers(boxes)[:, None]
    return ops.sum(ops.abs(a - b), axis=-1)


def pair_losses(predicted: Any, boxes: Any, box_weight: float, giou_weight: float) -> Any:
    """The weighted L1 and GIoU losses of every pair of boxes: (b, q, 4), (b, m, 4) -> (b, q, m)."""
    overlap = giou(predicted[:, :, None], boxes[:, None])
    return box_weight * distances(predicted, boxes) + giou_weight * (1.0 - overlap)


def match_predictions(logits: Any, pairs: Any, labels: Any, is_object: Any, class_weight: float) -> Any:
    """The prediction matched with each object, -1 for none: (b, m) int32.

    Args:
        logits: (b, q, k + 1), "no object" last.
        pairs: (b, q, m), as from `pair_losses`.
        labels: (b, m) int32 classes.
        is_object: (b, m) booleans, the objects to match.
        class_weight: of the class's probability in the cost.
    """
    of_class = ops.one_hot(labels, logits.shape[-1], dtype="float32")  # (b, m, k + 1)
    probability = ops.matmul(ops.softmax(logits, axis=-1), ops.transpose(of_class, (0, 2, 1)))  # (b, q, m)
    return match(ops.stop_gradient(pairs - class_weight * probability), is_object)


@serializable
class SetPredictionLoss(ObjectLoss):
    """DETR's loss: matching, then cross-entropy of classes, L1 and GIoU losses of the matched boxes.

    y (b, m, 7), y_pred (b, q, 4 + k + 1): boxes and logits, as from `packed`. Crowds and difficult objects are not
    matched. An image with more objects than predictions leaves the rest of them out.

    The cross-entropy is the weighted mean over an image's predictions, and box losses are divided by the image's own
    number of objects, so that examples and replicas do not depend on each other; the paper divides both by the batch's.

    Args:
        class_weight, box_weight, giou_weight: of the three losses, and in the cost of a match.
        no_object: weight of "no object" in the cross-entropy.
    """

    def __init__(
        self,
        class_weight: float = 1.0,
        box_weight: float = 5.0,
        giou_weight: float = 2.0,
        no_object: float = 0.1,
        name: str = "loss",
        **kwargs: Any,
    ):
        super().__init__(name, **kwargs)
        self.class_weight = number(class_weight, "SetPredictionLoss: class_weight", least=0)
        self.box_weight = number(box_weight, "SetPredictionLoss: box_weight", least=0)
        self.giou_weight = number(giou_weight, "SetPredictionLoss: giou_weight", least=0)
        self.no_object = number(no_object, "SetPredictionLoss: no_object", least=0)

    def count_classes(self, prediction: Any) -> int:
        return prediction.shape[-1] - 5

    def per_example(self, boxes: Any, labels: Any, is_object: Any, is_crowd: Any, prediction: Any) -> Any:
        predicted, logits = prediction[..., :4], prediction[..., 4:]
        pairs = pair_losses(predicted, boxes, self.box_weight, self.giou_weight)  # (b, q, m)
        found = match_predictions(logits, pairs, labels, is_object, self.class_weight)
        matched = ops.transpose(ops.one_hot(found, logits.shape[1], dtype="float32"), (0, 2, 1))  # (b, q, m)
        count = ops.maximum(ops.sum(matched, axis=(1, 2)), 1.0)
        of_boxes = ops.sum(ops.where(matched > 0, pairs, 0.0), axis=(1, 2)) / count
        return self.class_weight * self._class_loss(logits, matched, labels) + of_boxes

    def _class_loss(self, logits, matched, labels):
        """The weighted mean of the predictions' cross-entropy, (b,)."""
        k = logits.shape[-1] - 1
        targets = ops.matmul(matched, ops.one_hot(labels, k, dtype="float32"))  # (b, q, k)
        others = self.no_object * (1.0 - ops.sum(targets, axis=2, keepdims=True))
        weighted = ops.concatenate([targets, others], axis=2)  # (b, q, k + 1)
        return -ops.sum(weighted * ops.log_softmax(logits, axis=-1), axis=(1, 2)) / ops.sum(weighted, axis=(1, 2))
