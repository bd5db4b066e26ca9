"""Losses for detectors: objects y (b, m, 7) and a packed prediction -> one value per image, (b,).

y: rows of top, left, bottom, right as fractions of the image, class from 0 (-1 for padding), kind (0 an object, 1 a
crowd, 2 difficult) and area. Keras gives a loss one tensor, so a model packs boxes and logits into one (`packed`).

Letters: b images, n points, m objects, k classes.
"""

from typing import Any

from keras import ops

from keras_vit.detection.assignment import center_sampled, inside, task_aligned
from keras_vit.detection.object_rules import ObjectRules
from keras_vit.fit.losses import Loss, as_tensors, concrete
from keras_vit.io.target_values import KIND, LABEL
from keras_vit.layers.arguments import choice, integer, number
from keras_vit.layers.boxes import areas, giou, iou
from keras_vit.layers.registration import serializable

ASSIGNMENTS = ("task_aligned", "center")
CLASSIFICATIONS = ("quality", "focal", "varifocal")


def packed(boxes: Any, logits: Any, points: Any = None) -> Any:
    """Boxes (b, n, 4), points (n, 4) of a dense head if any, and logits (b, n, c) side by side, float32."""
    boxes, logits = ops.cast(boxes, "float32"), ops.cast(logits, "float32")
    parts = [boxes] if points is None else [boxes, ops.zeros_like(boxes) + ops.convert_to_tensor(points, "float32")]
    return ops.concatenate([*parts, logits], axis=-1)


def unpack_targets(y: Any) -> tuple[Any, Any, Any, Any]:
    """Targets y (b, m, 7) as clipped boxes (b, m, 4), classes (b, m) int32, 0 for padding, and which are objects and
    which crowds or difficult, (b, m) booleans; neither for padding and boxes without area.
    """
    y = ops.cast(y, "float32")
    boxes, labels, crowd = ops.clip(y[..., :4], 0.0, 1.0), y[..., LABEL], y[..., KIND] != 0
    there = (labels >= 0) & (areas(boxes) > 0)
    return boxes, ops.where(there, ops.cast(labels, "int32"), 0), there & ~crowd, there & crowd


def focal(logits: Any, targets: Any, gamma: float = 2.0, alpha: float = 0.25) -> Any:
    """Sigmoid focal loss (arXiv 1708.02002, equation 5) of each logit, for targets 0 and 1.

    Args:
        alpha: weight of targets 1; that of targets 0 is 1 - alpha.
    """
    p = ops.sigmoid(logits)
    right = p * targets + (1.0 - p) * (1.0 - targets)
    weight = alpha * targets + (1.0 - alpha) * (1.0 - targets)
    return weight * (1.0 - right) ** gamma * _cross_entropy(logits, targets)


def quality_focal(logits: Any, targets: Any, gamma: float = 2.0) -> Any:
    """Quality focal loss (arXiv 2006.04388, equation 4) of each logit, for targets from 0 to 1; gamma 0 for none."""
    entropy = _cross_entropy(logits, targets)
    return entropy if gamma == 0 else ops.abs(targets - ops.sigmoid(logits)) ** gamma * entropy


def varifocal(logits: Any, targets: Any, gamma: float = 2.0, alpha: float = 0.75) -> Any:
    """Varifocal loss (arXiv 2008.13367, equation 2) of each logit, for targets from 0 to 1."""
    weight = ops.where(targets > 0, targets, alpha * ops.sigmoid(logits) ** gamma)
    return weight * _cross_entropy(logits, targets)


def _cross_entropy(logits, targets):
    return ops.softplus(logits) - targets * logits


class ObjectLoss(Loss):
    """The base of losses on objects; a subclass defines `per_example`.

    Images of weight 0 may have any objects. Invalid ones raise a ValueError where their values are known, and give a
    NaN loss inside compiled functions (keras_vit.Model checks them first).
    """

    takes_logits = True

    def __init__(self, name: str = "loss", **kwargs: Any):
        super().__init__(name=name, **kwargs)

    def count_classes(self, prediction: Any) -> int:
        """The number of classes k of a packed prediction."""
        raise NotImplementedError

    def rules(self, y: Any, prediction: Any) -> ObjectRules:
        """The rules for targets, of which the shape is known, and a packed prediction."""
        return ObjectRules(self.count_classes(prediction))

    def per_target(self, y: Any, prediction: Any) -> Any:
        """The loss of each image, (b,), of targets y (b, m, 7) and a prediction (b, n, c), both float32."""
        return self.per_example(*unpack_targets(y), prediction)

    def per_example(self, boxes: Any, labels: Any, is_object: Any, is_crowd: Any, prediction: Any) -> Any:
        """The loss of each image, (b,).

        Args:
            boxes: (b, m, 4).
            labels: (b, m) int32, 0 for padding.
            is_object, is_crowd: (b, m) booleans: objects to learn, and regions to ignore; neither for padding.
            prediction: (b, n, c) float32, as from `packed`.
        """
        raise NotImplementedError

    def __call__(self, y_true, y_pred, sample_weight=None):
        y_true, y_pred, sample_weight = as_tensors(y_true, y_pred, sample_weight)
        if sample_weight is not None:
            y_true, sample_weight = ops.convert_to_tensor(y_true, self.dtype), ops.convert_to_tensor(sample_weight)
            y_true = ops.where(ops.reshape(sample_weight, (-1, 1, 1)) != 0, y_true, -1.0)
        return super().__call__(y_true, y_pred, sample_weight)

    def call(self, y_true, y_pred):
        prediction, rules = ops.cast(y_pred, "float32"), self.rules(y_true, y_pred)
        rules.check_form(tuple(y_true.shape), "float32")
        values = concrete(y_true)
        if values is not None:
            rules.check(values)
        y = ops.cast(y_true, "float32")
        wrong = ops.any((y[..., LABEL] >= rules.classes) | (y[..., LABEL] < -1), axis=1)  # (b,)
        return ops.where(wrong, float("nan"), self.per_target(y, prediction))


