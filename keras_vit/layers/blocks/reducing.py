"""A Transformer block that drops and merges tokens between its attention and its MLP."""

import functools
from typing import Any

import keras
from keras import ops

from keras_vit.layers.arguments import flag, integer
from keras_vit.layers.blocks.token_merging import match, merge, most_heeded, rows, similarity_of
from keras_vit.layers.blocks.transformer import TransformerBlock, branch_seeds, residual
from keras_vit.layers.registration import serializable


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
        metric = similarity_of(keys) if self.merged else None  # (b, n, c)
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
