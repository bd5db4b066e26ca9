"""Rotary positions in 2-D: rotated queries and keys, whose products depend on the offset (arXiv 2104.09864)."""

import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.layers.arguments import integer, number
from keras_vit.layers.embedding.patches import check_tokens, pair
from keras_vit.layers.registration import serializable


def rotary_angles(grid: tuple[int, int], size: int, base: float = 100.0) -> np.ndarray:
    """The angles of DINOv3 (arXiv 2508.10104).

    Args:
        grid: (h, w) patches, with centres from -1 to 1 in both directions, for any grid.
        size: width c of a head.
        base: longest period relative to the shortest, which is 1 (approximately).

    Returns:
        (h*w, c/2) float64: half by the row, half by the column.

    Raises:
        ValueError: if the head's width is not a multiple of 4.
    """
    if size % 4:
        raise ValueError(
            f'positions="rope2d" need heads whose width is divisible by 4, got {size}. Change heads, or set head_dim.'
        )
    periods = base ** (np.arange(size // 4) / (size // 4))  # (c/4,)
    centres = [2 * (np.arange(m) + 0.5) / m - 1 for m in grid]
    places = np.stack(np.meshgrid(*centres, indexing="ij"), axis=-1).reshape(-1, 2)  # (h, w, 2) -> (h*w, 2)
    return (2 * np.pi * places[..., None] / periods).reshape(len(places), -1)  # (h*w, 2, c/4) -> (h*w, c/2)


@serializable
class RotaryPositions(keras.layers.Layer):
    """Rotates queries or keys of patches by their places on the grid; tokens before the patches stay.

    Args:
        grid: (h, w) patches.
        prefix: number of tokens before the patches.
        rescale: r for `random_scale`, 1 for none.

    Input and output (b, k, n, c). Values i and i + c/2 of a head are the coordinates rotated by angle i.
    """

    def __init__(self, grid: tuple[int, int], prefix: int = 0, rescale: float = 1.0, **kwargs: Any):
        super().__init__(**kwargs)
        self.grid = pair(grid, "RotaryPositions: grid")
        self.prefix = integer(prefix, "RotaryPositions: prefix", least=0)
        self.rescale = number(rescale, "RotaryPositions: rescale", least=1)
        self.input_spec = keras.layers.InputSpec(ndim=4)

    def build(self, input_shape):
        check_tokens(input_shape[2], self.prefix, self.grid, "RotaryPositions")
        self.angles = rotary_angles(self.grid, input_shape[-1])  # (n, c/2)

    def random_scale(self, generator: keras.random.SeedGenerator) -> Any:
        """A random factor of all angles, a scalar, log-uniform in [1/r, r]: r = 2 in DINOv3's training."""
        limit = math.log(self.rescale)
        return ops.exp(keras.random.uniform((), -limit, limit, dtype="float32", seed=generator))

    def call(self, x, scale=None):
        """With `scale`, a scalar, every angle is multiplied by it."""
        check_tokens(x.shape[2], self.prefix, self.grid, "RotaryPositions")
        if scale is None:
            parts = [f(self.angles).astype("float32") for f in (np.cos, np.sin)]
        else:
            angles = ops.convert_to_tensor(self.angles.astype("float32")) * scale
            parts = [ops.cos(angles), ops.sin(angles)]
        cos, sin = (ops.cast(ops.convert_to_tensor(part), x.dtype) for part in parts)
        first, second = ops.split(x[:, :, self.prefix :], 2, axis=-1)  # (b, k, n, c/2)
        rotated = ops.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
        return ops.concatenate([x[:, :, : self.prefix], rotated], axis=2) if self.prefix else rotated

    def compute_output_shape(self, input_shape):
        return input_shape