@serializable
class DenseDetectionLoss(ObjectLoss):
    """The loss of the head "dense": assignment, then the loss of the classes, and 1 - GIoU of the boxes.

    y (b, m, 7), y_pred (b, n, 8 + k): boxes, points and logits, as from `packed`. A point without object is negative,
    unless it lies in a crowd or a difficult object: these are never learned, and points in them that learn no object
    are left out. Images without objects teach negatives.

    The losses of an image are divided by the sum of its targets, at least 1, so that examples and replicas do not
    depend on each other; the papers divide a batch's by the batch's. Box losses are weighed by the targets.

    Args:
        assignment: "task_aligned" (arXiv 2108.07755) or "center" (arXiv 2006.09214), as in detection.assignment.
        classification: "quality" (arXiv 2006.04388) or "varifocal" (arXiv 2008.13367), which learn the fit of a box,
            for "center" its IoU, or "focal" (arXiv 1708.02002), which learns 1.
        class_weight, box_weight: of the two losses.
        gamma: of the focal losses.
        top, alpha, beta: of "task_aligned".
        radius: of "center", in cells.
    """

    def __init__(
        self,
        assignment: str = "task_aligned",
        classification: str = "quality",
        class_weight: float = 1.0,
        box_weight: float = 2.0,
        gamma: float = 2.0,
        top: int = 10,
        alpha: float = 0.5,
        beta: float = 6.0,
        radius: float = 1.5,
        name: str = "loss",
        **kwargs: Any,
    ):
        super().__init__(name, **kwargs)
        self.assignment = choice(assignment, "DenseDetectionLoss: assignment", ASSIGNMENTS)
        self.classification = choice(classification, "DenseDetectionLoss: classification", CLASSIFICATIONS)
        self.class_weight = number(class_weight, "DenseDetectionLoss: class_weight", least=0)
        self.box_weight = number(box_weight, "DenseDetectionLoss: box_weight", least=0)
        self.gamma = number(gamma, "DenseDetectionLoss: gamma", least=0)
        self.top = integer(top, "DenseDetectionLoss: top")
        self.alpha = number(alpha, "DenseDetectionLoss: alpha", least=0)
        self.beta = number(beta, "DenseDetectionLoss: beta", least=0)
        self.radius = number(radius, "DenseDetectionLoss: radius", least=0)

    def count_classes(self, prediction: Any) -> int:
        return prediction.shape[-1] - 8

    def per_example(self, boxes: Any, labels: Any, is_object: Any, is_crowd: Any, prediction: Any) -> Any:
        predicted, points, logits = prediction[..., :4], prediction[..., 4:8], prediction[..., 8:]
        points, k = ops.stop_gradient(points), logits.shape[-1]
        object_of, quality = self._assigned(boxes, labels, is_object, points, logits, predicted)
        learns, own = object_of >= 0, ops.maximum(object_of, 0)
        box = ops.take_along_axis(boxes, own[..., None], axis=1)  # (b, n, 4)
        if quality is None:
            quality = ops.stop_gradient(iou(predicted, box))
        score = ops.where(learns, 1.0 if self.classification == "focal" else quality, 0.0)  # (b, n)
        ignored = ~learns & ops.any(inside(points, boxes) & is_crowd[:, None], axis=2)
        hot = ops.one_hot(ops.take_along_axis(labels, own, axis=1), k, dtype="float32")  # (b, n, k)
        losses = ops.where(ignored[..., None], 0.0, self._class_loss(logits, hot * score[..., None]))
        total = ops.maximum(ops.sum(score, axis=1), 1.0)
        of_boxes = ops.sum(score * (1.0 - giou(predicted, box)), axis=1)
        return (self.class_weight * ops.sum(losses, axis=(1, 2)) + self.box_weight * of_boxes) / total

    def _assigned(self, boxes, labels, is_object, points, logits, predicted):
        """The object of each point or -1, (b, n), and its target (b, n), or None for the IoU."""
        if self.assignment == "center":
            return center_sampled(points, boxes, is_object, self.radius), None
        scores, predicted = ops.stop_gradient(ops.sigmoid(logits)), ops.stop_gradient(predicted)
        options = (self.top, self.alpha, self.beta)
        found, quality = task_aligned(points, scores, predicted, boxes, labels, is_object, *options)
        return found, ops.stop_gradient(quality)

    def _class_loss(self, logits, targets):
        """The loss of each logit, (b, n, k)."""
        kinds = {"focal": focal, "quality": quality_focal, "varifocal": varifocal}
        return kinds[self.classification](logits, targets, self.gamma)
