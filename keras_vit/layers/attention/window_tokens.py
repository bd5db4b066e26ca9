"""Windows of a ViT's tokens (RF-DETR, arXiv 2511.09554): each has a part of the patches and its own copy of the prefix.

The prefix are the tokens before the patches: class token and registers. Tokens keep one order in all blocks: the
copies of window 0, of window 1..., then all patches row by row. A windowed block sorts them before its attention.

Letters: b images, n tokens, p prefix tokens of a window, s windows of an image, h w patches, d width, k heads.
"""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.layers.arguments import integer
from keras_vit.layers.attention.windows import partition, unpartition
from keras_vit.layers.registration import serializable


def window_size(grid: tuple[int, int], windows: int) -> tuple[int, int]:
    """(rows, columns) of a window; ValueError unless `windows` per side divide the grid."""
    if any(side % windows for side in grid):
        raise ValueError(
            f"windows={windows} do not divide a grid of {grid[0]}x{grid[1]} patches into equal parts: use an image"
            f" size with a multiple of {windows} patches per side, or another number of windows."
        )
    return grid[0] // windows, grid[1] // windows


def to_windows(x: Any, grid: tuple[int, int], windows: int, prefix: int) -> Any:
    """The tokens of each window as a sequence: (b, s*p + h*w, d) -> (b*s, p + h*w/s, d).

    Args:
        x: tokens in the order above.
        grid: (h, w).
        windows: per side; s is its square.
        prefix: p.
    """
    first, d = prefix * windows**2, x.shape[-1]
    patches = partition(ops.reshape(x[:, first:], (-1, *grid, d)), window_size(grid, windows))  # (b*s, h*w/s, d)
    if not prefix:
        return patches
    return ops.concatenate([ops.reshape(x[:, :first], (-1, prefix, d)), patches], axis=1)


def from_windows(x: Any, grid: tuple[int, int], windows: int, prefix: int) -> Any:
    """The inverse of `to_windows`."""
    (h, w), d = grid, x.shape[-1]
    patches = ops.reshape(unpartition(x[:, prefix:], window_size(grid, windows), grid), (-1, h * w, d))
    if not prefix:
        return patches
    return ops.concatenate([ops.reshape(x[:, :prefix], (-1, prefix * windows**2, d)), patches], axis=1)


def window_of_each(grid: tuple[int, int], windows: int, prefix: int) -> np.ndarray:
    """The number of each token's window, (s*p + h*w,)."""
    rows, columns = window_size(grid, windows)
    y, x = np.arange(grid[0]) // rows, np.arange(grid[1]) // columns
    return np.concatenate([np.repeat(np.arange(windows**2), prefix), (y[:, None] * windows + x).reshape(-1)])


def whole_weights(weights: Any, grid: tuple[int, int], windows: int, prefix: int) -> Any:
    """Attention weights inside windows as those among all tokens: (b*s, k, n/s, n/s) -> (b, k, n, n), 0 outside."""
    s, (_, k, m, _) = windows**2, weights.shape
    weights = ops.transpose(ops.reshape(weights, (-1, s, k, m, m)), (0, 2, 1, 3, 4))  # (b, k, s, m, m)
    own = np.eye(s, dtype="float32").reshape(s, 1, s, 1)
    whole = weights[:, :, :, :, None] * ops.cast(own, weights.dtype)  # (b, k, s, m, s, m)
    whole = ops.reshape(whole, (-1, k, s * m, s * m))
    place = np.argsort(np.argsort(window_of_each(grid, windows, prefix), kind="stable"), kind="stable")
    return ops.take(ops.take(whole, place, axis=2), place, axis=3)


@serializable
class WindowTokens(keras.layers.Layer):
    """Copies the prefix for each window: (b, p + h*w, d) -> (b, s*p + h*w, d).

    Args:
        windows: per side.
        prefix: p.
    """

    def __init__(self, windows: int, prefix: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.windows = integer(windows, "WindowTokens: windows")
        self.prefix = integer(prefix, "WindowTokens: prefix", least=0)

    def call(self, x):
        copies = [x[:, : self.prefix]] * self.windows**2
        return ops.concatenate([*copies, x[:, self.prefix :]], axis=1)

    def compute_output_shape(self, input_shape):
        b, n, d = input_shape
        return (b, None if n is None else n + self.prefix * (self.windows**2 - 1), d)
