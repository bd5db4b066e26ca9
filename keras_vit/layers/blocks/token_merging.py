"""Token reduction in fixed shapes: similar tokens merge (ToMe, arXiv 2210.09461), the least attended ones are dropped.

Functions of tokens x (b, n, d), the first `prefix` of which (class and distillation token, registers) always stay in
place, and of sizes (b, n), integers: the number of original tokens each is the mean of.
"""

from typing import Any, NamedTuple

import keras
from keras import ops


class Matching(NamedTuple):
    """Which tokens stay, and which merge into which.

    Attributes:
        stays: (b, n - r), indices of tokens.
        merged: (b, r), indices of tokens.
        target: (b, r), where each is merged, as a place among those that stay.
    """

    stays: Any
    merged: Any
    target: Any


def rows(x: Any, indices: Any) -> Any:
    """Tokens by index: (b, n, d), (b, m) -> (b, m, d), from one long list, which is faster than along an axis."""
    b, n, d = ops.shape(x)[0], x.shape[1], x.shape[2]
    places = indices + ops.cast(n * ops.arange(b)[:, None], indices.dtype)
    return ops.take(ops.reshape(x, (-1, d)), places, axis=0)  # (b, n, d) -> (b*n, d) -> (b, m, d)


def log_sizes(sizes: Any) -> Any:
    """log(sizes), proportional attention's addition to the scores: (b, n) integers -> (b, n) float32."""
    return ops.log(ops.cast(sizes, "float32"))


def similarity_of(keys: Any) -> Any:
    """The tokens' metric, their mean key over heads as a unit vector: (b, k, n, c) -> (b, n, c) float32."""
    metric = ops.mean(ops.cast(ops.stop_gradient(keys), "float32"), axis=1)
    return metric / ops.maximum(ops.norm(metric, axis=-1, keepdims=True), 1e-12)


def match(metric: Any, r: int, prefix: int) -> Matching:
    """The r most similar pairs of patches, by cosine (section 3 of the paper).

    Tokens alternate between two sets, A (with the first) and B. Each patch of A is drawn to the most similar one of B;
    the r closest pairs merge. The prefix and the rest of A and B stay, in order.

    Args:
        metric: (b, n, c), see `similarity_of`.
        r: number of pairs, at most half of the patches.
        prefix: number of tokens before the patches.
    """
    n = metric.shape[1]
    a, b = prefix + prefix % 2, prefix + 1 - prefix % 2  # the first patches of A and B
    scores = ops.matmul(metric[:, a::2], ops.transpose(metric[:, b::2], (0, 2, 1)))  # (b, i, j)
    order = ops.cast(ops.argsort(-ops.max(scores, axis=-1), axis=-1), "int32")  # (b, i)
    drawn_to = ops.cast(ops.argmax(scores, axis=-1), "int32")  # (b, i)
    always = ops.zeros_like(order[:, :1])  # (b, 1)
    rest = ops.sort(order[:, r:], axis=-1) * 2 + a
    stays = ops.concatenate(
        [always + ops.arange(prefix, dtype="int32"), rest, always + ops.arange(b, n, 2, dtype="int32")], axis=1
    )
    target = ops.take_along_axis(drawn_to, order[:, :r], axis=1) + prefix + rest.shape[1]
    return Matching(stays, order[:, :r] * 2 + a, target)


def merge(x: Any, sizes: Any, matching: Matching) -> tuple[Any, Any]:
    """Merges pairs to means of all their tokens, in float32: (b, n, d), (b, n) -> (b, n - r, d), (b, n - r)."""
    wide = keras.backend.result_type(x.dtype, "float32")
    kept_sizes = ops.take_along_axis(sizes, matching.stays, axis=1)
    merged_sizes = ops.take_along_axis(sizes, matching.merged, axis=1)
    kept_x, merged_x = (ops.cast(rows(x, indices), wide) for indices in (matching.stays, matching.merged))
    kept, merged = (ops.cast(s, wide)[..., None] for s in (kept_sizes, merged_sizes))  # (b, m, 1), (b, r, 1)
    # A matrix product sums in a fixed order where several merge into one.
    into = ops.transpose(ops.one_hot(matching.target, kept_x.shape[1], dtype=wide), (0, 2, 1))  # (b, r, m) -> (b, m, r)
    total = kept + ops.matmul(into, merged)  # (b, m, 1)
    x = kept_x * (kept / total) + ops.matmul(into / total, merged_x * merged)
    return x, ops.cast(ops.round(total[..., 0]), sizes.dtype)


def most_heeded(weights: Any, count: int, prefix: int, class_token: bool) -> Any:
    """The prefix and the `count` most attended patches, as ordered indices: (b, k, n, n) -> (b, prefix + count).

    Attention is the class token's, as in EViT (arXiv 2202.07800), or without one all tokens', averaged over heads.
    """
    heeded = weights[:, :, 0] if class_token else ops.mean(weights, axis=2)  # (b, k, n)
    saliency = ops.mean(ops.cast(ops.stop_gradient(heeded), "float32"), axis=1)[:, prefix:]  # (b, patches)
    return with_prefix(ops.argsort(-saliency, axis=-1)[:, :count], prefix)


def with_prefix(patches: Any, prefix: int) -> Any:
    """Patch indices as token indices, in order, after the prefix: (b, m) -> (b, prefix + m)."""
    chosen = ops.sort(ops.cast(patches, "int32"), axis=-1) + prefix
    return ops.concatenate([ops.zeros_like(chosen[:, :1]) + ops.arange(prefix, dtype="int32"), chosen], axis=1)
