"""Refuses integer inputs that would select wrong patches: which are visible, which replace others."""

import dataclasses
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Numbers:
    """The rules for an input (b, count) of patch numbers.

    Attributes:
        count: numbers per image.
        lowest, highest: bounds.
        once: whether numbers in a row must differ; a row of zeros, the padding of a last batch, is allowed.
    """

    count: int
    lowest: int
    highest: int
    once: bool = False

    def __str__(self):
        return f"{self.count} numbers per image from {self.lowest} to {self.highest}" + (
            ", each at most once" if self.once else ""
        )

    def check_shape(self, name: str, shape: tuple) -> None:
        """Refuses rows of other than `count` numbers; ValueError with both shapes."""
        if len(shape) != 2 or shape[1] not in (self.count, None):
            raise ValueError(
                f'"{name}" has the shape {tuple(shape)}, expected (images, {self.count}): {self}. model.masked(images)'
                " makes it."
            )

    def check(self, name: str, values: Any) -> None:
        """Refuses an array (b, count) of other numbers; ValueError with those found."""
        values = np.asarray(values)
        self.check_shape(name, values.shape)
        if values.size and not self.lowest <= values.min() <= values.max() <= self.highest:
            raise ValueError(_message(name, self, f"{values.min()} to {values.max()}"))
        if self.once and (np.diff(np.sort(values[values.any(axis=1)], axis=1), axis=1) == 0).any():
            raise ValueError(_message(name, self, "one of them several times in a row"))

    def problems(self, name: str, values: Any) -> list[tuple[Any, str]]:
        """(whether it applies, a scalar boolean tensor; message) of each possible fault of a tensor (b, count)."""
        import tensorflow as tf

        outside = (values < tf.cast(self.lowest, values.dtype)) | (values > tf.cast(self.highest, values.dtype))
        found = [(tf.reduce_any(outside), _message(name, self, "others"))]
        if self.once:
            ordered = tf.sort(values, axis=1)
            again = (ordered[:, 1:] == ordered[:, :-1]) & tf.reduce_any(values != 0, axis=1, keepdims=True)
            found.append((tf.reduce_any(again), _message(name, self, "one of them several times in a row")))
        return found


def _message(name, expected, found):
    return f'"{name}" contains {found}, expected {expected}. model.masked(images) makes it.'
