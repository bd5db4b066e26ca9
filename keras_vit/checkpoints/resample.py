"""Position embeddings at another resolution: pure functions of arrays.

Conventions differ between code bases, enough to break parity: a method is one row of METHODS, named after whose it is.
"""

import numpy as np


def _align_corners_weights(old, new):
    """The (new, old) matrix of linear interpolation with the end points fixed, as scipy.ndimage.zoom(order=1) samples."""
    places = np.linspace(0, old - 1, new) if new > 1 else np.zeros(1)
    low = np.minimum(np.floor(places).astype(int), max(old - 2, 0))
    high = np.minimum(low + 1, old - 1)
    fraction = places - low
    weights = np.zeros((new, old))
    np.add.at(weights, (np.arange(new), low), 1.0 - fraction)
    np.add.at(weights, (np.arange(new), high), fraction)
    return weights


# A method gives one axis' (new, old) interpolation matrix; both axes are interpolated in turn.
METHODS = {"google": _align_corners_weights}


def resample_positions(table, old_grid, new_grid, prefix=0, method="google"):
    """A position table for another patch grid.

    Args:
        table: (1, prefix + h*w, d) for old_grid = (h, w).
        old_grid, new_grid: (h, w), rectangles too.
        prefix: tokens before the patches, which stay as they are.
        method: "google" (bilinear, corners aligned).

    Returns:
        (1, prefix + h'*w', d), in the table's dtype.

    Raises:
        ValueError: for an unknown method or a table that does not fit old_grid.
    """
    if method not in METHODS:
        raise ValueError(f'Unknown resampling method "{method}". Valid: {", ".join(METHODS)}.')
    if table.shape[1] != prefix + old_grid[0] * old_grid[1]:
        raise ValueError(
            f"The table has {table.shape[1]} rows, expected {prefix} + {old_grid[0]} x {old_grid[1]} = "
            f"{prefix + old_grid[0] * old_grid[1]}."
        )
    if tuple(old_grid) == tuple(new_grid):
        return table.copy()
    patches = table[0, prefix:].reshape(*old_grid, -1).astype("float64")  # (h, w, d)
    rows, columns = (METHODS[method](old, new) for old, new in zip(old_grid, new_grid))
    patches = np.einsum("yh,xw,hwd->yxd", rows, columns, patches)  # (h', w', d)
    patches = patches.reshape(1, -1, table.shape[-1]).astype(table.dtype)
    return np.concatenate([table[:, :prefix], patches], axis=1)
