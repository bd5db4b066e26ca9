"""Refuses objects with masks that a model would learn wrongly: of another form, or with masks that are no shares."""

import dataclasses
from typing import Any

from keras_vit.detection.object_rules import ObjectRules
from keras_vit.io.target_values import COLUMNS, LABEL, PADDING


@dataclasses.dataclass(frozen=True)
class InstanceRules(ObjectRules):
    """The rules for the targets (b, m, 7 + p) of a model that finds objects with masks on p cells.

    Attributes:
        grid: (h, w) of the masks, p = h * w.
    """

    grid: tuple[int, int] = (1, 1)

    @property
    def width(self) -> int:
        h, w = self.grid
        return len(COLUMNS) + h * w

    def check_form(self, shape: tuple, dtype: Any) -> None:
        h, w = self.grid
        if len(shape) != 3 or shape[-1] not in (None, self.width):
            boxes = shape[-1] == len(COLUMNS) if len(shape) == 3 else False
            hint = " These are boxes without masks, as detection takes them." if boxes else ""
            raise ValueError(
                f"The targets have the shape {tuple(shape)}, expected (images, objects, {self.width}): rows of top,"
                " left, bottom, right as fractions of the image, class number, crowd (0 for an object) and area in"
                f" pixels, then the mask on the model's grid of {h} x {w} cells, row by row, with class -1 for"
                f" padding.{hint} Write keras_vit.data.pack_masks(masks, labels, model.mask_grid)."
            )
        super().check_form((*shape[:2], len(COLUMNS)), dtype)

    def _faults(self, rows):
        yield from super()._faults(rows[:, : len(COLUMNS)])
        masks, there = rows[:, len(COLUMNS) :], rows[:, LABEL] != PADDING
        yield (
            there[:, None] & ~((masks >= 0) & (masks <= 1)),
            "Masks are the share of each cell inside the object, from 0 to 1, and some are from {} to {}.",
            masks,
        )
