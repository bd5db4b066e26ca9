"""The loss of objects with masks: matching, then losses of classes and masks (Mask2Former, arXiv 2112.01527; EoMT).

Letters: b images, q queries, m objects (padded), k classes, p cells of the masks.
"""

from typing import Any

from keras import ops

from keras_vit.detection.dense_loss import ObjectLoss, unpack_targets
from keras_vit.detection.object_rules import InstanceRules
from keras_vit.io.target_values import COLUMNS
from keras_vit.layers.arguments import integer
from keras_vit.layers.registration import serializable
from keras_vit.segmentation.mask_loss import checked_weights, set_loss, weights_config


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
