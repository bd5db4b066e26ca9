"""Learned positions of images on different grids in one batch, as SigLIP 2's NaFlex models (arXiv 2502.14786)."""

from typing import Any

from keras import ops

from keras_vit.layers.positions.embeddings import KINDS, AddPositionEmbs
from keras_vit.layers.registration import serializable


def axis_weights(places: Any, sides: Any, old: int) -> Any:
    """Bilinear interpolation with antialiasing of one axis, as the method "flexivit", for sides known at run time.

    Args:
        places: (b, n) float32. Each token's row (or column) in its image's grid.
        sides: (b, 1) float32. Rows (or columns) of that grid.
        old: rows (or columns) of the table.

    Returns:
        (b, n, old): the weights of the table's rows, with the sum 1.
    """
    scale = old / sides  # (b, 1)
    centres = (places + 0.5) * scale - 0.5  # (b, n)
    distances = ops.abs(ops.arange(old, dtype="float32") - centres[..., None])  # (b, n, old)
    weights = ops.maximum(1.0 - distances / ops.maximum(scale, 1.0)[..., None], 0.0)
    return weights / ops.sum(weights, axis=-1, keepdims=True)


@serializable
class AnyGridPositions(AddPositionEmbs):
    """Adds a learned table, interpolated to each image's own grid; the tokens beyond an image's patches are masked.

    Args:
        grid, prefix, kind, stddev, **kwargs: as in AddPositionEmbs, whose weights it has; `kind` is a learned one.

    Inputs: tokens (b, prefix + n, d), the patches row by row from the first, and grids (b, 2), each image's rows and
    columns. Output (b, prefix + n, d), with a Keras mask of the tokens before the patches and of h * w patches. The
    table is interpolated in float32.
    """

    def __init__(self, grid: tuple[int, int], prefix: int = 0, kind: str = "learned", **kwargs: Any):
        super().__init__(grid, prefix, kind, **kwargs)
        self.input_spec = None

    def build(self, input_shape):
        self.embedding = KINDS[self.kind](self, self.grid, self.prefix, input_shape[0][-1])

    def call(self, inputs):
        x, grids = inputs
        rows, columns = ops.split(ops.maximum(ops.cast(grids, "float32"), 1.0), 2, axis=1)  # (b, 1)
        places = ops.arange(x.shape[1] - self.prefix, dtype="float32")[None]  # (1, n)
        places = ops.where(places < rows * columns, places, 0.0)  # (b, n)
        row = ops.floor((places + 0.5) / columns)
        by_row = axis_weights(row, rows, self.grid[0])  # (b, n, h)
        by_column = axis_weights(places - row * columns, columns, self.grid[1])  # (b, n, w)
        weights = by_row[..., :, None] * by_column[..., None, :]  # (b, n, h, w)
        weights = ops.reshape(weights, (-1, places.shape[1], self.grid[0] * self.grid[1]))  # (b, n, h*w)
        table = ops.cast(self.table()[0], "float32")  # (prefix + h*w, d)
        positions = ops.cast(ops.matmul(weights, table[self.prefix :]), x.dtype)  # (b, n, d)
        if not self.prefix:
            return x + positions
        before = x[:, : self.prefix] + ops.cast(table[: self.prefix], x.dtype)
        return ops.concatenate([before, x[:, self.prefix :] + positions], axis=1)

    def compute_mask(self, inputs, previous_mask=None):
        x, grids = inputs
        last = self.prefix + ops.prod(ops.cast(grids, "int32"), axis=1, keepdims=True)  # (b, 1)
        return ops.less(ops.arange(x.shape[1])[None], last)  # (b, prefix + n)

    def compute_output_shape(self, input_shape):
        return input_shape[0]
