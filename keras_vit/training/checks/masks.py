"""Refuses masks that a segmentation model would learn wrongly: of another size, not integers, outside the classes."""

import dataclasses
from typing import Any

import numpy as np

from keras_vit.io.void import void_of


@dataclasses.dataclass(frozen=True)
class MaskRules:
    """What the masks (b, height, width) of a model that classifies pixels may hold.

    Attributes:
        classes: number of classes; masks hold 0 to classes - 1.
        size: (height, width) of images and masks.
        void: value of pixels without a class.
    """

    classes: int
    size: tuple[int, int]
    void: int

    @classmethod
    def of(cls, classes: int, size: tuple[int, int]) -> "MaskRules":
        """The rules for so many classes, with their usual void."""
        return cls(classes, size, void_of(classes))

    def check_form(self, shape: tuple, dtype: Any) -> None:
        """Refuses masks of another shape than the images, or of another type than integers."""
        height, width = self.size
        fits = len(shape) == 3 and all(None in pair or pair[0] == pair[1] for pair in zip(shape[1:], self.size))
        if not fits:
            extra = tuple(shape[1:]) in ((height, width, 1), (height, width, self.classes))
            hint = ""
            if extra:
                hint = " Write masks[..., 0]." if shape[-1] == 1 else " Write masks.argmax(-1)."
            raise ValueError(
                f"The masks have the shape {tuple(shape)}, expected (images, {height}, {width}): one class number per"
                f" pixel of the images.{hint}"
            )
        name = getattr(dtype, "name", str(dtype))
        if not name.startswith(("int", "uint")):
            raise ValueError(
                f"The masks hold {name}, expected integers: class numbers from 0 to {self.classes - 1}, and"
                f" {self.void} for pixels without a class."
            )

    def check(self, masks: Any, weights: Any = None) -> None:
        """Refuses masks with other numbers than classes and void; those of images with weight 0 may hold any."""
        masks = np.asarray(masks)
        self.check_form(masks.shape, masks.dtype)
        if weights is not None and np.shape(weights) == masks.shape[:1]:
            masks = masks[np.asarray(weights) != 0]
        wrong = masks[self.are_wrong(masks)]
        if wrong.size:
            raise ValueError(self.message().replace("{}", "{:d}").format(wrong.min(), wrong.max()))

    def are_wrong(self, masks: Any) -> Any:
        """Which pixels of masks, NumPy or TensorFlow, are neither a class nor void."""
        return (masks < 0) | ((masks >= self.classes) & (masks != self.void))

    def message(self) -> str:
        """The message for masks with wrong values, with {} for the lowest and highest."""
        return (
            f"The masks should hold class numbers from 0 to {self.classes - 1}, for {self.classes} classes, or"
            f" {self.void} for pixels without a class, and hold others, from {{}} to {{}}. Write"
            f" {self.void} where they have another value to ignore."
        )

    def wrong_range(self, masks: Any, weights: Any = None) -> tuple[Any, Any, Any]:
        """(whether any pixel is wrong, the lowest and the highest such value as text), of TensorFlow tensors."""
        import tensorflow as tf

        masks = tf.cast(masks, "int32")
        if weights is not None and weights.shape.rank == 1:
            masks = tf.boolean_mask(masks, weights != 0)
        wrong = tf.boolean_mask(masks, self.are_wrong(masks))
        ends = (tf.strings.as_string(end(wrong)) for end in (tf.reduce_min, tf.reduce_max))
        return tf.size(wrong) > 0, *ends
