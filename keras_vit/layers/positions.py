"""Position embeddings, added to the tokens (E_pos in equation 1 of arXiv 2010.11929).

Each kind is one function `(layer, grid, prefix, width) -> table` in KINDS. It runs when the layer is built and returns the table
(1, prefix + n, d): a weight, or a numpy constant.
"""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.layers.arguments import integer, number
from keras_vit.layers.patches import check_tokens, pair
from keras_vit.layers.registration import serializable


def sincos_2d(grid: tuple[int, int], width: int, temperature: float = 10_000.0, reaches: bool = True) -> np.ndarray:
    """The fixed 2-D sine-cosine table of MoCo v3 (arXiv 2104.02057), in the form of big_vision or, not `reaches`, of MAE.

    Args:
        grid: (h, w) patches.
        width: the tokens' size d.
        temperature: the longest wavelength, divided by 2 pi.
        reaches: whether the last of the d/4 wavelengths is the longest, as in big_vision, or one step short of it, as in MAE.

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


def _learned(layer, grid, prefix, width):
    shape = (1, prefix + grid[0] * grid[1], width)
    return layer.add_weight(shape=shape, initializer=keras.initializers.RandomNormal(stddev=layer.stddev), name="embedding")


def _sincos(layer, grid, prefix, width):
    return fixed_table(layer.kind, grid, prefix, width)


def fixed_table(kind: str, grid: tuple[int, int], prefix: int, width: int) -> np.ndarray:
    """The table (1, prefix + h*w, d) of a fixed kind, "sincos2d" or "sincos2d_mae": zeros for the prefix tokens."""
    table = sincos_2d(grid, width, reaches=kind == "sincos2d")
    return np.concatenate([np.zeros((prefix, width), "float32"), table])[None]


FIXED = ("sincos2d", "sincos2d_mae")
KINDS = {"learned": _learned, "sincos2d": _sincos, "sincos2d_mae": _sincos}


@serializable
class AddPositionEmbs(keras.layers.Layer):
    """Adds a position embedding to every token.

    Args:
        grid: (h, w) patches; a rectangle is possible. Resampling to another resolution reads it.
        prefix: number of tokens before the patches, such as the class token.
        kind: "learned" (1-D, the paper's default), or "sincos2d" or "sincos2d_mae" (fixed; zeros for the prefix tokens).
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
