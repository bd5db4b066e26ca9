"""Refuses masks that a segmentation model would learn wrongly: of another size, not integers, outside the classes."""

import dataclasses
from typing import Any

import numpy as np

from keras_vit.fit.checks.targets import TargetRules
from keras_vit.io.target_values import void_value


@dataclasses.dataclass(frozen=True)
class MaskRules(TargetRules):
    """The rules for the masks (b, height, width) of a model that classifies pixels.

    Attributes:
        classes: number of classes, 0 to classes - 1 in masks.
        size: (height, width) of images and masks.
        void: value of pixels without a class.
        of_classes_only: the name of a loss that takes void for a class, so that masks must not contain it; or None.
    """

    classes: int
    size: tuple[int, int]
    void: int
    of_classes_only: str | None = None

    @classmethod
    def of(cls, classes: int, size: tuple[int, int]) -> "MaskRules":
        """The rules for this number of classes, with the usual void."""
        return cls(classes, size, void_value(classes))

    def check_form(self, shape: tuple, dtype: Any) -> None:
        """Refuses masks of another shape than the images, or of another type than integers."""
        height, width = self.size
        fits = len(shape) == 3 and all(None in pair or pair[0] == pair[1] for pair in zip(shape[1:], self.size))
        if not fits:
            raise ValueError(
                f"The masks have the shape {tuple(shape)}, expected (images, {height}, {width}): one class number per"
                f" pixel of the images.{self._hint(shape)}"
            )
        name = getattr(dtype, "name", str(dtype))
        if not name.startswith(("int", "uint")):
            raise ValueError(
                f"The masks contain {name}, expected integers: class numbers from 0 to {self.classes - 1}, and"
                f" {self.void} for pixels without a class."
            )

    def _hint(self, shape):
        """The fix for masks with another axis: of one channel, a row per pixel, or colours."""
        if len(shape) != 4:
            return ""
        if shape[-1] == 1:
            return " Write masks[..., 0]."
        one_hot = " Write masks.argmax(-1)" if shape[-1] == self.classes else ""
        if shape[-1] not in (3, 4):
            return one_hot and f"{one_hot}."
        one_hot = one_hot and f"{one_hot} if the last axis has a 1 for the class."
        return f"{one_hot} Colours must become class numbers first, as in sources of masks (docs/data.md)."

    def check_all(self, masks: Any) -> None:
        """Refuses masks, all those of a call, of which no pixel has a class."""
        masks = np.asarray(masks)
        if masks.size and (masks == self.void).all():
            raise ValueError(
                f"No pixel of the masks has a class: all are {self.void}, void, from which nothing is learned or"
                " measured."
            )

    def check(self, masks: Any, weights: Any = None) -> None:
        """Refuses masks with other numbers than classes and void; those of images with weight 0 may contain any."""
        masks = np.asarray(masks)
        self.check_form(masks.shape, masks.dtype)
        if weights is not None and np.shape(weights) == masks.shape[:1]:
            masks = masks[np.asarray(weights) != 0]
        wrong = masks[self.are_wrong(masks)]
        if wrong.size:
            raise ValueError(self.message().replace("{}", "{:d}").format(wrong.min(), wrong.max()))

    def are_wrong(self, masks: Any) -> Any:
        """Which pixels of masks, NumPy or TensorFlow, are neither a class nor void."""
        above = masks >= self.classes
        return (masks < 0) | (above if self.of_classes_only else above & (masks != self.void))

    def message(self) -> str:
        """The message for masks with wrong values, with {} for the lowest and highest."""
        if self.of_classes_only:
            return (
                f"The loss {self.of_classes_only} takes class numbers from 0 to {self.classes - 1} only, and the masks"
                f" contain others, from {{}} to {{}}. Pixels without a class are {self.void}: write"
                f" {self.of_classes_only}(from_logits=True, ignore_class={self.void}), or"
                " loss=keras_vit.training.SegmentationLoss()."
            )
        return (
            f"The masks should contain class numbers from 0 to {self.classes - 1}, for {self.classes} classes, or"
            f" {self.void} for pixels without a class, and contain others, from {{}} to {{}}. Write"
            f" {self.void} where they have another value to ignore."
        )

    def problems(self, masks: Any, weights: Any = None) -> list[tuple]:
        """[(whether any pixel is wrong, the message with {}, the lowest and highest such value)] of tensors."""
        import tensorflow as tf

        masks = tf.cast(masks, "int32")
        if weights is not None and weights.shape.rank == 1:
            masks = tf.boolean_mask(masks, weights != 0)
        wrong = tf.boolean_mask(masks, self.are_wrong(masks))
        ends = (tf.strings.as_string(end(wrong)) for end in (tf.reduce_min, tf.reduce_max))
        return [(tf.size(wrong) > 0, self.message(), *ends)]
