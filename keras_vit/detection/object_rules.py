"""Refuses objects that a model would learn wrongly: of another form, outside the classes, in pixels.

Objects are rows as in io/target_values.py.
"""

import dataclasses
import warnings
from typing import Any

import numpy as np

from keras_vit.fit.checks.targets import TargetRules
from keras_vit.io.target_values import COLUMNS, CROWD, DIFFICULT, KIND, LABEL, OBJECT, PADDING

_ROUNDING = 0.01  # by which a box may leave the image


@dataclasses.dataclass(frozen=True)
class ObjectRules(TargetRules):
    """The rules for the targets (b, m, 7) of a detector.

    Attributes:
        classes: number of classes.
        most: the largest number of objects that the model can find in an image; None for any.
    """

    classes: int
    most: int | None = None

    @property
    def width(self) -> int:
        """The numbers in a row."""
        return len(COLUMNS)

    def check_form(self, shape: tuple, dtype: Any) -> None:
        """Refuses targets of another shape than rows of seven numbers for each image, or that are not numbers; warns
        about more objects than the model can find.
        """
        shape = tuple(shape)
        if len(shape) != 3 or shape[-1] not in (None, len(COLUMNS)):
            raise ValueError(
                f"The targets have the shape {shape}, expected (images, objects, {len(COLUMNS)}): rows of top, left,"
                " bottom, right as fractions of the image, class number, crowd (0 for an object) and area in pixels,"
                " with class -1 for padding."
            )
        name = getattr(dtype, "name", str(dtype))
        if not name.startswith(("float", "bfloat", "int", "uint")):
            raise ValueError(f"The targets contain {name}, expected numbers, such as float32.")
        if self.most is not None and shape[1] is not None and shape[1] > self.most:
            warnings.warn(
                f"The targets have room for {shape[1]} objects in an image, and the model finds {self.most} at most:"
                " the loss leaves the others out. Make the model with more predictions:"
                f' head_options={{"tokens": {shape[1]}}} for the head "yolos", {{"queries": {shape[1]}}} for others.',
                stacklevel=2,
            )

    def check(self, targets: Any, weights: Any = None) -> None:
        """Refuses targets with other values; those of images with weight 0 may contain any."""
        targets = np.asarray(targets)
        self.check_form(targets.shape, targets.dtype)
        if weights is not None and np.shape(weights) == targets.shape[:1]:
            targets = targets[np.asarray(weights) != 0]
        rows = targets.reshape(-1, self.width)
        for wrong, text, values in self._faults(rows):
            if (found := values[wrong]).size:
                raise ValueError(text.format(f"{found.min():g}", f"{found.max():g}"))

    def _faults(self, rows):
        """(which rows or values are wrong, message with {} for their ends, the values) for rows (r, 7) of any kind."""
        boxes, label, crowd = rows[:, :4], rows[:, LABEL], rows[:, KIND]
        there = label != PADDING
        yield (
            ~((label >= -1) & (label < self.classes) & (label % 1 == 0)),
            f"The classes of objects should be whole numbers from 0 to {self.classes - 1}, for {self.classes} classes,"
            " or -1 for padding, and some are from {} to {}.",
            label,
        )
        outside = ~((boxes >= -_ROUNDING) & (boxes <= 1 + _ROUNDING))
        yield (
            there[:, None] & outside,
            "Boxes should be fractions of the image, from 0 to 1, and some edges are from {} to {}. Divide pixels by"
            " the image's height (top, bottom) and width (left, right), and clip boxes to the image.",
            boxes,
        )
        sides = boxes[:, 2:] - boxes[:, :2]
        yield (
            there[:, None] & (sides < 0),
            "Boxes should be top, left, bottom, right, and some have a bottom above their top or a right edge left of"
            " their left one: their heights or widths are from {} to {}. Are they x before y, or centre and size?",
            sides,
        )
        yield (
            there & (crowd != OBJECT) & (crowd != CROWD) & (crowd != DIFFICULT),
            "Column 5 of objects is 0, 1 for a crowd or 2 for difficult, and is from {} to {}.",
            crowd,
        )

    def problems(self, targets: Any, weights: Any = None) -> list[tuple]:
        """[(whether any is wrong, message with {}, the lowest and highest wrong value)] of TensorFlow tensors."""
        import tensorflow as tf

        targets, found = tf.cast(targets, "float32"), []
        if weights is not None and weights.shape.rank == 1:
            targets = tf.boolean_mask(targets, weights != 0)
        for wrong, text, values in self._faults(tf.reshape(targets, (-1, self.width))):
            values = tf.boolean_mask(values, wrong)
            found.append((tf.size(values) > 0, text, tf.reduce_min(values), tf.reduce_max(values)))
        return found


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
