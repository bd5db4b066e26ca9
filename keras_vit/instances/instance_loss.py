"""The losses of objects with masks: matching, then losses of classes and masks.

InstanceLoss is that of Mask2Former (arXiv 2112.01527) and EoMT, GroupedInstanceLoss that of RF-DETR-Seg: RF-DETR's
(arXiv 2511.09554), with masks in the costs of matches and in the losses of matched queries.

Letters: b images, q queries, m objects (padded), k classes, p cells of the masks; s predictions (layers, then
proposals), g groups, d width.
"""

from typing import Any

from keras import ops

from keras_vit.detection.dense_loss import ObjectLoss, unpack_targets
from keras_vit.detection.grouped_loss import GroupedSetPredictionLoss
from keras_vit.detection.object_rules import InstanceRules
from keras_vit.instances.heads.query_masks import unpacked_masks
from keras_vit.io.target_values import COLUMNS
from keras_vit.layers.arguments import integer, number
from keras_vit.layers.bilinear import rows_at
from keras_vit.layers.registration import serializable
from keras_vit.segmentation.mask_loss import checked_weights, pairwise_losses, set_loss, weights_config


def counted_cells(masks: Any, is_object: Any, is_crowd: Any) -> Any:
    """The share of each cell's pixels that count, (b, p): not those of crowds, unless an object covers them.

    Args:
        masks: (b, m, p), shares of cells.
        is_object, is_crowd: (b, m) booleans.
    """
    shown = ops.max(ops.where(is_object[..., None], masks, 0.0), axis=1)  # (b, p)
    hidden = ops.max(ops.where(is_crowd[..., None], masks, 0.0), axis=1)
    return ops.maximum(1.0 - hidden, shown)


@serializable
class InstanceLoss(ObjectLoss):
    """Hungarian matching, then cross-entropy of classes, binary cross-entropy and dice loss of masks, for each image.

    y (b, m, 7 + p): objects and their masks, as from keras_vit.data.pack_masks. y_pred (b, q, k + 1 + p): logits of
    the classes and "no object", then of the mask, row by row. Crowds and difficult objects are not matched, and the
    pixels of crowds do not count. An image with more objects than queries leaves the rest of them out.

    Masks are compared on their whole grid, where the paper samples 12,544 points.

    Args:
        classes: k.
        class_weight, mask_weight, dice_weight: of the three losses, and in the cost of a match.
        no_object: weight of "no object" in the cross-entropy.
    """

    def __init__(
        self,
        classes: int,
        class_weight: float = 2.0,
        mask_weight: float = 5.0,
        dice_weight: float = 5.0,
        no_object: float = 0.1,
        name: str = "loss",
        **kwargs: Any,
    ):
        super().__init__(name, **kwargs)
        self.classes = integer(classes, "InstanceLoss: classes")
        self.weights = checked_weights("InstanceLoss", class_weight, mask_weight, dice_weight, no_object)

    def rules(self, y: Any, prediction: Any) -> InstanceRules:
        return InstanceRules(self.classes, grid=(1, prediction.shape[-1] - self.classes - 1))

    def per_target(self, y: Any, prediction: Any) -> Any:
        _, labels, is_object, is_crowd = unpack_targets(y)
        masks, logits = y[..., len(COLUMNS) :], prediction[..., : self.classes + 1]  # (b, m, p), (b, q, k + 1)
        shares = ops.transpose(ops.where(is_object[..., None], masks, 0.0), (0, 2, 1))  # (b, p, m)
        of_class = ops.one_hot(labels, self.classes, dtype="float32")  # (b, m, k)
        counts = counted_cells(masks, is_object, is_crowd)
        return set_loss(logits, prediction[..., self.classes + 1 :], of_class, shares, counts, is_object, self.weights)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "classes": self.classes, **weights_config(self.weights)}


