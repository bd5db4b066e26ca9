"""Position embeddings and patch kernels at another resolution: pure functions of arrays.

Code bases interpolate differently, enough to break parity. Each method is one row of METHODS: a function (old, new) -> (new, old)
interpolation matrix of one axis; both axes are interpolated in turn.
"""

from collections.abc import Callable

import numpy as np

from keras_vit.io.suggest import did_you_mean


def _align_corners(old, new):
    """Linear interpolation with the end points fixed, as scipy.ndimage.zoom(order=1) samples."""
    samples = np.linspace(0, old - 1, new) if new > 1 else np.zeros(1)
    low = np.minimum(np.floor(samples).astype(int), max(old - 2, 0))
    high = np.minimum(low + 1, old - 1)
    fraction = samples - low
    weights = np.zeros((new, old))
    np.add.at(weights, (np.arange(new), low), 1.0 - fraction)
    np.add.at(weights, (np.arange(new), high), fraction)
    return weights


def _triangle(x):
    """The linear kernel."""
    return np.maximum(1.0 - np.abs(x), 0.0)


def _cubic(a):
    """Keys' cubic kernel with parameter a."""

    def kernel(x):
        x = np.abs(x)
        near = ((a + 2) * x - (a + 3)) * x**2 + 1
        far = a * (((x - 5) * x + 8) * x - 4)
        return np.where(x < 1, near, np.where(x < 2, far, 0.0))

    return kernel


def _half_pixel(old, new, kernel, radius):
    """Interpolation at pixel centres; pixels outside the grid have the value of the nearest one inside."""
    samples = (np.arange(new) + 0.5) * old / new - 0.5
    first = np.floor(samples).astype(int) - radius + 1
    weights = np.zeros((new, old))
    for tap in range(2 * radius):
        index = first + tap
        np.add.at(weights, (np.arange(new), np.clip(index, 0, old - 1)), kernel(samples - index))
    return weights


def _antialiased(old, new, kernel, radius):
    """Interpolation at pixel centres with a kernel as wide as a new pixel; pixels outside the grid have no weight (as in PIL)."""
    scale = max(old / new, 1.0)
    samples = (np.arange(new) + 0.5) * old / new - 0.5
    distance = (np.arange(old)[None] - samples[:, None]) / scale  # (new, old)
    weights = np.where(np.abs(distance) < radius, kernel(distance), 0.0)
    return weights / weights.sum(axis=1, keepdims=True)


METHODS: dict[str, Callable[[int, int], np.ndarray]] = {
    # Bilinear, corners aligned: google-research/vision_transformer and big_vision.
    "google": _align_corners,
    # Bicubic with antialiasing: timm on state dicts; DINOv2 with registers.
    "timm": lambda old, new: _antialiased(old, new, _cubic(-0.5), 2),
    # Bicubic without antialiasing: Hugging Face's ViT, DeiT, DINOv2, and torch's interpolate.
    "bicubic": lambda old, new: _half_pixel(old, new, _cubic(-0.75), 2),
    # Half-pixel bilinear: timm on Google's .npz files.
    "bilinear": lambda old, new: _half_pixel(old, new, _triangle, 1),
    # Bilinear with antialiasing, jax.image.resize: FlexiViT within the model.
    "flexivit": lambda old, new: _antialiased(old, new, _triangle, 1),
}


def check_method(method: str) -> None:
    """Raises ValueError unless `method` is one of METHODS."""
    if method not in METHODS:
        raise ValueError(f'Unknown resampling method "{method}".{did_you_mean(method, METHODS)} Valid: {", ".join(METHODS)}.')


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


def resample_axis(table: np.ndarray, length: int, method: str = "google") -> np.ndarray:
    """The embeddings of rows or columns, (h, d), for another number of them, in the table's dtype."""
    if len(table) == length:
        return table.copy()
    return (METHODS[method](len(table), length) @ table.astype("float64")).astype(table.dtype)


def resample_offsets(
    bias: np.ndarray, old_grid: tuple[int, int], new_grid: tuple[int, int], method: str = "google"
) -> np.ndarray:
    """A bias by 2-D offset for another patch grid.

    The same share of the image has the same bias; the offset 0 stays where it is. Both halves of an axis are interpolated, (2h - 1) values in all.

    Args:
        bias: (2h - 1, 2w - 1, k) for old_grid = (h, w).
        old_grid, new_grid: (h, w).
        method: a row of METHODS.

    Returns:
        (2h' - 1, 2w' - 1, k), in the bias's dtype.

    Raises:
        ValueError: for a bias of another grid than old_grid.
    """
    if bias.shape[:2] != tuple(2 * m - 1 for m in old_grid):
        raise ValueError(f"The bias has {bias.shape[0]} x {bias.shape[1]} offsets, which are not those of a grid of {old_grid}.")
    if tuple(old_grid) == tuple(new_grid):
        return bias.copy()
    rows, columns = (METHODS[method](2 * old - 1, 2 * new - 1) for old, new in zip(old_grid, new_grid))
    return np.einsum("yh,xw,hwk->yxk", rows, columns, bias.astype("float64"), optimize=True).astype(bias.dtype)


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
