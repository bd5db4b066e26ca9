"""Position embeddings, added to the tokens (E_pos in equation 1 of arXiv 2010.11929).

Each kind is a function `(layer, grid, prefix, width) -> table` in KINDS, called when the layer is built. The table (1,
prefix + n, d) is a weight, a numpy constant, or Halves, from which each call makes it.
"""

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.layers.arguments import choice, integer, number
from keras_vit.layers.embedding.patches import check_tokens, pair
from keras_vit.layers.registration import serializable


def sincos_2d(grid: tuple[int, int], width: int, temperature: float = 10_000.0, reaches: bool = True) -> np.ndarray:
    """The fixed 2-D sine-cosine table of MoCo v3 (arXiv 2104.02057), as in big_vision (`reaches`) or MAE.

    Args:
        grid: (h, w) patches.
        width: token size d.
        temperature: longest wavelength, divided by 2 pi.
        reaches: whether the last of the d/4 wavelengths is the longest (big_vision), or one step short of it (MAE).

    Returns:
        (h*w, d) float32; the quarters of a row are sin x, cos x, sin y, cos y.

    Raises:
        ValueError: if the width is not a multiple of 4.
    """
    if width % 4:
        raise ValueError(f"2-D sin-cos positions need a width divisible by 4, got {width}.")
    y, x = np.mgrid[: grid[0], : grid[1]]  # (h, w) each
    omega = np.arange(width // 4, dtype="float64") / (max(width // 4 - 1, 1) if reaches else width // 4)
    omega = 1.0 / temperature**omega
    x, y = np.outer(x.ravel(), omega), np.outer(y.ravel(), omega)  # (n, d/4)
    return np.concatenate([np.sin(x), np.cos(x), np.sin(y), np.cos(y)], axis=1).astype("float32")


def sincos_1d(length: int, width: int, temperature: float = 10_000.0) -> np.ndarray:
    """The fixed table of "Attention is all you need" (arXiv 1706.03762, section 3.5): (length, d) float32.

    Values 2i and 2i + 1 of row p are the sine and the cosine of p / temperature^(2i / d). ValueError for an odd width.
    """
    if width % 2:
        raise ValueError(f"1-D sin-cos positions need an even width, got {width}.")
    angles = np.arange(length)[:, None] / temperature ** (np.arange(0, width, 2) / width)  # (n, d/2)
    # (n, d/2, 2) -> (n, d)
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(length, width).astype("float32")


class Halves(keras.layers.Layer):
    """The weights of a 2-D table (appendix D.4 of the paper): embeddings of width d/2 for each column and row.

    Tokens before the patches have their own embeddings; a patch concatenates its column's, X, and its row's, Y.
    """

    def __init__(self, grid, prefix, width, stddev, **kwargs):
        super().__init__(**kwargs)
        if width % 2:
            raise ValueError(f'positions="learned2d" need an even width, got {width}.')
        self.grid = grid
        normal, (h, w) = keras.initializers.RandomNormal(stddev=stddev), grid
        self.prefix_embedding = (
            self.add_weight(shape=(prefix, width), initializer=normal, name="prefix") if prefix else None
        )
        self.x_embedding = self.add_weight(shape=(w, width // 2), initializer=normal, name="x")
        self.y_embedding = self.add_weight(shape=(h, width // 2), initializer=normal, name="y")
        self.built = True

    def table(self):
        """(1, prefix + h*w, d)."""
        h, w = self.grid
        x = ops.tile(ops.convert_to_tensor(self.x_embedding), (h, 1))  # (w, d/2) -> (h*w, d/2)
        y = ops.repeat(ops.convert_to_tensor(self.y_embedding), w, axis=0)  # (h, d/2) -> (h*w, d/2)
        table = ops.concatenate([x, y], axis=-1)
        if self.prefix_embedding is not None:
            table = ops.concatenate([ops.convert_to_tensor(self.prefix_embedding), table], axis=0)
        return table[None]


def _learned(layer, grid, prefix, width):
    shape = (1, prefix + grid[0] * grid[1], width)
    return layer.add_weight(
        shape=shape, initializer=keras.initializers.RandomNormal(stddev=layer.stddev), name="embedding"
    )


def _learned_2d(layer, grid, prefix, width):
    return Halves(grid, prefix, width, layer.stddev, dtype=layer.dtype_policy, name="embedding")


FIXED: dict[str, Callable[[tuple[int, int], int], np.ndarray]] = {
    "sincos1d": lambda grid, width: sincos_1d(grid[0] * grid[1], width),
    "sincos2d": sincos_2d,
    "sincos2d_mae": functools.partial(sincos_2d, reaches=False),
}


def fixed_table(kind: str, grid: tuple[int, int], prefix: int, width: int) -> np.ndarray:
    """The table (1, prefix + h*w, d) of a FIXED kind, with zeros for the prefix tokens."""
    return np.concatenate([np.zeros((prefix, width), "float32"), FIXED[kind](grid, width)])[None]


def _fixed(layer, grid, prefix, width):
    return fixed_table(layer.kind, grid, prefix, width)


LEARNED = ("learned", "learned2d")
KINDS = {"learned": _learned, "learned2d": _learned_2d, **dict.fromkeys(FIXED, _fixed)}


@serializable
class AddPositionEmbs(keras.layers.Layer):
    """Adds a position embedding to every token.

    Args:
        grid: (h, w) patches, not necessarily square; read when resampling.
        prefix: number of tokens before the patches, such as the class token.
        kind: "learned" (1-D, the paper's default), "learned2d" (half of a token by its column, half by its row),
            "sincos1d", "sincos2d" or "sincos2d_mae" (fixed; zeros for the prefix tokens).
        stddev: initial standard deviation of learned positions.
        registers: number of tokens without positions between prefix and patches.

    Input and output (b, prefix + registers + h * w, d).
    """

    def __init__(
        self,
        grid: tuple[int, int],
        prefix: int = 0,
        kind: str = "learned",
        stddev: float = 0.02,
        registers: int = 0,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.grid = pair(grid, "AddPositionEmbs: grid")
        self.prefix = integer(prefix, "AddPositionEmbs: prefix", least=0)
        self.kind = choice(kind, "AddPositionEmbs: kind", KINDS)
        self.stddev = number(stddev, "AddPositionEmbs: stddev", least=0)
        self.registers = integer(registers, "AddPositionEmbs: registers", least=0)
        self.supports_masking = True
        self.input_spec = keras.layers.InputSpec(ndim=3)

    def build(self, input_shape):
        check_tokens(input_shape[1], self.prefix + self.registers, self.grid, "AddPositionEmbs")
        self.embedding = KINDS[self.kind](self, self.grid, self.prefix, input_shape[-1])

    def table(self) -> Any:
        """The added table, without the registers' zeros: (1, prefix + h * w, d)."""
        return ops.convert_to_tensor(self.embedding.table() if isinstance(self.embedding, Halves) else self.embedding)

    def call(self, x):
        check_tokens(x.shape[1], self.prefix + self.registers, self.grid, "AddPositionEmbs")
        table = ops.cast(self.table(), x.dtype)
        if self.registers:
            none = ops.zeros((1, self.registers, x.shape[-1]), x.dtype)
            table = ops.concatenate([table[:, : self.prefix], none, table[:, self.prefix :]], axis=1)
        if x.shape[1] is None:  # a single token, or none, would pass for all of them in the sum
            x = ops.reshape(x, (ops.shape(x)[0], table.shape[1], x.shape[-1]))  # (b, n, d)
        return x + table

    def compute_output_shape(self, input_shape):
        return input_shape


@serializable
class ResampledPositions(keras.layers.Layer):
    """Adds another layer's position embeddings, interpolated to another grid; gradients reach that layer.

    Args:
        positions: an AddPositionEmbs, built.
        grid: (h, w) patches of the tokens here.
        method: a row of interpolation.METHODS; bicubic in DINO's code, for its small crops.

    Input and output (b, prefix + registers + h * w, d).
    """

    def __init__(self, positions: AddPositionEmbs, grid: tuple[int, int], method: str = "bicubic", **kwargs: Any):
        super().__init__(**kwargs)
        self.positions = positions
        self.grid = pair(grid, "ResampledPositions: grid")
        self.method = method

    def build(self, input_shape):
        check_tokens(input_shape[1], self.positions.prefix + self.positions.registers, self.grid, "ResampledPositions")

    def call(self, x):
        table, prefix = self.positions.table(), self.positions.prefix
        grid = ops.reshape(table[:, prefix:], (1, *self.positions.grid, table.shape[-1]))  # (1, n, d) -> (1, h, w, d)
        from keras_vit.layers.positions.interpolation import resized

        grid = resized(grid, self.grid, self.method)
        rows = ops.reshape(grid, (1, -1, table.shape[-1]))  # (1, h', w', d) -> (1, n', d)
        none = ops.zeros((1, self.positions.registers, table.shape[-1]), rows.dtype)
        return x + ops.cast(ops.concatenate([ops.cast(table[:, :prefix], rows.dtype), none, rows], axis=1), x.dtype)

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        positions = keras.saving.serialize_keras_object(self.positions)
        return {**super().get_config(), "positions": positions, "grid": self.grid, "method": self.method}

    @classmethod
    def from_config(cls, config):
        return cls(**{**config, "positions": keras.saving.deserialize_keras_object(config["positions"])})
