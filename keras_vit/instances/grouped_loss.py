"""The loss of RF-DETR-Seg: that of RF-DETR, with masks in the costs of matches and in the losses of matched queries.

Masks come as factors, as from heads.query_masks.packed_masks. All masks are needed for costs alone, one prediction at a
time and without gradients; losses make those of matched queries.

Letters: b images, s predictions (layers, then proposals), g groups, q queries, m objects (padded), k classes, d width,
p cells of the masks.
"""

import math
from typing import Any

from keras import ops

from keras_vit.detection.dense_loss import unpack_targets
from keras_vit.detection.grouped_loss import GroupedSetPredictionLoss
from keras_vit.instances.heads.query_masks import unpacked_masks
from keras_vit.instances.instance_loss import counted_cells
from keras_vit.instances.instance_rules import InstanceRules
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
        grid: (h, w) of the masks, `model.mask_grid`.
        mask_weight, dice_weight: of the losses of masks, and in the cost of a match.
        class_weight, box_weight, giou_weight, class_cost, box_cost, giou_cost: as in GroupedSetPredictionLoss.
    """

    def __init__(
        self,
        classes: int,
        grid: tuple[int, int],
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
        self.classes, self.grid = integer(classes, "GroupedInstanceLoss: classes"), tuple(grid)
        self.mask_weight = number(mask_weight, "GroupedInstanceLoss: mask_weight", least=0)
        self.dice_weight = number(dice_weight, "GroupedInstanceLoss: dice_weight", least=0)

    def rules(self, prediction: Any) -> InstanceRules:
        return InstanceRules(self.classes, grid=self.grid)

    def per_target(self, y: Any, prediction: Any) -> Any:
        boxes, labels, is_object, is_crowd = unpack_targets(y)
        prediction, queries, places = unpacked_masks(prediction, self.classes, math.prod(self.grid))
        masks = y[..., len(COLUMNS) :]  # (b, m, p)
        shares = ops.transpose(ops.where(is_object[..., None], masks, 0.0), (0, 2, 1))  # (b, p, m)
        counts = counted_cells(masks, is_object, is_crowd)  # (b, p)

        def pairs(queries, i):
            """The weighted losses of the masks of queries (b, n, d + 1) and each object: (b, n, m)."""
            logits = ops.matmul(queries, ops.transpose(places[:, i], (0, 2, 1)))  # (b, n, p)
            entropy, dice = pairwise_losses(logits, shares, counts)
            return self.mask_weight * entropy + self.dice_weight * dice

        (_, s, g, q, d), m = queries.shape, labels.shape[1]

        def costs(i):
            return ops.stop_gradient(pairs(ops.reshape(queries[:, i], (-1, g * q, d)), i))  # (b, g*q, m)

        def own_losses(found):
            """The sum of the losses of the objects' own queries, (b, s, g, m) -> (b, s, g)."""
            losses = []
            for i in range(s):
                index = ops.reshape(ops.maximum(found[:, i], 0), (-1, m))  # (b*g, m)
                own = rows_at(ops.reshape(queries[:, i], (-1, q, d)), index)  # (b*g, m, d + 1)
                each = ops.reshape(pairs(ops.reshape(own, (-1, g * m, d)), i), (-1, g, m, m))
                is_own = ops.eye(m, dtype="bool") & (found[:, i] >= 0)[..., None]  # (b, g, m, m)
                losses.append(ops.sum(ops.where(is_own, each, 0.0), axis=(2, 3)))
            return ops.stack(losses, axis=1)

        of_masks = ops.stack([costs(i) for i in range(s)], axis=1)  # (b, s, g*q, m)
        return self._loss(boxes, labels, is_object, prediction, of_masks, own_losses)
