"""Fit weights to another image size, patch size, or number of channels: pure functions of arrays.

Methods of resampling are those of layers/positions/interpolation.py.
"""

import numpy as np

from keras_vit.layers.positions.interpolation import METHODS, check_method


def resample_positions(
    table: np.ndarray,
    old_grid: tuple[int, int],
    new_grid: tuple[int, int],
    prefix: int = 0,
    method: str = "google",
) -> np.ndarray:
    """A position table for another patch grid.

    Args:
        table: (1, prefix + h*w, d) for old_grid = (h, w).
        old_grid, new_grid: (h, w), not necessarily square.
        prefix: tokens before the patches; their rows stay.
        method: a row of METHODS: "google", "timm", "bicubic", "bilinear", "flexivit".

    Returns:
        (1, prefix + h'*w', d), in the table's dtype.

    Raises:
        ValueError: for an unknown method, or a table that does not match old_grid.
    """
    check_method(method)
    if table.shape[1] != prefix + old_grid[0] * old_grid[1]:
        raise ValueError(
            f"The table has {table.shape[1]} rows, expected {prefix} + {old_grid[0]} x {old_grid[1]} = "
            f"{prefix + old_grid[0] * old_grid[1]}."
        )
    if tuple(old_grid) == tuple(new_grid):
        return table.copy()
    patches = table[0, prefix:].reshape(*old_grid, -1).astype("float64")  # (h, w, d)
    rows, columns = (METHODS[method](old, new) for old, new in zip(old_grid, new_grid))
    patches = np.einsum("yh,xw,hwd->yxd", rows, columns, patches, optimize=True)  # (h', w', d)
    patches = patches.reshape(1, -1, table.shape[-1]).astype(table.dtype)
    return np.concatenate([table[:, :prefix], patches], axis=1)


def resample_axis(table: np.ndarray, length: int, method: str = "google") -> np.ndarray:
    """Row or column embeddings, (h, d), for another number of them, in the table's dtype."""
    if len(table) == length:
        return table.copy()
    return (METHODS[method](len(table), length) @ table.astype("float64")).astype(table.dtype)


def resample_offsets(
    bias: np.ndarray, old_grid: tuple[int, int], new_grid: tuple[int, int], method: str = "google"
) -> np.ndarray:
    """A bias by 2-D offset for another patch grid.

    Equal shares of the image keep their bias; the offset 0 stays in place. Both halves of an axis are interpolated, (2h
    - 1) values in all.

    Args:
        bias: (2h - 1, 2w - 1, k) for old_grid = (h, w).
        old_grid, new_grid: (h, w).
        method: a row of METHODS.

    Returns:
        (2h' - 1, 2w' - 1, k), in the bias's dtype.

    Raises:
        ValueError: for a bias that does not match old_grid.
    """
    if bias.shape[:2] != tuple(2 * m - 1 for m in old_grid):
        raise ValueError(
            f"The bias has {bias.shape[0]} x {bias.shape[1]} offsets, which are not those of a grid of {old_grid}."
        )
    if tuple(old_grid) == tuple(new_grid):
        return bias.copy()
    rows, columns = (METHODS[method](2 * old - 1, 2 * new - 1) for old, new in zip(old_grid, new_grid))
    return np.einsum("yh,xw,hwk->yxk", rows, columns, bias.astype("float64"), optimize=True).astype(bias.dtype)


def resample_patches(kernel: np.ndarray, new_size: tuple[int, int]) -> np.ndarray:
    """A patch-embedding kernel for another patch size, after FlexiViT (arXiv 2212.08013, section 3.4).

    Applies the pseudo-inverse of bilinear resizing: a patch resized to a larger size keeps its embedding.

    Args:
        kernel: (p, q, c, d).
        new_size: (p', q').

    Returns:
        (p', q', c, d), in the kernel's dtype.
    """
    if tuple(kernel.shape[:2]) == tuple(new_size):
        return kernel.copy()
    # Resizing and its pseudo-inverse factor into the axes: B x = R_h x R_w^T gives pinv(R_h^T), pinv(R_w^T).
    rows, columns = (np.linalg.pinv(METHODS["bilinear"](old, new).T) for old, new in zip(kernel.shape[:2], new_size))
    return np.einsum("yp,xq,pqcd->yxcd", rows, columns, kernel.astype("float64"), optimize=True).astype(kernel.dtype)


def adapt_kernel(kernel: np.ndarray, channels: int) -> np.ndarray:
    """The first convolution's kernel for another number of input channels.

    For one channel the kernels are summed, so a grey image gives the RGB model's output. For more channels they repeat
    in turn, scaled by old / new, so that the response to a uniform image stays the same.

    Args:
        kernel: (p, q, c, d).
        channels: the new c.

    Returns:
        (p, q, channels, d).
    """
    old = kernel.shape[2]
    if channels == 1:
        return kernel.sum(axis=2, keepdims=True)
    return kernel[:, :, np.arange(channels) % old] * np.float32(old / channels)


def adapt_constants(values: float | tuple, channels: int) -> float | tuple:
    """`mean` or `std` for another number of channels: averaged for one, repeated in turn for more; a number stays."""
    if not isinstance(values, (tuple, list)):
        return values
    if channels == 1:
        return float(np.mean(values))
    return tuple(values[i % len(values)] for i in range(channels))


def fold_normalisation(kernel: np.ndarray, bias: np.ndarray, old: tuple, new: tuple) -> tuple[np.ndarray, np.ndarray]:
    """A patch embedding for pixels normalised by `new`, equal to the given one on pixels normalised by `old`.

    (g - m) / s = (g - m') / s' * s' / s + (m' - m) / s: the factor goes into the kernel, the constant into the bias.

    Args:
        kernel, bias: (p, q, c, d) and (d,).
        old, new: (mean, std), each a number or one per channel.

    Returns:
        (kernel, bias).
    """
    c = kernel.shape[2]
    mean, std, new_mean, new_std = (np.broadcast_to(np.asarray(v, "float64"), (c,)) for v in (*old, *new))
    offset = np.einsum("pqcd,c->d", kernel.astype("float64"), (new_mean - mean) / std)
    scaled = kernel * (new_std / std)[:, None]
    return scaled.astype(kernel.dtype), (bias + offset).astype(bias.dtype)
