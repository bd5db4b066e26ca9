"""Multi-head self-attention (appendix A of arXiv 2010.11929).

The heads are an axis before the tokens, and the products are ordinary matrix products: the fastest form measured on
CPUs (docs/performance.md).

With JAX on one GPU, attention among at least 128 tokens in 16 bits, without masks, is cuDNN's kernel: ViT-B/16 trains
1.43 times as fast (docs/performance.md). The environment variable KERAS_VIT_DOT_PRODUCT_ATTENTION, read when a model is
made, is "check" by default: the kernel is first compared with ordinary operations. With "on" all attention without
weights is `keras.ops.dot_product_attention`, on every backend, with masks too; with "off" none is.
"""

import functools
from typing import Any

import keras
from keras import ops

from keras_vit.layers.arguments import choice, flag, integer, number, rate, setting
from keras_vit.layers.attention.patterns import pattern_text
from keras_vit.layers.attention.token_masks import attendable, causal, causal_softmax, masked_softmax, token_count
from keras_vit.layers.backend import cudnn_attends, dot_product_attention, with_even_count
from keras_vit.layers.dense import ComposedLayer, Dense
from keras_vit.layers.dropout import Dropout, fold_in
from keras_vit.layers.embedding.patches import check_tokens, pair
from keras_vit.layers.positions.rotary import ROTARY, RotaryPositions
from keras_vit.layers.registration import serializable

# Positions inside attention rather than added to the tokens.
RELATIVE = ("relative", "relative2d")  # added to the scores
POSITIONS = (*RELATIVE, *ROTARY)


