"""Windows of a feature map (arXiv 2103.14030): pure functions between a map (b, h, w, d) and its windows as tokens.

A map with a size that is not a multiple of the window's is padded first (`padding`); for shifted windows it is rolled,
and `shifted_regions` says which places in a window were neighbours before.
"""

from types import ModuleType
from typing import Any

import numpy as np
from keras import ops


def padding(size: tuple[int, int], window: tuple[int, int]) -> tuple[int, int]:
    """Rows below and columns to the right that make a map of (h, w) whole windows."""
    (h, w), (rows, columns) = size, window
    return -h % rows, -w % columns


def pad(x: Any, window: tuple[int, int], xp: ModuleType = ops) -> Any:
    """A map (b, h, w, d) with zeros below and to the right, up to whole windows; `xp` is keras.ops or numpy."""
    below, right = padding(x.shape[1:3], window)
    return xp.pad(x, ((0, 0), (0, below), (0, right), (0, 0))) if below or right else x


def partition(x: Any, window: tuple[int, int], xp: ModuleType = ops) -> Any:
    """The windows of a map, row by row, as tokens.

    Args:
        x: (b, h, w, d) of known h and w, multiples of the window's.
        window: (rows, columns) of a window.
        xp: keras.ops for tensors, or numpy.

    Returns:
        (b*n, rows*columns, d), the n windows of an image next to each other.

    Raises:
        ValueError: if the map is not a whole number of windows; `pad` makes it one.
    """
    (h, w, d), (rows, columns) = x.shape[1:], window
    if h % rows or w % columns:
        raise ValueError(f"A map of {h}x{w} is not a whole number of windows of {rows}x{columns}: pad it first.")
    x = xp.reshape(x, (-1, h // rows, rows, w // columns, columns, d))  # (b, h, w, d) -> (b, n1, rows, n2, columns, d)
    x = xp.transpose(x, (0, 1, 3, 2, 4, 5))  # (b, n1, n2, rows, columns, d)
    return xp.reshape(x, (-1, rows * columns, d))  # (b*n1*n2, rows*columns, d)


def unpartition(windows: Any, window: tuple[int, int], size: tuple[int, int]) -> Any:
    """The inverse of `partition`: windows (b*n, rows*columns, d) to the map (b, h, w, d) of `size` (h, w)."""
    (rows, columns), (h, w), d = window, size, windows.shape[-1]
    x = ops.reshape(windows, (-1, h // rows, w // columns, rows, columns, d))  # (b, n1, n2, rows, columns, d)
    x = ops.transpose(x, (0, 1, 3, 2, 4, 5))  # (b, n1, rows, n2, columns, d)
    return ops.reshape(x, (-1, h, w, d))


def roll(x: Any, shift: tuple[int, int]) -> Any:
    """A map (b, h, w, d) moved down and right around its edges; by slices, since LiteRT has no such operation."""
    for axis, step in zip((1, 2), shift):
        step %= x.shape[axis]
        if step:
            first, last = ops.split(x, [x.shape[axis] - step], axis=axis)
            x = ops.concatenate([last, first], axis=axis)
    return x


def shifted_regions(size: tuple[int, int], window: tuple[int, int], shift: tuple[int, int]) -> np.ndarray:
    """Which tokens of a rolled map's windows belong together.

    Args:
        size: (h, w) of the map, a multiple of the window's.
        window: (rows, columns).
        shift: places (down, right) by which the map was rolled up and left, fewer than a window's.

    Returns:
        Booleans (n, rows*columns, rows*columns): whether two tokens of a window lie on the same side of the map's
            rolled edges, and so may attend to each other.
    """
    sides = [
        np.where(np.arange(length) < length - step, 0, 1) if step else np.zeros(length, int)
        for length, step in zip(size, shift)
    ]
    side = 2 * sides[0][:, None] + sides[1]  # (h, w)
    parts = partition(side[None, :, :, None], window, np)[..., 0]  # (n, rows*columns)
    return parts[:, :, None] == parts[:, None, :]
