"""The loss of mask classification (MaskFormer, arXiv 2107.06278, section 3; Mask2Former, arXiv 2112.01527).

A model predicts a set of masks with classes. The targets are the classes of an image, each with the mask of its pixels.
Every target is matched with one prediction, which learns its mask and class; the others learn to be "no object".

Letters: b images, q queries, k classes and so targets, p cells of the predicted masks, on a coarser grid than pixels.
"""

import math
from typing import Any

import numpy as np
from keras import ops

from keras_vit.io.target_values import VOID
from keras_vit.layers.arguments import integer, number
from keras_vit.layers.registration import serializable
from keras_vit.models.matching import match
from keras_vit.segmentation.mask_rules import MaskRules
from keras_vit.segmentation.pixel_losses import PixelLoss


def class_shares(labels: Any, counted: Any, grid: tuple[int, int], classes: int) -> Any:
    """The share of each class in the pixels of each cell: (b, H, W) twice -> (b, p, k), p = h * w.

    A cell that is not a whole number of pixels is sampled, with the next whole number of rows and columns.

    Args:
        labels: class numbers.
        counted: 1 for pixels with a class, else 0.
        grid: (h, w).
        classes: k.
    """
    places = []
    for size, cells in zip(labels.shape[1:3], grid):
        n = math.ceil(size / cells)
        places.append([((np.arange(cells) + (i + 0.5) / n) * size / cells).astype("int32") for i in range(n)])
    total: Any = 0.0
    for rows in places[0]:
        of_rows, counts = ops.take(labels, rows, axis=1), ops.take(counted, rows, axis=1)
        for columns in places[1]:
            hot = ops.one_hot(ops.take(of_rows, columns, axis=2), classes, dtype="float32")  # (b, h, w, k)
            total = total + hot * ops.take(counts, columns, axis=2)[..., None]
    return ops.reshape(total / (len(places[0]) * len(places[1])), (-1, grid[0] * grid[1], classes))


def pairwise_losses(masks: Any, shares: Any, counts: Any) -> tuple[Any, Any]:
    """Binary cross-entropy and dice loss of every mask and target, over the pixels that count: (b, q, k) each.

    Args:
        masks: logits (b, q, p).
        shares: (b, p, k), as from `class_shares`.
        counts: (b, p), the share of pixels with a class in each cell.
    """
    pixels = ops.maximum(ops.sum(counts, axis=1), 1e-6)[:, None, None]  # (b, 1, 1)
    against = ops.matmul(ops.softplus(masks), counts[..., None])  # (b, q, 1), if no pixel were of the target
    entropy = (against - ops.matmul(masks, shares)) / pixels
    inside = ops.sigmoid(masks)
    overlap = ops.matmul(inside, shares)  # (b, q, k)
    sizes = ops.matmul(inside, counts[..., None]) + ops.sum(shares, axis=1)[:, None]
    return entropy, 1.0 - (2.0 * overlap + 1.0) / (sizes + 1.0)


def _on_grid(cells, size):
    """(h, w) with h * w cells and the proportions of `size`; ValueError if there is none."""
    h = round(math.sqrt(cells * size[0] / size[1]))
    if not h or cells % h or abs(cells // h * size[0] - h * size[1]) > max(size):
        raise ValueError(
            f"MaskClassificationLoss: predictions with {cells} values after the classes are no masks of images of"
            f" {size[0]} x {size[1]} pixels. Is `classes` the number of the model's classes?"
        )
    return h, cells // h


@serializable
class MaskClassificationLoss(PixelLoss):
    """Hungarian matching, then cross-entropy of classes, binary cross-entropy and dice loss of masks, for each image.

    y (b, H, W): masks as of every PixelLoss; each class in an image is a target, and void pixels count for no mask.
    y_pred (b, q, k + 1 + p): logits of the classes and "no object", then of the mask, row by row.

    Masks are compared on their whole grid, where the paper samples 12,544 points: at a stride of four that is an image
    of 448 pixels. An image's mask losses are divided by its own number of targets, so that examples and replicas do
    not depend on each other; the paper divides a batch's by the batch's.

    Args:
        classes: k.
        class_weight, mask_weight, dice_weight: of the three losses, and in the cost of a match.
        no_object: weight of "no object" in the cross-entropy.
        void: value of pixels without a class.
    """

    def __init__(
        self,
        classes: int,
        class_weight: float = 2.0,
        mask_weight: float = 5.0,
        dice_weight: float = 5.0,
        no_object: float = 0.1,
        void: int = VOID,
        name: str = "loss",
        **kwargs: Any,
    ):
        super().__init__(None, void, name, **kwargs)
        self.classes = integer(classes, "MaskClassificationLoss: classes", least=2)
        self.class_weight = number(class_weight, "MaskClassificationLoss: class_weight", least=0)
        self.mask_weight = number(mask_weight, "MaskClassificationLoss: mask_weight", least=0)
        self.dice_weight = number(dice_weight, "MaskClassificationLoss: dice_weight", least=0)
        self.no_object = number(no_object, "MaskClassificationLoss: no_object", least=0)

    def call(self, y_true, y_pred):
        rules = MaskRules(self.classes, tuple(y_true.shape[1:3]), self.void)
        return self.per_example(*self.labels(y_true, rules), ops.cast(y_pred, "float32"))

    def per_example(self, labels: Any, counted: Any, logits: Any) -> Any:
        classes, masks = logits[..., : self.classes + 1], logits[..., self.classes + 1 :]
        grid = _on_grid(masks.shape[-1], labels.shape[1:3])
        shares = class_shares(labels, counted, grid, self.classes)  # (b, p, k)
        entropy, dice = pairwise_losses(masks, shares, ops.sum(shares, axis=2))
        cost = self.mask_weight * entropy + self.dice_weight * dice  # (b, q, k)
        probability = ops.softmax(classes, axis=-1)[..., :-1]
        there = ops.sum(shares, axis=1) > 0  # (b, k)
        query_of = match(cost - self.class_weight * probability, there)
        matched = ops.transpose(ops.one_hot(query_of, logits.shape[1], dtype="float32"), (0, 2, 1))  # (b, q, k)
        targets = ops.maximum(ops.sum(matched, axis=(1, 2)), 1.0)  # (b,)
        of_masks = ops.sum(matched * cost, axis=(1, 2)) / targets
        return self.class_weight * self._class_loss(classes, matched) + of_masks

    def _class_loss(self, classes, matched):
        """The weighted mean of the queries' cross-entropy, (b,)."""
        other = 1.0 - ops.sum(matched, axis=2, keepdims=True)  # (b, q, 1)
        weighted = ops.concatenate([matched, self.no_object * other], axis=2)  # (b, q, k + 1)
        return -ops.sum(weighted * ops.log_softmax(classes, axis=-1), axis=(1, 2)) / ops.sum(weighted, axis=(1, 2))

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        del config["class_weights"]
        names = ("classes", "class_weight", "mask_weight", "dice_weight", "no_object")
        return {**config, **{name: getattr(self, name) for name in names}}
