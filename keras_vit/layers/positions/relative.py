"""Relative positions: terms of the attention scores by two patches' offset.

Class token, distillation token and registers have no offset. They share three rows, as in BEiT (arXiv 2106.08254): for
a query before the patches and a patch as key, for a patch and a key before the patches, and for two tokens before them.
"""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.layers.arguments import integer
from keras_vit.layers.embedding.patches import check_tokens, pair
from keras_vit.layers.registration import serializable

_STDDEV = 0.02  # of the initial values, as in Swin's code (arXiv 2103.14030)


def skewed(x: Any) -> Any:
    """Scores by offset as scores by key, without a gather (arXiv 1809.04281, section 3.4.1).

    Args:
        x: (b, k, n, 2n - 1), the last axis over offsets, key minus query, from 1 - n to n - 1.

    Returns:
        (b, k, n, n), [..., i, j] = x[..., i, j - i + n - 1].
    """
    k, n = x.shape[1:3]
    x = ops.pad(x, ((0, 0), (0, 0), (0, 0), (0, 1)))  # (b, k, n, 2n)
    x = ops.reshape(x, (-1, k, 2 * n * n))[..., n - 1 : n - 1 + n * (2 * n - 1)]  # each row begins one place earlier
    return ops.reshape(x, (-1, k, n, 2 * n - 1))[..., :n]  # (b, k, n, n)


def _around(patches, rows, prefix):
    """Scores between all tokens.

    Args:
        patches: (b, k, n, n), between patches.
        rows: scores of the three pairs with other tokens: (b, k, prefix, 1), (b, k, n, 1), (b, k, prefix, 1).
        prefix: number of tokens before the patches.
    """
    n = patches.shape[-1]
    to_patches, from_patches, among = rows
    first = ops.concatenate([ops.repeat(among, prefix, axis=-1), ops.repeat(to_patches, n, axis=-1)], axis=-1)
    rest = ops.concatenate([ops.repeat(from_patches, prefix, axis=-1), patches], axis=-1)
    return ops.concatenate([first, rest], axis=2)  # (b, k, prefix + n, prefix + n)


class _Relative(keras.layers.Layer):
    """The base of both kinds: arguments, and initial values."""

    def __init__(self, grid: tuple[int, int], prefix: int = 0, **kwargs: Any):
        super().__init__(**kwargs)
        self.grid = pair(grid, f"{type(self).__name__}: grid")
        self.prefix = integer(prefix, f"{type(self).__name__}: prefix", least=0)
        self.input_spec = keras.layers.InputSpec(ndim=4)

    def _add_rows(self, shape, name):
        return self.add_weight(shape=shape, initializer=keras.initializers.RandomNormal(stddev=_STDDEV), name=name)

    def get_config(self):
        return {**super().get_config(), "grid": self.grid, "prefix": self.prefix}


@serializable
class RelativeAttention(_Relative):
    """1-D relative attention (arXiv 2010.11929, appendix D.4): each offset along the rows has an embedding, an extra
    key.

    The paper does not say what heads share: here the embedding is as wide as all heads' keys together, and split like
    them.

    Args:
        grid: (h, w) patches.
        prefix: number of tokens before the patches.

    Input: queries (b, k, n, c), scaled. Output: addition to the scores, (b, k, n, n). Row j - i + h w - 1 of
    `embedding`, (2 h w - 1, k, c), is for patch i as query and patch j as key.
    """

    def build(self, input_shape):
        check_tokens(input_shape[2], self.prefix, self.grid, "RelativeAttention")
        _, k, _, c = input_shape
        n = self.grid[0] * self.grid[1]
        self.embedding = self._add_rows((2 * n - 1, k, c), "embedding")
        self.prefix_embedding = self._add_rows((3, k, c), "prefix_embedding") if self.prefix else None

    def call(self, queries):
        check_tokens(queries.shape[2], self.prefix, self.grid, "RelativeAttention")
        scores = skewed(_products(queries[:, :, self.prefix :], self.embedding))
        if not self.prefix:
            return scores
        before, patches = queries[:, :, : self.prefix], queries[:, :, self.prefix :]
        own = ops.convert_to_tensor(self.prefix_embedding)
        return _around(
            scores, [_products(q, own[i : i + 1]) for i, q in enumerate((before, patches, before))], self.prefix
        )

    def compute_output_shape(self, input_shape):
        b, k, n, _ = input_shape
        return (b, k, n, n)


def _products(queries, rows):
    """Products of queries (b, k, n, c) and rows (m, k, c): (b, k, n, m)."""
    _, k, n, c = queries.shape
    rows = ops.transpose(ops.cast(rows, queries.dtype), (1, 2, 0))  # (m, k, c) -> (k, c, m)
    queries = ops.reshape(ops.transpose(queries, (1, 0, 2, 3)), (k, -1, c))  # (b, k, n, c) -> (k, b*n, c)
    products = ops.reshape(ops.matmul(queries, rows), (k, -1, n, rows.shape[-1]))  # (k, b*n, m) -> (k, b, n, m)
    return ops.transpose(products, (1, 0, 2, 3))  # (b, k, n, m)


def between_patches(bias: Any, grid: tuple[int, int]) -> Any:
    """A bias by 2-D offset as a term of the scores.

    Args:
        bias: (2h - 1, 2w - 1, k), [y - y' + h - 1, x - x' + w - 1] for a query in row y, column x and a key in y', x'.
        grid: (h, w).

    Returns:
        (1, k, h*w, h*w), queries before keys.
    """
    rows, columns = (np.arange(m)[:, None] - np.arange(m) + m - 1 for m in grid)  # (h, h), (w, w): of query and key
    x = ops.take(bias, rows.astype("int32"), axis=0)  # (h, h, 2w - 1, k)
    x = ops.take(x, columns.astype("int32"), axis=2)  # (h, h, w, w, k)
    n = grid[0] * grid[1]
    return ops.reshape(ops.transpose(x, (4, 0, 2, 1, 3)), (1, -1, n, n))  # (k, h, w, h, w) -> (1, k, n, n)


@serializable
class RelativeBias(_Relative):
    """A number per head and 2-D offset of two patches (Swin, arXiv 2103.14030; BEiT, arXiv 2106.08254).

    Args:
        grid: (h, w) patches.
        prefix: number of tokens before the patches.

    Input: queries (b, k, n, c), of which only the shape counts. Output: addition to the scores, (1, k, n, n). Of
    `bias`, (2h - 1, 2w - 1, k), [y - y' + h - 1, x - x' + w - 1] is for the patch in row y and column x as query and
    that in y', x' as key, as in Swin and BEiT.
    """

    def build(self, input_shape):
        check_tokens(input_shape[2], self.prefix, self.grid, "RelativeBias")
        k, (h, w) = input_shape[1], self.grid
        self.bias = self._add_rows((2 * h - 1, 2 * w - 1, k), "bias")
        self.prefix_bias = self._add_rows((3, k), "prefix_bias") if self.prefix else None

    def call(self, queries):
        check_tokens(queries.shape[2], self.prefix, self.grid, "RelativeBias")
        h, w = self.grid
        x = between_patches(ops.cast(self.bias, queries.dtype), self.grid)
        if not self.prefix:
            return x
        own = ops.cast(self.prefix_bias, queries.dtype)
        counts = (self.prefix, h * w, self.prefix)
        return _around(
            x, [ops.repeat(own[i][None, :, None, None], m, axis=2) for i, m in enumerate(counts)], self.prefix
        )

    def compute_output_shape(self, input_shape):
        _, k, n, _ = input_shape
        return (1, k, n, n)
