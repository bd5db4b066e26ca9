"""Rotary positions in 2-D: rotated queries and keys, so that products depend on the offset (arXiv 2104.09864)."""

import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.layers.arguments import choice, integer, number
from keras_vit.layers.embedding.patches import check_tokens, pair
from keras_vit.layers.registration import serializable


def _centres(grid, reference):
    """Half turns from -1 to 1 at the patches' centres, rows before columns."""
    return [2 * np.pi * (2 * (np.arange(m) + 0.5) / m - 1) for m in grid]


def _cells(grid, reference):
    """Numbers of rows and columns, in units of a grid of `reference` patches a side."""
    return [np.arange(m) / m * reference for m in grid]


def _numbered_cells(grid, reference):
    """As _cells, with numbers from 1, which the tokens before the patches see."""
    return [np.arange(1, m + 1) / m * reference for m in grid]


# {name: (function (grid, reference) -> coordinates by row and by column, the longest period over the shortest)}.
ROTARY = {
    "rope2d": (_centres, 100.0),
    "rope2d_cells": (_cells, 10000.0),
    "rope2d_cells1": (_numbered_cells, 10000.0),
}


def rotary_angles(grid: tuple[int, int], size: int, form: str = "rope2d", reference: int = 16) -> np.ndarray:
    """The angles of DINOv3 (arXiv 2508.10104) or EVA-02 (arXiv 2303.11331).

    Args:
        grid: (h, w) patches.
        size: width c of a head.
        form: "rope2d": centres from -1 to 1 on every grid, with periods from 1 to about 100 (DINOv3); "rope2d_cells":
            places on a grid of `reference` patches a side, whatever the grid, with periods from 2 pi to about 2 pi
            10,000 (EVA-02); "rope2d_cells1": the same, counted from 1 (Perception Encoder, arXiv 2504.13181).

    Returns:
        (h*w, c/2) float64: half by the row, half by the column.

    Raises:
        ValueError: if the head's width is not a multiple of 4.
    """
    if size % 4:
        raise ValueError(
            f'positions="{form}" need a head width divisible by 4, got {size}. Change heads, or set head_dim.'
        )
    coordinates, base = ROTARY[form]
    periods = base ** (np.arange(size // 4) / (size // 4))  # (c/4,)
    places = np.stack(np.meshgrid(*coordinates(grid, reference), indexing="ij"), axis=-1).reshape(-1, 2)
    return (places[..., None] / periods).reshape(len(places), -1)  # (h*w, 2, c/4) -> (h*w, c/2)


@serializable
class RotaryPositions(keras.layers.Layer):
    """Rotates queries or keys of patches by their places on the grid; tokens before the patches stay.

    Args:
        grid: (h, w) patches.
        prefix: number of tokens before the patches.
        rescale: r for `random_scale`, 1 for none.
        form, reference: see rotary_angles.

    Input and output (b, k, n, c). Values i and i + c/2 of a head are the coordinates rotated by angle i.
    """

    def __init__(
        self,
        grid: tuple[int, int],
        prefix: int = 0,
        rescale: float = 1.0,
        form: str = "rope2d",
        reference: int = 16,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.grid = pair(grid, "RotaryPositions: grid")
        self.prefix = integer(prefix, "RotaryPositions: prefix", least=0)
        self.rescale = number(rescale, "RotaryPositions: rescale", least=1)
        self.form = choice(form, "RotaryPositions: form", ROTARY)
        self.reference = integer(reference, "RotaryPositions: reference")
        self.input_spec = keras.layers.InputSpec(ndim=4)

    def build(self, input_shape):
        check_tokens(input_shape[2], self.prefix, self.grid, "RotaryPositions")
        self.angles = rotary_angles(self.grid, input_shape[-1], self.form, self.reference)  # (n, c/2)
        self.cos, self.sin = (f(self.angles).astype("float32") for f in (np.cos, np.sin))

    def random_scale(self, generator: keras.random.SeedGenerator) -> Any:
        """A random factor of all angles, a scalar, log-uniform in [1/r, r]: r = 2 in DINOv3's training."""
        limit = math.log(self.rescale)
        return ops.exp(keras.random.uniform((), -limit, limit, dtype="float32", seed=generator))

    def call(self, x, scale=None):
        """With `scale`, a scalar, every angle is multiplied by it."""
        check_tokens(x.shape[2], self.prefix, self.grid, "RotaryPositions")
        cos, sin = self.cos, self.sin
        if scale is not None:
            angles = ops.convert_to_tensor(self.angles.astype("float32")) * scale
            cos, sin = ops.cos(angles), ops.sin(angles)
        cos, sin = (ops.cast(ops.convert_to_tensor(part), x.dtype) for part in (cos, sin))
        first, second = ops.split(x[:, :, self.prefix :], 2, axis=-1)  # (b, k, n, c/2)
        rotated = ops.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
        return ops.concatenate([x[:, :, : self.prefix], rotated], axis=2) if self.prefix else rotated

    def compute_output_shape(self, input_shape):
        return input_shape