@serializable
class GroupedInstanceLoss(GroupedSetPredictionLoss):
    """GroupedSetPredictionLoss with binary cross-entropy and dice loss of masks.

    y (b, m, 7 + p): objects with their masks, as from keras_vit.data.pack_masks. y_pred: all predictions of the head
    "rf_detr", packed. Crowds and difficult objects are not matched, and the pixels of crowds do not count.

    Masks are compared on their whole grid, where RF-DETR-Seg samples a sixteenth of its cells. Those of all queries are
    made for costs alone, one prediction at a time and without gradients; losses make those of matched queries.

    Args:
        classes: k.
        mask_weight, dice_weight: of the losses of masks, and in the cost of a match.
        class_weight, box_weight, giou_weight, class_cost, box_cost, giou_cost: as in GroupedSetPredictionLoss.
    """

    def __init__(
        self,
        classes: int,
        mask_weight: float = 5.0,
        dice_weight: float = 5.0,
        class_weight: float = 1.0,
        box_weight: float = 5.0,
        giou_weight: float = 2.0,
        class_cost: float = 2.0,
        box_cost: float = 5.0,
        giou_cost: float = 2.0,
        name: str = "loss",
        **kwargs: Any,
    ):
        super().__init__(class_weight, box_weight, giou_weight, class_cost, box_cost, giou_cost, name, **kwargs)
        self.classes = integer(classes, "GroupedInstanceLoss: classes")
        self.mask_weight = number(mask_weight, "GroupedInstanceLoss: mask_weight", least=0)
        self.dice_weight = number(dice_weight, "GroupedInstanceLoss: dice_weight", least=0)

    def rules(self, y: Any, prediction: Any) -> InstanceRules:
        return InstanceRules(self.classes, grid=(1, y.shape[-1] - len(COLUMNS)))

    def per_target(self, y: Any, prediction: Any) -> Any:
        boxes, labels, is_object, is_crowd = unpack_targets(y)
        masks = y[..., len(COLUMNS) :]  # (b, m, p)
        prediction, queries, places = unpacked_masks(prediction, self.classes, masks.shape[-1])
        shares = ops.transpose(ops.where(is_object[..., None], masks, 0.0), (0, 2, 1))  # (b, p, m)
        counts = counted_cells(masks, is_object, is_crowd)  # (b, p)
        each = [(queries[:, i], places[:, i]) for i in range(queries.shape[1])]  # of s predictions
        costs = [self._pairs(ops.stop_gradient(q), ops.stop_gradient(p), shares, counts) for q, p in each]

        def own_losses(found):
            losses = [self._matched(found[:, i], *factors, shares, counts) for i, factors in enumerate(each)]
            return ops.stack(losses, axis=1)

        return self._loss(
            boxes, labels, is_object, prediction, ops.stack(costs, axis=1), own_losses
        )  # costs (b, s, g, q, m)

    def _pairs(self, queries, places, shares, counts):
        """The weighted losses of the masks of queries (b, g, n, d + 1) and each object, (b, g, n, m).

        Args:
            queries, places: (b, p, d + 1), factors of the masks.
            shares: (b, p, m), the share of each object in the pixels of each cell.
            counts: (b, p), the share of pixels that count.
        """
        _, g, n, d = queries.shape
        logits = ops.matmul(ops.reshape(queries, (-1, g * n, d)), ops.transpose(places, (0, 2, 1)))  # (b, g*n, p)
        entropy, dice = pairwise_losses(logits, shares, counts)
        return ops.reshape(self.mask_weight * entropy + self.dice_weight * dice, (-1, g, n, shares.shape[-1]))

    def _matched(self, found, queries, *others):
        """The sum of the losses of the objects' own queries: (b, g, m), -1 for none -> (b, g); others as in _pairs."""
        (_, g, m), (q, d) = found.shape, queries.shape[2:]
        index = ops.reshape(ops.maximum(found, 0), (-1, m))  # (b*g, m)
        own = ops.reshape(rows_at(ops.reshape(queries, (-1, q, d)), index), (-1, g, m, d))
        is_own = ops.eye(m, dtype="bool") & (found >= 0)[..., None]  # (b, g, m, m)
        return ops.sum(ops.where(is_own, self._pairs(own, *others), 0.0), axis=(2, 3))
