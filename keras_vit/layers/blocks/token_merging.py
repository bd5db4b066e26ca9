"""A Transformer block that drops and merges tokens between its attention and its MLP, in fixed shapes.

Similar tokens merge (ToMe, arXiv 2210.09461), the least attended ones are dropped. Functions of tokens x (b, n, d), the
first `prefix` of which (class and distillation token, registers) always stay in place, and of sizes (b, n), integers:
the number of original tokens each is the mean of.
"""

import functools
from typing import Any, NamedTuple

import keras
from keras import ops

from keras_vit.layers.arguments import flag, integer
from keras_vit.layers.blocks.transformer import TransformerBlock, branch_seeds, residual
from keras_vit.layers.registration import serializable


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


def key_metric(keys: Any) -> Any:
    """The tokens' metric, their mean key over heads as a unit vector: (b, k, n, c) -> (b, n, c) float32."""
    metric = ops.mean(ops.cast(ops.stop_gradient(keys), "float32"), axis=1)
    return metric / ops.maximum(ops.norm(metric, axis=-1, keepdims=True), 1e-12)


def match(metric: Any, r: int, prefix: int) -> Matching:
    """The r most similar pairs of patches, by cosine (section 3 of the paper).

    Tokens alternate between two sets, A (with the first) and B. Each patch of A is drawn to the most similar one of B;
    the r closest pairs merge. The prefix and the rest of A and B stay, in order.

    Args:
        metric: (b, n, c), see `key_metric`.
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


@serializable
class ReducingBlock(TransformerBlock):
    """A TransformerBlock that drops the patches it attends to least, and merges the most similar of the rest.

    Args:
        kept: number of patches to keep; None for all.
        merged: number of patches then merged into others (ToMe, arXiv 2210.09461), at most half.
        prefix: number of tokens before the patches, which stay.
        class_token: rank patches by the first token's attention; else by all tokens'.
        heads, mlp_dim, **kwargs: see TransformerBlock.

    Input (b, n, d), and `sizes` (b, n), integers: how many tokens each stands for; None for 1. Output: tokens (b, m, d)
    and their sizes (b, m) with m = prefix + kept - merged. No masks.
    """

    def __init__(
        self,
        heads: int,
        mlp_dim: int,
        *,
        kept: int | None = None,
        merged: int = 0,
        prefix: int = 0,
        class_token: bool = True,
        **kwargs: Any,
    ):
        super().__init__(heads, mlp_dim, prefix=prefix, **kwargs)
        owner = "ReducingBlock"
        if self.positions is not None:
            raise ValueError(
                f'{owner}: positions="{self.positions}" need all patches in their places, but this block removes some.'
            )
        self.kept = None if kept is None else integer(kept, f"{owner}: kept")
        self.merged = integer(merged, f"{owner}: merged", least=0)
        self.class_token = flag(class_token, f"{owner}: class_token")
        if self.class_token and not self.prefix:
            raise ValueError("ReducingBlock: class_token=True needs a prefix of at least that token, got prefix=0.")

    def build(self, input_shape):
        n = input_shape[1]
        if n is None:
            raise ValueError(
                "ReducingBlock: the number of tokens must be fixed, got one that is known only at run time."
            )
        patches = n - self.prefix
        kept = patches if self.kept is None else self.kept
        if kept > patches or self.merged > kept // 2:
            raise ValueError(
                f"ReducingBlock: of {patches} patches {kept} are to be kept and {self.merged} merged into others: at"
                " most half of those kept can be merged."
            )
        super().build(input_shape)

    def call(self, x, sizes=None, training=False):
        seed = self.seed_generator.next() if training and self.seed_generator else None

        inner, path = branch_seeds(seed)

        def residuals(x):
            y, keys, weights = self.attention.attend(self.attention_norm(x), sizes=sizes, training=training, seed=inner)
            x = x + self.skip(self.attention_scale(y), training=training, seed=path)
            each = ops.ones(ops.shape(x)[:2], "int32") if sizes is None else sizes
            x, each = self._reduced(x, each, keys, weights)
            mlp = functools.partial(self._mlp, training=training, seed=seed)
            return residual(x, self.mlp_norm, mlp, training), each

        return keras.remat(residuals)(x) if self.remat and training else residuals(x)

    def _reduced(self, x, sizes, keys, weights):
        """Tokens and sizes after dropping and merging: (b, n, d), (b, n) -> (b, m, d), (b, m)."""
        metric = key_metric(keys) if self.merged else None  # (b, n, c)
        if self.kept is not None:
            indices = most_heeded(weights, self.kept, self.prefix, self.class_token)
            x, sizes = rows(x, indices), ops.take_along_axis(sizes, indices, axis=1)
            metric = rows(metric, indices) if self.merged else None
        if self.merged:
            merged, sizes = merge(x, sizes, match(metric, self.merged, self.prefix))
            x = ops.cast(merged, x.dtype)
        return x, sizes

    def compute_mask(self, inputs, previous_mask):
        if any(mask is not None for mask in keras.tree.flatten(previous_mask)):
            raise ValueError(
                "ReducingBlock does not support masks, but its input has one: the block drops and merges tokens."
            )

    def compute_output_shape(self, input_shape, sizes_shape=None, **_):
        b, n, d = input_shape
        m = (n if self.kept is None else self.prefix + self.kept) - self.merged
        return (b, m, d), (b, m)

    def compute_output_spec(self, x, sizes=None, training=False):
        tokens, sizes = self.compute_output_shape(x.shape)
        return keras.KerasTensor(tokens, self.compute_dtype), keras.KerasTensor(sizes, "int32")

    def attention_weights(self, x: Any, mask: Any = None, attention_mask: Any = None, sizes: Any = None) -> Any:
        """The block's attention weights for its input x, masks and sizes: (b, n, d), (b, n) -> (b, k, n, n)."""
        return self.attention.attention_weights(self.attention_norm(x), mask, attention_mask, sizes)
