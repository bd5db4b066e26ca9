"""Accuracy on shifted images, and with dropped or shuffled patches: how much a model depends on positions and order."""

import dataclasses

from keras_vit.evaluation.classes import check_classes
from keras_vit.evaluation.data import open_data
from keras_vit.evaluation.loss_and_metrics import check_head, check_preprocessing
from keras_vit.evaluation.registry import Chart, Evaluation, register
from keras_vit.evaluation.robustness.changed import Changed, chosen, is_whole, means, numbers
from keras_vit.evaluation.robustness.salient import accuracies
from keras_vit.io.suggest import check_known

SHIFTS = (1, 2, 4, 8, 16, 32)
SHARES = (0.1, 0.25, 0.5, 0.75, 0.9)
GRIDS = (2, 4, 7, 14)
ORDERS = ("random", "salient", "least_salient")


def _along(clean, table, start, x_label, logarithmic=False):
    """Evaluation of accuracies along a numeric axis that starts with `clean` at `start`; rows average their columns."""
    each = means(table)
    measures = {"clean": clean, "mean": sum(each.values()) / len(each), **each}
    line = [start, *numbers(each)], [100 * value for value in (clean, *each.values())]
    return Evaluation(measures, {}, {"curve": Chart("lines", {"top-1": line}, x_label, "top-1, %", logarithmic)})


@register("shifts")
@dataclasses.dataclass(frozen=True)
class Shifts(Changed):
    """Top-1 accuracy on images shifted right and down, averaged over both.

    Attributes:
        source, split, preprocess: as in Changed.
        pixels: distances in pixels.
        border: fill of the exposed edge, "mirror" (the mirror image) or "black".
    """

    pixels: tuple = SHIFTS
    border: str = "mirror"

    def __post_init__(self):
        super().__post_init__()
        expected = "whole numbers of pixels above 0, such as 1,2,4"
        object.__setattr__(
            self, "pixels", chosen(self.pixels, "shifts: pixels", lambda p: is_whole(p) and p > 0, expected)
        )

    def changes(self, model):
        return {
            (str(p), way): f"|shift({way}={p}, border='{self.border}')"
            for p in self.pixels
            for way in ("right", "down")
        }

    def summary(self, clean, table):
        return _along(clean, table, 0, "shift, pixels", logarithmic=True)


@register("occlusion")
@dataclasses.dataclass(frozen=True)
class Occlusion(Changed):
    """Top-1 accuracy with a share of the patches filled (arXiv 2105.10497, Sec. 3.1).

    Attributes:
        source, split, preprocess, seed: as in Changed.
        shares: shares of filled patches.
        patch: side in pixels, or (height, width); None for the model's own patches, or 16 if it has none.
        fill: level of the filled patches, 0 for black.
        order: "random", sampled for each image; "salient" or "least_salient", the patches that a ViT attends to most or
            least by attention rollout on the whole image. These use the model's own patches.
    """

    shares: tuple = SHARES
    patch: int | tuple | None = None
    fill: int = 0
    order: str = "random"

    def __post_init__(self):
        super().__post_init__()
        check_known(self.order, "occlusion: order", ORDERS)
        if self.order != "random" and self.patch is not None:
            raise ValueError(
                f'occlusion: order="{self.order}" uses the model\'s own patches: leave out patch={self.patch}.'
            )
        sides = self.patch if isinstance(self.patch, tuple) else (self.patch,)
        if self.patch is not None and not (len(sides) in (1, 2) and all(is_whole(side) and side > 0 for side in sides)):
            raise ValueError(
                f"occlusion: patch={self.patch!r}: expected a number of pixels above 0, or (height, width)."
            )
        if not is_whole(self.fill) or not 0 <= self.fill <= 255:
            raise ValueError(f"occlusion: fill={self.fill!r}: expected a level from 0 to 255.")
        expected = "shares above 0, at most 1"
        object.__setattr__(self, "shares", chosen(self.shares, "occlusion: shares", lambda s: 0 < s <= 1, expected))

    def changes(self, model):
        patch = getattr(getattr(model, "spec", None), "stride", 16) if self.patch is None else self.patch
        return {(str(share), "random"): f"|drop_patches({patch}, {share}, {self.fill})" for share in self.shares}

    def summary(self, clean, table):
        return _along(clean, table, 0, f"share of dropped patches, {self.order.replace('_', ' ')}")

    def prepare(self, setting):
        if self.order == "random":
            return super().prepare(setting)
        setting, source, preprocess = open_data(self, setting)
        check_classes(setting.model, source)
        check_preprocessing(preprocess, source, setting.model)
        if not getattr(getattr(setting.model, "spec", None), "has_attention", False):
            raise ValueError(
                f'occlusion: order="{self.order}" ranks patches by attention, which this model lacks. Use a ViT, or'
                ' order="random".'
            )
        n = setting.model.grid[0] * setting.model.grid[1]
        none = [share for share in self.shares if not round(share * n)]
        if none:
            raise ValueError(f"occlusion: a share of {none[0]} of {n} patches is less than one. Use larger shares.")

        def evaluate():
            check_head(setting.model)
            clean, table, n = accuracies(setting, source, preprocess, self.shares, self.order == "salient", self.fill)
            return self.summarised(
                clean, table, n, {"source": source.name, "preprocess": preprocess, "order": self.order}
            )

        return evaluate


@register("shuffled_patches")
@dataclasses.dataclass(frozen=True)
class ShuffledPatches(Changed):
    """Top-1 accuracy on images cut into grid x grid parts and shuffled (arXiv 2105.10497, Sec. 3.2).

    Attributes:
        source, split, preprocess, seed: as in Changed.
        grids: parts per side; the images' sides must be multiples of each.
    """

    grids: tuple = GRIDS

    def __post_init__(self):
        super().__post_init__()
        expected = "whole numbers of at least 2"
        object.__setattr__(
            self, "grids", chosen(self.grids, "shuffled_patches: grids", lambda g: is_whole(g) and g > 1, expected)
        )

    def changes(self, model):
        return {(str(grid), "random"): f"|shuffle_patches({grid})" for grid in self.grids}

    def summary(self, clean, table):
        return _along(clean, table, 1, "parts along a side", logarithmic=True)