@serializable
class MultiHeadSelfAttention(ComposedLayer):
    """softmax(q k^T / sqrt(c)) v in `heads` heads, then a linear map back to the input's width.

    Args:
        heads: number of heads k.
        head_dim: width c of a head; None for width / heads.
        qkv_bias: whether query, key and value have biases.
        qk_norm: layer-normalise queries and keys over the c values of each head (arXiv 2302.05442).
        epsilon: of those normalisations.
        dropout: rate after the output map.
        attention_dropout: rate on the attention weights.
        positions: "relative" or "relative2d" (layers.RelativeAttention, RelativeBias: a term of the scores), "rope2d"
            (layers.RotaryPositions), or None.
        grid, prefix: for these, the (h, w) patches and the number of tokens before them.
        causal: whether each token attends only to itself and earlier ones.
        key_bias: False for biases of query and value alone: the key's would add the same to all scores of a query.
        rope_rescale, rope_grid: the rotations' `rescale` and `reference`, see RotaryPositions.
        pattern: which patches each attends to: "window(14)", "rows", "columns"... (layers/attention/patterns.py); None
            for all. It needs `grid`. With masks the layer computes attention among all tokens, which saves
            nothing.

    Input and output (b, n, d). `attention_weights(x)` returns the attention weights (b, k, n, n). Masks, of the call
    and of `attention_weights`, are boolean or integers, True or 1 for yes:

    - mask (b, n): which tokens exist. Keras passes its own, such as Embedding(mask_zero=True)'s.
    - attention_mask (b, n), (b, n, n) or (b, k, n, n): to which tokens (the last axis) each token may attend.

    A token that may attend to none gets weights of 0.
    """

    def __init__(
        self,
        heads: int,
        head_dim: int | None = None,
        qkv_bias: bool = True,
        qk_norm: bool = False,
        epsilon: float = 1e-6,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        positions: str | None = None,
        grid: tuple[int, int] | None = None,
        prefix: int = 0,
        causal: bool = False,
        key_bias: bool = True,
        rope_rescale: float = 1.0,
        rope_grid: int = 16,
        pattern: str | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        owner = "MultiHeadSelfAttention"
        self.positions = None if positions is None else choice(positions, f"{owner}: positions", POSITIONS)
        if positions is not None and grid is None:
            raise ValueError(f'{owner}: positions="{positions}" need the grid (h, w) of the patches, got None.')
        self.grid = None if grid is None else pair(grid, f"{owner}: grid")
        self.prefix = integer(prefix, f"{owner}: prefix", least=0)
        self.heads = integer(heads, f"{owner}: heads")
        self.head_dim = None if head_dim is None else integer(head_dim, f"{owner}: head_dim")
        self.qkv_bias = flag(qkv_bias, f"{owner}: qkv_bias")
        self.qk_norm = flag(qk_norm, f"{owner}: qk_norm")
        self.epsilon = number(epsilon, f"{owner}: epsilon", least=0)
        self.dropout = rate(dropout, f"{owner}: dropout")
        self.attention_dropout = rate(attention_dropout, f"{owner}: attention_dropout")
        self.causal = flag(causal, f"{owner}: causal")
        self.key_bias = flag(key_bias, f"{owner}: key_bias")
        self.rope_rescale = number(rope_rescale, f"{owner}: rope_rescale", least=1)
        self.rope_grid = integer(rope_grid, f"{owner}: rope_grid")
        self.pattern = None if pattern is None else pattern_text(pattern, f"{owner}: pattern")
        if pattern is not None and (grid is None or positions in RELATIVE):
            raise ValueError(
                f'{owner}: pattern="{pattern}" needs the grid (h, w) of the patches, and no terms of the scores'
                f" ({', '.join(RELATIVE)}); got grid={grid}, positions={positions!r}."
            )
        self.supports_masking = True
        self.input_spec = keras.layers.InputSpec(ndim=3)

    def build(self, input_shape):
        width = input_shape[-1]
        if self.head_dim is None and width % self.heads:
            raise ValueError(
                f"MultiHeadSelfAttention: a width of {width} does not divide into {self.heads} heads. "
                "Change heads, or set head_dim."
            )
        self.size = self.head_dim or width // self.heads
        self.dot_product = setting("KERAS_VIT_DOT_PRODUCT_ATTENTION", "check", "on", "off")
        inner = self.heads * self.size
        policy = self.dtype_policy
        self.query = Dense(inner, use_bias=self.qkv_bias, dtype=policy, name="query")
        self.key = Dense(inner, use_bias=self.qkv_bias and self.key_bias, dtype=policy, name="key")
        self.value = Dense(inner, use_bias=self.qkv_bias, dtype=policy, name="value")
        for dense in (self.query, self.key, self.value):
            dense.build(input_shape)
        if self.qk_norm:
            self.query_norm = keras.layers.LayerNormalization(epsilon=self.epsilon, dtype=policy, name="query_norm")
            self.key_norm = keras.layers.LayerNormalization(epsilon=self.epsilon, dtype=policy, name="key_norm")
            for norm in (self.query_norm, self.key_norm):
                norm.build((None, self.heads, None, self.size))
        self.out = Dense(width, dtype=policy, name="out")
        self.out.build((*input_shape[:-1], inner))
        self._build_positions(input_shape[1])
        self._build_groups(input_shape[1])
        self.weights_dropout = Dropout(self.attention_dropout, dtype=self.compute_dtype, name="attention_dropout")
        self.out_dropout = Dropout(self.dropout, dtype=self.compute_dtype, name="dropout")
        self.restore_dense()

    def _build_positions(self, n):
        """The position layer for queries or keys (b, k, n, c), or None."""
        self.rotary = self.relative = None
        if self.positions is None:
            return
        if n is None:
            raise ValueError(
                f'MultiHeadSelfAttention: positions="{self.positions}" need a fixed number of tokens, got one that is'
                " known only at run time."
            )
        arguments = {"grid": self.grid, "prefix": self.prefix, "dtype": self.dtype_policy}
        if self.positions in ROTARY:
            arguments |= {"rescale": self.rope_rescale, "form": self.positions, "reference": self.rope_grid}
            self.rotary = RotaryPositions(**arguments, name="rotary")
        else:
            from keras_vit.layers.positions.relative import RelativeAttention, RelativeBias

            form = RelativeAttention if self.positions == "relative" else RelativeBias
            self.relative = form(**arguments, name=self.positions)
        (self.rotary or self.relative).build((None, self.heads, n, self.size))

    def _build_groups(self, n):
        """The groups of patches of the pattern, and the mask of their scores."""
        if self.pattern is None:
            return
        if n is None:
            raise ValueError(
                f'MultiHeadSelfAttention: pattern="{self.pattern}" needs a fixed number of tokens, got one that is'
                " known only at run time."
            )
        from keras_vit.layers.attention.patch_groups import allowed_pairs, group_mask, make_groups

        check_tokens(n, self.prefix, self.grid, "MultiHeadSelfAttention")
        self.groups = make_groups(self.pattern, self.grid, self.causal)
        self.groups_mask = group_mask(self.groups, self.prefix)
        self.allowed_pairs = functools.partial(allowed_pairs, self.groups, self.prefix)  # (n, n) booleans

    def _split(self, x):
        x = ops.reshape(x, (-1, token_count(x), self.heads, self.size))  # (b, n, k*c) -> (b, n, k, c)
        return ops.transpose(x, (0, 2, 1, 3))  # (b, k, n, c)

    def _queries(self, x, scale=None):
        q = self._split(self.query(x))
        q = self.query_norm(q) if self.qk_norm else q
        return q if self.rotary is None else self.rotary(q, scale)

    def _scores(self, q, keys):
        """Products of queries (b, k, m, c) with keys (b, k, n, c): (b, k, m, n)."""
        q = q * ops.cast(self.size**-0.5, q.dtype)
        scores = ops.matmul(q, ops.transpose(keys, (0, 1, 3, 2)))  # (b, k, m, n)
        return scores if self.relative is None else scores + self.relative(q)

    def _weights_over(self, keys, x, mask, attention_mask, sizes, scale=None):
        """The attention weights (b, k, n, n) of tokens x (b, n, d) over keys (b, k, n, c)."""
        scores = self._scores(self._queries(x, scale), keys)
        if sizes is not None:
            log_sizes = ops.log(ops.cast(sizes, "float32"))
            scores = scores + ops.cast(log_sizes[:, None, None, :], scores.dtype)  # (b, n) -> (b, 1, 1, n)
        allowed = attendable(x, self.heads, mask, attention_mask)
        if self.pattern is not None:
            pairs = ops.convert_to_tensor(self.allowed_pairs())  # (n, n)
            return masked_softmax(scores, pairs if allowed is None else ops.logical_and(pairs, allowed))
        if not self.causal:
            return masked_softmax(scores, allowed)
        if allowed is None:
            return causal_softmax(scores, token_count(x))
        return masked_softmax(scores, ops.logical_and(allowed, causal(token_count(x))))

    def _keys(self, x, scale=None):
        keys = self._split(self.key(x))
        keys = self.key_norm(keys) if self.qk_norm else keys
        return keys if self.rotary is None else self.rotary(keys, scale)

    def attention_weights(self, x: Any, mask: Any = None, attention_mask: Any = None, sizes: Any = None) -> Any:
        """Each token's attention to each other: (b, n, d) -> (b, k, n, n), rows summing to 1, or 0 if all is masked."""
        return self._weights_over(self._keys(x), x, mask, attention_mask, sizes)

    def attend(
        self,
        x: Any,
        mask: Any = None,
        attention_mask: Any = None,
        sizes: Any = None,
        training: bool = False,
        seed: Any = None,
        scale: Any = None,
    ) -> tuple[Any, Any, Any]:
        """The result of `call`, with its keys and weights.

        Args:
            sizes: (b, n) integers, how many tokens were merged into each; None for 1. A token counts as often as its
                size: the proportional attention of arXiv 2210.09461.
            scale: a factor of the angles of "rope2d", a scalar; None for 1.

        Returns:
            (output (b, n, d), keys (b, k, n, c), attention weights (b, k, n, n) before their dropout).
        """
        keys = self._keys(x, scale)
        weights = self._weights_over(keys, x, mask, attention_mask, sizes, scale)
        weights_seed = None if seed is None else fold_in(seed, 1)
        dropped = self.weights_dropout(weights, training=training, seed=weights_seed)
        y = self._joined(ops.matmul(dropped, self._split(self.value(x))))  # (b, k, n, c) -> (b, n, k*c)
        return self.out_dropout(self.out(y), training=training, seed=seed), keys, weights

    def _joined(self, heads):
        y = ops.transpose(heads, (0, 2, 1, 3))  # (b, k, n, c) -> (b, n, k, c)
        return ops.reshape(y, (-1, token_count(y), self.heads * self.size))  # (b, n, k*c)

    def attend_next(self, x: Any, keys: Any, values: Any, place: Any) -> tuple[Any, Any, Any]:
        """A causal layer's output for one token, from the keys and values of earlier ones, without dropout.

        Args:
            x: the token (b, 1, d).
            keys, values: (b, k, n, c), of the tokens before `place`; entries from `place` on have no effect.
            place: the token's number, a scalar.

        Returns:
            (output (b, 1, d), keys and values including this token's).

        Raises:
            ValueError: for a layer that is not causal, or with positions that need all tokens at once.
        """
        if not self.causal or self.positions is not None:
            raise ValueError(
                "Token-by-token attention must be causal and without positions inside attention, got"
                f" causal={self.causal}, positions={self.positions!r}."
            )
        keys = ops.slice_update(keys, (0, 0, place, 0), self._keys(x))
        values = ops.slice_update(values, (0, 0, place, 0), self._split(self.value(x)))
        seen = ops.arange(keys.shape[2]) <= place  # (n,)
        if self.pattern is not None:
            pairs = self.allowed_pairs()[:, : keys.shape[2]]
            seen = ops.take(ops.convert_to_tensor(pairs), place, axis=0)
        weights = masked_softmax(self._scores(self._queries(x), keys), seen)  # (b, k, 1, n)
        return self.out(self._joined(ops.matmul(weights, values))), keys, values

    def call(self, x, mask=None, attention_mask=None, training=False, seed=None, x_mask=None, scale=None):
        """With `seed`, (2,) integers, both dropouts take their masks from it; otherwise from their own generators.

        `scale`, a scalar, multiplies the angles of "rope2d". Keras passes its own mask of x as `x_mask` if the call has
        other tensors too.
        """
        mask = x_mask if mask is None else mask
        y = None
        if self.pattern is not None:
            y = self._in_groups(x, training, seed, scale) if mask is None and attention_mask is None else None
        elif self.relative is None and not (training and self.attention_dropout):
            y = self._without_weights(x, mask, attention_mask, scale)
        if y is None:
            return self.attend(x, mask, attention_mask, None, training, seed, scale)[0]
        y = self.out(y)
        y = y if y.shape[1] == x.shape[1] else y[:, : x.shape[1]]
        return self.out_dropout(y, training=training, seed=seed)

    def _in_groups(self, x, training, seed, scale):
        """The heads' outputs (b, n, k*c) of attention in groups of patches."""
        from keras_vit.layers.attention.patch_groups import grouped_attention

        q = self._queries(x, scale)
        seeds = (None, None) if seed is None else (fold_in(seed, 1), fold_in(seed, 2))
        drops = [functools.partial(self.weights_dropout, training=training, seed=each) for each in seeds]
        q = q * ops.cast(self.size**-0.5, q.dtype)
        values = self._split(self.value(x))
        return self._joined(grouped_attention(q, self._keys(x, scale), values, self.groups, self.groups_mask, *drops))

    def _without_weights(self, x, mask, attention_mask, scale):
        """The heads' outputs by a kernel that keeps no weights, None if none supports these options: (b, n, k*c), or
        with one more token for cuDNN.
        """
        plain = mask is None and attention_mask is None and not self.causal
        by_cudnn = self.dot_product == "check" and plain and cudnn_attends(x, self.size)
        if not by_cudnn and self.dot_product != "on":
            return None
        allowed = attendable(x, self.heads, mask, attention_mask)
        if self.causal and allowed is not None:
            allowed = ops.logical_and(allowed, causal(token_count(x)))
        count = x.shape[1]
        if by_cudnn and self.rotary is None:  # rotations have a row for each token
            x = with_even_count(x)
        q, k, v = self._queries(x, scale), self._keys(x, scale), self._split(self.value(x))
        return self._joined(self._dot_product(q, k, v, allowed, count))

    def _dot_product(self, q, k, v, allowed, count):
        """Keras' operation on q, k and v (b, k, n, c), with zeros for a token that may attend to none."""
        q, k, v = (ops.transpose(each, (0, 2, 1, 3)) for each in (q, k, v))  # (b, k, n, c) -> (b, n, k, c)
        y = dot_product_attention(q, k, v, allowed, is_causal=self.causal and allowed is None, count=count)
        y = ops.transpose(y, (0, 2, 1, 3))  # (b, n, k, c) -> (b, k, n, c)
        return y if allowed is None else ops.where(ops.any(allowed, axis=-1, keepdims=True), y, ops.zeros_like(y))

    def compute_output_shape(self, input_shape, **_):
        return input_shape
