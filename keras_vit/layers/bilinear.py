"""Values of feature maps between their places: pure functions of gathers, with exact gradients.

Letters: b maps, h w places, c channels, n points.
"""

from typing import Any

from keras import ops


def rows_at(x: Any, index: Any) -> Any:
    """Rows of x by number, for each map separately: (b, m, c), (b, n) integers from 0 to m - 1 -> (b, n, c)."""
    (_, m, c), b = x.shape, ops.shape(x)[0]
    first = ops.arange(b, dtype="int32")[:, None] * m  # (b, 1)
    return ops.take(ops.reshape(x, (-1, c)), ops.cast(index, "int32") + first, axis=0)


def sampled(maps: Any, points: Any) -> Any:
    """Bilinear samples of maps at points, as torch's grid_sample with zeros around the map and align_corners=False.

    Args:
        maps: (b, h, w, c) of static height, width and channels.
        points: (b, n, 2), x and y as fractions of the map: the centre of the first place is at (0.5 / w, 0.5 / h).

    Returns:
        (b, n, c), in the dtype of the maps.
    """
    _, h, w, c = maps.shape
    points = ops.cast(points, "float32")
    x, y = points[..., 0] * w - 0.5, points[..., 1] * h - 0.5  # (b, n)
    left, top = ops.floor(x), ops.floor(y)
    right_share, lower_share = x - left, y - top
    # The four places around each point, (b, 4, n).
    rows, columns = ops.stack([top, top, top + 1, top + 1], axis=1), ops.stack([left, left + 1] * 2, axis=1)
    weights = ops.stack([(1 - lower_share)] * 2 + [lower_share] * 2, axis=1)
    weights = weights * ops.stack([1 - right_share, right_share] * 2, axis=1)
    inside = (rows >= 0) & (rows < h) & (columns >= 0) & (columns < w)
    weights = ops.cast(ops.where(inside, weights, 0.0), maps.dtype)
    places = ops.clip(rows, 0, h - 1) * w + ops.clip(columns, 0, w - 1)
    n = points.shape[1]
    found = rows_at(ops.reshape(maps, (-1, h * w, c)), ops.reshape(places, (-1, 4 * n)))  # (b, 4n, c)
    return ops.sum(ops.reshape(found, (-1, 4, n, c)) * weights[..., None], axis=1)
