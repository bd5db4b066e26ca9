"""Position embeddings, added to the tokens (E_pos in equation 1 of arXiv 2010.11929).

Each kind is one function `(layer, grid, prefix, width) -> table` in KINDS. It runs when the layer is built and returns the table
(1, prefix + n, d): a weight, or a numpy constant.
"""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.layers.arguments import integer, number
from keras_vit.layers.interpolation import resized
from keras_vit.layers.patches import check_tokens, pair
from keras_vit.layers.registration import serializable


def sincos_2d(grid: tuple[int, int], width: int, temperature: float = 10_000.0) -> np.ndarray:
    """The fixed 2-D sine-cosine table of MoCo v3 (arXiv 2104.02057).

    Args:
        grid: (h, w) patches.
        width: the tokens' size d.
        temperature: the longest wavelength, divided by 2 pi.

    Returns:
        (h*w, d) float32; the quarters of a row are sin x, cos x, sin y, cos y.

    Raises:
        ValueError: if the width is not a multiple of 4.
    """
    if width % 4:
        raise ValueError(f"2-D sin-cos positions need a width divisible by 4, got {width}.")
    y, x = np.mgrid[: grid[0], : grid[1]]  # (h, w) each
    omega = np.arange(width // 4, dtype="float64") / max(width // 4 - 1, 1)
    omega = 1.0 / temperature**omega
    x, y = np.outer(x.ravel(), omega), np.outer(y.ravel(), omega)  # (n, d/4)
    return np.concatenate([np.sin(x), np.cos(x), np.sin(y), np.cos(y)], axis=1).astype("float32")


def _learned(layer, grid, prefix, width):
    shape = (1, prefix + grid[0] * grid[1], width)
    return layer.add_weight(shape=shape, initializer=keras.initializers.RandomNormal(stddev=layer.stddev), name="embedding")


def _sincos(layer, grid, prefix, width):
    table = np.concatenate([np.zeros((prefix, width), "float32"), sincos_2d(grid, width)])
    return table[None]


KINDS = {"learned": _learned, "sincos2d": _sincos}


@serializable
class AddPositionEmbs(keras.layers.Layer):
    """Adds a position embedding to every token.

    Args:
        grid: (h, w) patches; a rectangle is possible. Resampling to another resolution reads it.
        prefix: number of tokens before the patches, such as the class token.
        kind: "learned" (1-D, the paper's default) or "sincos2d" (fixed; zeros for the prefix tokens).
        stddev: standard deviation of the initial learned positions.

    Input and output (b, prefix + h * w, d).
    """

    def __init__(self, grid: tuple[int, int], prefix: int = 0, kind: str = "learned", stddev: float = 0.02, **kwargs: Any):
        super().__init__(**kwargs)
        if not isinstance(kind, str) or kind not in KINDS:
            raise ValueError(f"AddPositionEmbs: unknown kind {kind!r}. Valid kinds: {', '.join(KINDS)}.")
        self.grid = pair(grid, "AddPositionEmbs: grid")
        self.prefix = integer(prefix, "AddPositionEmbs: prefix", least=0)
        self.kind = kind
        self.stddev = number(stddev, "AddPositionEmbs: stddev", least=0)
        self.supports_masking = True
        self.input_spec = keras.layers.InputSpec(ndim=3)

    def build(self, input_shape):
        check_tokens(input_shape[1], self.prefix, self.grid, "AddPositionEmbs")
        self.embedding = KINDS[self.kind](self, self.grid, self.prefix, input_shape[-1])

    def call(self, x):
        check_tokens(x.shape[1], self.prefix, self.grid, "AddPositionEmbs")
        if x.shape[1] is None:  # a single token, or none, would pass for all of them in the sum
            x = ops.reshape(x, (ops.shape(x)[0], self.embedding.shape[1], x.shape[-1]))  # (b, n, d)
        return x + ops.cast(ops.convert_to_tensor(self.embedding), x.dtype)

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {**super().get_config(), "grid": self.grid, "prefix": self.prefix, "kind": self.kind, "stddev": self.stddev}


@serializable
class ResampledPositions(keras.layers.Layer):
    """Adds the position embeddings of another layer, interpolated to another grid, through which that layer's learn.

    Args:
        positions: an AddPositionEmbs, built.
        grid: (h, w) patches of the tokens here.
        method: how it is interpolated, a row of interpolation.METHODS; DINO's code, for its small crops, is bicubic.

    Input and output (b, prefix + h * w, d).
    """

    def __init__(self, positions: AddPositionEmbs, grid: tuple[int, int], method: str = "bicubic", **kwargs: Any):
        super().__init__(**kwargs)
        self.positions = positions
        self.grid = pair(grid, "ResampledPositions: grid")
        self.method = method

    def build(self, input_shape):
        check_tokens(input_shape[1], self.positions.prefix, self.grid, "ResampledPositions")

    def call(self, x):
        table, prefix = ops.convert_to_tensor(self.positions.embedding), self.positions.prefix
        grid = ops.reshape(table[:, prefix:], (1, *self.positions.grid, table.shape[-1]))  # (1, n, d) -> (1, h, w, d)
        grid = resized(grid, self.grid, self.method)
        rows = ops.reshape(grid, (1, -1, table.shape[-1]))  # (1, h', w', d) -> (1, n', d)
        return x + ops.cast(ops.concatenate([ops.cast(table[:, :prefix], rows.dtype), rows], axis=1), x.dtype)

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        positions = keras.saving.serialize_keras_object(self.positions)
        return {**super().get_config(), "positions": positions, "grid": self.grid, "method": self.method}

    @classmethod
    def from_config(cls, config):
        return cls(**{**config, "positions": keras.saving.deserialize_keras_object(config["positions"])})
