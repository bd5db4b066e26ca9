"""RoIAlign (Mask R-CNN, arXiv 1703.06870, section 3): a small map of fixed size for each box, cut out of a larger one.

Boxes are parallel to the axes, so bilinear interpolation and the mean over a bin's samples act on rows and on columns
in turn: two matrix products, which suit accelerators better than gathers, and scatters in the gradient.

Letters: b images, r boxes, h w the map's grid, c channels, s rows and columns of a cut.
"""

from typing import Any

from keras import ops


def _shares(start, end, cells, size, samples):
    """The share of each of n cells in each of s bins between start and end, (b, r) fractions: (b, r, s, n)."""
    total = 0.0
    for i in range(samples):
        place = (ops.arange(size, dtype="float32") + (i + 0.5) / samples) / size  # (s,)
        at = (start[..., None] + (end - start)[..., None] * place) * cells - 0.5  # (b, r, s), from a cell's centre
        at = ops.clip(at, 0.0, cells - 1.0)
        total = total + ops.relu(1.0 - ops.abs(at[..., None] - ops.arange(cells, dtype="float32")))
    return total / samples


def roi_align(x: Any, boxes: Any, size: int = 7, samples: int = 2) -> Any:
    """Cuts boxes out of maps: (b, h, w, c) -> (b, r, size, size, c).

    The values equal torchvision's `roi_align(aligned=True)` for boxes in the image; beyond it the edge's values
    continue. No gradient reaches the boxes.

    Args:
        x: (b, h, w, c), h, w and c static.
        boxes: (b, r, 4), top, left, bottom, right as fractions of the image.
        size: rows and columns of a cut.
        samples: in each bin, vertically and horizontally, of which it is the mean.
    """
    _, h, w, c = x.shape
    r = boxes.shape[1] or ops.shape(boxes)[1]
    boxes = ops.stop_gradient(ops.cast(boxes, "float32"))
    top, left, bottom, right = (boxes[..., i] for i in range(4))
    rows = ops.cast(_shares(top, bottom, h, size, samples), x.dtype)  # (b, r, s, h)
    columns = ops.cast(_shares(left, right, w, size, samples), x.dtype)  # (b, r, s, w)
    cut = ops.matmul(ops.reshape(rows, (-1, r * size, h)), ops.reshape(x, (-1, h, w * c)))  # (b, r*s, w*c)
    cut = ops.transpose(ops.reshape(cut, (-1, r, size, w, c)), (0, 1, 3, 2, 4))  # (b, r*s, w*c) -> (b, r, w, s, c)
    cut = ops.matmul(columns, ops.reshape(cut, (-1, r, w, size * c)))  # (b, r, s, w) (b, r, w, s*c) -> (b, r, s, s*c)
    return ops.transpose(ops.reshape(cut, (-1, r, size, size, c)), (0, 1, 3, 2, 4))  # rows before columns
