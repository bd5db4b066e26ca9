"""Scaled products of queries and keys in groups of patches, their softmax, and the weighted values.

The tokens before the patches are keys of every group, and attend to all tokens. Letters as in groups.py; p tokens
before the patches, k heads, n tokens.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from keras import ops

from keras_vit.layers.attention.groups import Groups
from keras_vit.layers.attention.token_masks import causal_softmax, masked_softmax


def _product(x, y):
    """(b, m, s, c), (b, m or 1, c, t) -> (b, m, s, t). Groups that share one y are rows of one matrix."""
    if x.shape[1] == y.shape[1]:
        return ops.matmul(x, y)
    _, m, s, c = x.shape
    rows = ops.reshape(x, (-1, 1, m * s, c))  # (b, m, s, c) -> (b, 1, m*s, c)
    return ops.reshape(ops.matmul(rows, y), (-1, m, s, y.shape[-1]))  # (b, 1, m*s, t) -> (b, m, s, t)


def _scores(q, keys):
    """(b, m, s, c), (b, m or 1, t, c) -> (b, m, s, t)."""
    return _product(q, ops.transpose(keys, (0, 1, 3, 2)))


def _joined(first, groups):
    """Keys or values of groups, each with a copy of those before the patches: (b, p, c), (b, m, t, c)."""
    if not first.shape[1]:
        return groups
    return ops.concatenate([ops.repeat(first[:, None], groups.shape[1], axis=1), groups], axis=2)  # (b, m, p + t, c)


def _attended_patches(q, k, v, first, groups, mask, drop):
    """The heads' outputs for patches (b, h*w, c); `first` are the keys and values before the patches, (b, p, c)."""
    queries, keys, values = groups.queries(q), groups.keys(k), groups.keys(v)  # (b, m, s, c), [(b, m, t, c)]
    keys[0], values[0] = _joined(first[0], keys[0]), _joined(first[1], values[0])
    scores = [groups.arranged(_scores(groups.arranged(queries, a), each), a) for a, each in enumerate(keys)]
    counts = [each.shape[-1] for each in scores]
    scores = scores[0] if len(scores) == 1 else ops.concatenate(scores, axis=-1)  # (b, m, s, t)
    weights = drop(masked_softmax(scores, None if mask is None else ops.convert_to_tensor(mask)))
    parts = [weights] if len(counts) == 1 else ops.split(weights, np.cumsum(counts)[:-1].tolist(), axis=-1)
    pairs = enumerate(zip(parts, values))
    y = sum(groups.arranged(_product(groups.arranged(part, a), each), a) for a, (part, each) in pairs)
    return groups.patches(y)


def grouped_attention(
    q: Any, k: Any, v: Any, groups: Groups, mask: np.ndarray | None, drop: Callable, drop_first: Callable
) -> Any:
    """The heads' outputs of attention in groups.

    Args:
        q, k, v: (b, k, n, c), the queries scaled; n is known.
        groups: of the last h*w tokens.
        mask: `groups.mask_of(groups, p)`.
        drop, drop_first: dropout of the weights of patches, and of the tokens before them.

    Returns:
        (b, k, n, c).
    """
    heads, n, c = q.shape[1:]
    p = n - groups.grid[0] * groups.grid[1]
    q, k, v = (ops.reshape(x, (-1, n, c)) for x in (q, k, v))  # (b, k, n, c) -> (b*k, n, c)
    y = _attended_patches(q[:, p:], k[:, p:], v[:, p:], (k[:, :p], v[:, :p]), groups, mask, drop)
    if p:
        seen = p if groups.causal else n
        scores = ops.matmul(q[:, :p], ops.transpose(k[:, :seen], (0, 2, 1)))  # (b*k, p, n)
        weights = causal_softmax(scores, p) if groups.causal else ops.softmax(scores)
        y = ops.concatenate([ops.matmul(drop_first(weights), v[:, :seen]), y], axis=1)
    return ops.reshape(y, (-1, heads, n, c))  # (b*k, n, c) -> (b, k, n, c)
