"""Position embeddings and patch kernels at another resolution: pure functions of arrays. The methods are those of layers/interpolation.py."""

import numpy as np

from keras_vit.layers.interpolation import METHODS, check_method


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
        old_grid, new_grid: (h, w), which need not be squares.
        prefix: number of tokens before the patches; their rows do not change.
        method: a row of METHODS: "google", "timm", "bicubic", "bilinear", "flexivit".

    Returns:
        (1, prefix + h'*w', d), in the table's dtype.

    Raises:
        ValueError: for an unknown method or a table whose number of rows does not match old_grid.
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


def resample_patches(kernel: np.ndarray, new_size: tuple[int, int]) -> np.ndarray:
    """A patch-embedding kernel for another patch size, after FlexiViT (arXiv 2212.08013, section 3.4).

    Applies the pseudo-inverse of bilinear resizing: a patch resized to a larger size has the embedding of the original patch.

    Args:
        kernel: (p, q, c, d).
        new_size: (p', q').

    Returns:
        (p', q', c, d), in the kernel's dtype.
    """
    if tuple(kernel.shape[:2]) == tuple(new_size):
        return kernel.copy()
    # Resizing factors into its two axes, and so does its pseudo-inverse: B x = R_h x R_w^T gives pinv(R_h^T), pinv(R_w^T).
    rows, columns = (np.linalg.pinv(METHODS["bilinear"](old, new).T) for old, new in zip(kernel.shape[:2], new_size))
    return np.einsum("yp,xq,pqcd->yxcd", rows, columns, kernel.astype("float64"), optimize=True).astype(kernel.dtype)
