"""The loss of mask classification (MaskFormer, arXiv 2107.06278, section 3; Mask2Former, arXiv 2112.01527).

A model predicts a set of masks with classes. The targets are the classes of an image, each with the mask of its pixels.
Every target is matched with one prediction, which learns its mask and class; the others learn to be "no object".

Letters: b images, q queries, k classes and so targets, p cells of the predicted masks, on a coarser grid than pixels.
"""

import math
from typing import Any, NamedTuple

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


_WEIGHTS = ("class_weight", "mask_weight", "dice_weight", "no_object")


class SetWeights(NamedTuple):
    """The weights of the losses of classes, masks (binary cross-entropy) and dice, also in the cost of a match, and of
    "no object" in the cross-entropy of classes.
    """

    classes: float = 2.0
    masks: float = 5.0
    dice: float = 5.0
    no_object: float = 0.1


def checked_weights(owner: str, *weights: Any) -> SetWeights:
    """SetWeights in their order; ValueError, which names the loss `owner`, for a negative one or no number."""
    return SetWeights(
        *(number(value, f"{owner}: {name}", least=0) for name, value in zip(_WEIGHTS, weights, strict=True))
    )


def weights_config(weights: SetWeights) -> dict[str, float]:
    """The arguments of a loss with these weights."""
    return dict(zip(_WEIGHTS, weights))


def set_loss(logits: Any, masks: Any, of_class: Any, shares: Any, counts: Any, there: Any, weights: SetWeights) -> Any:
    """Matches predicted masks with targets; the loss of each image, (b,), in t targets.

    The cross-entropy is the weighted mean over an image's queries, and mask losses are divided by the number of its
    targets, so that examples and replicas do not depend on each other; the papers divide by the batch's.

    Args:
        logits: (b, q, k + 1), "no object" last.
        masks: logits (b, q, p).
        of_class: (b, t, k), 1 for the class of each target, else 0.
        shares: (b, p, t), the share of each target in the pixels of each cell.
        counts: (b, p), the share of pixels that count.
        there: (b, t) booleans, which targets are there.
        weights: of the losses.
    """
    entropy, dice = pairwise_losses(masks, shares, counts)
    cost = weights.masks * entropy + weights.dice * dice  # (b, q, t)
    probability = ops.matmul(ops.softmax(logits, axis=-1)[..., :-1], ops.transpose(of_class, (0, 2, 1)))  # (b, q, t)
    query_of = match(cost - weights.classes * probability, there)  # (b, t)
    matched = ops.transpose(ops.one_hot(query_of, logits.shape[1], dtype="float32"), (0, 2, 1))  # (b, q, t)
    targets = ops.maximum(ops.sum(matched, axis=(1, 2)), 1.0)  # (b,)
    of_masks = ops.sum(matched * cost, axis=(1, 2)) / targets
    return weights.classes * _class_loss(logits, ops.matmul(matched, of_class), weights.no_object) + of_masks


def _class_loss(logits, matched, no_object):
    """The weighted mean of the queries' cross-entropy, (b,), for the class that each matched, (b, q, k)."""
    other = 1.0 - ops.sum(matched, axis=2, keepdims=True)  # (b, q, 1)
    weighted = ops.concatenate([matched, no_object * other], axis=2)  # (b, q, k + 1)
    return -ops.sum(weighted * ops.log_softmax(logits, axis=-1), axis=(1, 2)) / ops.sum(weighted, axis=(1, 2))


@serializable
class MaskClassificationLoss(PixelLoss):
    """Hungarian matching, then cross-entropy of classes, binary cross-entropy and dice loss of masks, for each image.

    y (b, H, W): masks as of every PixelLoss; each class in an image is a target, and void pixels count for no mask.
    y_pred (b, q, k + 1 + p): logits of the classes and "no object", then of the mask, row by row.

    Masks are compared on their whole grid, where the paper samples 12,544 points: at a stride of four that is an image
    of 448 pixels.

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
        self.weights = checked_weights(type(self).__name__, class_weight, mask_weight, dice_weight, no_object)

    def call(self, y_true, y_pred):
        rules = MaskRules(self.classes, tuple(y_true.shape[1:3]), self.void)
        return self.per_example(*self.labels(y_true, rules), ops.cast(y_pred, "float32"))

    def per_example(self, labels: Any, counted: Any, logits: Any) -> Any:
        classes, masks = logits[..., : self.classes + 1], logits[..., self.classes + 1 :]
        grid = _on_grid(masks.shape[-1], labels.shape[1:3])
        shares = class_shares(labels, counted, grid, self.classes)  # (b, p, k)
        of_class = ops.tile(ops.eye(self.classes)[None], (ops.shape(logits)[0], 1, 1))  # (b, k, k)
        there = ops.sum(shares, axis=1) > 0  # (b, k)
        return set_loss(classes, masks, of_class, shares, ops.sum(shares, axis=2), there, self.weights)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        del config["class_weights"]
        return {**config, "classes": self.classes, **weights_config(self.weights)}
