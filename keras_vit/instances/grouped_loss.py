"""The loss of RF-DETR-Seg: that of RF-DETR, with masks in the costs of matches and in the losses of matched queries.

Masks come as factors, as from heads.query_masks.packed_masks. All masks are needed for costs alone, one prediction at a
time and without gradients; losses make those of matched queries.

Letters: b images, s predictions (layers, then proposals), g groups, q queries, m objects (padded), k classes, d width,
p cells of the masks.
"""

from typing import Any

from keras import ops

from keras_vit.detection.dense_loss import unpack_targets
from keras_vit.detection.grouped_loss import GroupedSetPredictionLoss
from keras_vit.detection.object_rules import InstanceRules
from keras_vit.instances.heads.query_masks import unpacked_masks
from keras_vit.instances.instance_loss import counted_cells
from keras_vit.io.target_values import COLUMNS
from keras_vit.layers.arguments import integer, number
from keras_vit.layers.bilinear import rows_at
from keras_vit.layers.registration import serializable
from keras_vit.segmentation.mask_loss import pairwise_losses


@serializable
class GroupedInstanceLoss(GroupedSetPredictionLoss):
    """GroupedSetPredictionLoss with binary cross-entropy and dice loss of masks.

    y (b, m, 7 + p): objects with their masks, as from keras_vit.data.pack_masks. y_pred: all predictions of the head
    "rf_detr", packed. Crowds and difficult objects are not matched, and the pixels of crowds do not count.

    Masks are compared on their whole grid, where RF-DETR-Seg samples a sixteenth of its cells.

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
        each = [(queries[:, i], places[:, i], shares, counts) for i in range(queries.shape[1])]  # of s predictions
        costs = ops.stack([ops.stop_gradient(self._pairs(*factors)) for factors in each], axis=1)  # (b, s, g, q, m)

        def own_losses(found):
            return ops.stack([self._matched(found[:, i], *factors) for i, factors in enumerate(each)], axis=1)

        return self._loss(boxes, labels, is_object, prediction, costs, own_losses)

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
