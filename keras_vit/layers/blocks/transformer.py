"""The pre-norm Transformer block (equations 2 and 3 of arXiv 2010.11929), the post-norm one, and LayerScale."""

import functools
from collections.abc import Callable
from typing import Any

import keras

from keras_vit.layers.arguments import flag, integer, number, rate
from keras_vit.layers.attention.self_attention import MultiHeadSelfAttention
from keras_vit.layers.blocks.mlp import MlpBlock
from keras_vit.layers.dense import ComposedLayer
from keras_vit.layers.dropout import DropPath, ReplicaSeedGenerator, fold_in
from keras_vit.layers.normalization import LayerNormalization
from keras_vit.layers.positions.rotary import ROTARY
from keras_vit.layers.registration import serializable


@serializable
class LayerScale(keras.layers.Layer):
    """A learned factor per channel, initially `initial` (arXiv 2103.17239). Any shape (..., d)."""

    def __init__(self, initial: float = 1e-5, **kwargs: Any):
        super().__init__(**kwargs)
        self.initial = number(initial, "LayerScale: initial")
        self.supports_masking = True

    def build(self, input_shape):
        initializer = keras.initializers.Constant(self.initial)
        self.gamma = self.add_weight(shape=(input_shape[-1],), initializer=initializer, name="gamma")

    def call(self, x):
        return x * self.gamma

    def compute_output_shape(self, input_shape):
        return input_shape


def _unscaled(x):
    """Replaces LayerScale in blocks without one."""
    return x


# All blocks of a model draw their rescaling of coordinates from one seed, and so draw the same in each step.
_RESCALE_SEED = 2508


def branch_seeds(seed):
    """The seeds of a branch's dropout and DropPath, children of the branch's seed; None for None."""
    return (None, None) if seed is None else (fold_in(seed, 2), fold_in(seed, 5))


def residual(x: Any, norm: LayerNormalization, branch: Callable[[Any], Any], training: bool) -> Any:
    """x + branch(norm(x))."""
    return x + branch(norm(x, training=training))


@serializable
class TransformerBlock(ComposedLayer):
    """x = x + attention(norm(x)); x = x + mlp(norm(x)).

    Args:
        heads: number of attention heads.
        mlp_dim: hidden width of the MLP.
        head_dim, qkv_bias, key_bias, qk_norm, attention_dropout, causal: as in MultiHeadSelfAttention.
        positions, rope_rescale, rope_grid, pattern, grid, prefix: as in MultiHeadSelfAttention. Blocks share the random
            factors of `rope_rescale`.
        mlp_activation: as in MlpBlock.
        mlp_form, hidden_norm: MlpBlock's `form` and `norm`.
        epsilon: of all normalisations.
        dropout: rate after every dense layer except query, key and value.
        drop_path: probability that an example skips a branch.
        layer_scale: LayerScale's initial value; None for no LayerScale.
        remat: recompute the block in the backward pass instead of keeping its activations: less memory, more time.
        windows: number of windows per side of the grid, inside which tokens attend, each with a copy of the `prefix`
            tokens (layers.WindowTokens); 1 for attention among all.

    Input and output (b, n, d). Takes `mask` and `attention_mask` as MultiHeadSelfAttention.
    """

    def __init__(
        self,
        heads: int,
        mlp_dim: int,
        *,
        head_dim: int | None = None,
        qkv_bias: bool = True,
        key_bias: bool = True,
        qk_norm: bool = False,
        attention_dropout: float = 0.0,
        causal: bool = False,
        positions: str | None = None,
        rope_rescale: float = 1.0,
        rope_grid: int = 16,
        pattern: str | None = None,
        grid: tuple[int, int] | None = None,
        prefix: int = 0,
        mlp_activation: str = "gelu",
        mlp_form: str = "plain",
        hidden_norm: bool = False,
        epsilon: float = 1e-6,
        dropout: float = 0.0,
        drop_path: float = 0.0,
        layer_scale: float | None = None,
        remat: bool = False,
        windows: int = 1,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        # These two check their arguments and make them plain values.
        self.attention = MultiHeadSelfAttention(
            heads,
            head_dim=head_dim,
            qkv_bias=qkv_bias,
            key_bias=key_bias,
            qk_norm=qk_norm,
            epsilon=epsilon,
            dropout=dropout,
            attention_dropout=attention_dropout,
            positions=positions,
            grid=grid,
            prefix=prefix,
            causal=causal,
            rope_rescale=rope_rescale,
            rope_grid=rope_grid,
            pattern=pattern,
            dtype=self.dtype_policy,
            name="attention",
        )
        self.mlp = MlpBlock(
            mlp_dim,
            mlp_activation=mlp_activation,
            dropout=dropout,
            form=mlp_form,
            norm=hidden_norm,
            epsilon=epsilon,
            dtype=self.dtype_policy,
            name="mlp",
        )
        attention, mlp = self.attention, self.mlp
        self.heads, self.head_dim, self.qk_norm = attention.heads, attention.head_dim, attention.qk_norm
        self.qkv_bias, self.key_bias, self.causal = attention.qkv_bias, attention.key_bias, attention.causal
        self.positions, self.pattern = attention.positions, attention.pattern
        self.rope_rescale, self.rope_grid = attention.rope_rescale, attention.rope_grid
        self.grid, self.prefix = attention.grid, attention.prefix
        self.attention_dropout, self.dropout, self.epsilon = attention.attention_dropout, mlp.dropout, mlp.epsilon
        self.mlp_dim, self.mlp_activation = mlp.mlp_dim, mlp.mlp_activation
        self.mlp_form, self.hidden_norm = mlp.form, mlp.norm
        self.drop_path = rate(drop_path, "TransformerBlock: drop_path")
        self.layer_scale = None if layer_scale is None else number(layer_scale, "TransformerBlock: layer_scale")
        self.remat = flag(remat, "TransformerBlock: remat")
        self.windows = integer(windows, "TransformerBlock: windows")
        self._check_windows()
        self.supports_masking = True
        self.input_spec = keras.layers.InputSpec(ndim=3)
        random = self.dropout or self.attention_dropout or self.drop_path
        self.seed_generator = ReplicaSeedGenerator() if random else None
        rescales = self.positions in ROTARY and self.rope_rescale > 1
        self.rescale_generator = ReplicaSeedGenerator(_RESCALE_SEED, name="rescale_seeds") if rescales else None

    def _check_windows(self):
        others = (self.positions, self.pattern, self.causal or None)
        if self.windows > 1 and (self.grid is None or any(other is not None for other in others)):
            raise ValueError(
                f"TransformerBlock: windows={self.windows} need the grid (h, w) of the patches, and no positions,"
                f" pattern or causal attention; got grid={self.grid}, positions={self.positions!r},"
                f" pattern={self.pattern!r}, causal={self.causal}."
            )

    def build(self, input_shape):
        policy = self.dtype_policy
        self.attention_norm = LayerNormalization(epsilon=self.epsilon, dtype=policy, name="attention_norm")
        self.attention_scale = self._make_scale("attention_scale", input_shape)
        self.mlp_norm = LayerNormalization(epsilon=self.epsilon, dtype=policy, name="mlp_norm")
        self.mlp_scale = self._make_scale("mlp_scale", input_shape)
        # Initial values and seeds are sampled in this order.
        for layer in (self.attention_norm, self.attention, self.mlp_norm, self.mlp):
            layer.build(input_shape)
        self.skip = DropPath(self.drop_path, dtype=self.compute_dtype, name="drop_path")
        self.restore_dense()

    def _make_scale(self, name, input_shape):
        if self.layer_scale is None:
            return _unscaled
        scale = LayerScale(self.layer_scale, dtype=self.dtype_policy, name=name)
        scale.build(input_shape)
        return scale

    def call(self, x, mask=None, attention_mask=None, training=False, x_mask=None):
        """Keras passes its own mask of x as `x_mask` if the call has other tensors too."""
        masks = {"mask": x_mask if mask is None else mask, "attention_mask": attention_mask}
        if training and self.rescale_generator:
            masks["scale"] = self.attention.rotary.random_scale(self.rescale_generator)
        # Taken once, outside the function that may be recomputed, so that masks repeat.
        seed = self.seed_generator.next() if training and self.seed_generator else None
        attention = functools.partial(self._attention, training=training, seed=seed, **masks)
        mlp = functools.partial(self._mlp, training=training, seed=seed)
        residuals = functools.partial(self._residuals, attention=attention, mlp=mlp, training=training)
        return keras.remat(residuals)(x) if self.remat and training else residuals(x)

    def _residuals(self, x, attention, mlp, training):
        """The block: (b, n, d) -> (b, n, d)."""
        x = residual(x, self.attention_norm, attention, training)  # x = x + attention(norm(x))
        x = residual(x, self.mlp_norm, mlp, training)  # x = x + mlp(norm(x))
        return x

    def _attention(self, y, training=False, seed=None, **masks):
        """The first branch, in windows if there are any: (b, n, d) -> (b, n, d)."""
        inner, path = branch_seeds(seed)
        if self.windows == 1:
            y = self.attention.call(y, **masks, training=training, seed=inner)
        elif any(mask is not None for mask in masks.values()):
            raise ValueError(f"A block with windows={self.windows} takes no masks.")
        else:
            from keras_vit.layers.attention.window_tokens import from_windows, to_windows

            places = (self.grid, self.windows, self.prefix)
            y = from_windows(self.attention.call(to_windows(y, *places), training=training, seed=inner), *places)
        return self.skip(self.attention_scale(y), training=training, seed=path)

    def _mlp(self, y, training=False, seed=None):
        """The second branch: (b, n, d) -> (b, n, d)."""
        inner, path = branch_seeds(None if seed is None else fold_in(seed, 7))
        return self.skip(self.mlp_scale(self.mlp(y, training=training, seed=inner)), training=training, seed=path)

    def next_token(self, x: Any, keys: Any, values: Any, place: Any) -> tuple[Any, Any, Any]:
        """A causal block's output for one token; arguments and results as in MultiHeadSelfAttention.attend_next."""
        y, keys, values = self.attention.attend_next(self.attention_norm(x), keys, values, place)
        x = x + self.attention_scale(y)
        return x + self._mlp(self.mlp_norm(x)), keys, values

    def attention_weights(self, x: Any, mask: Any = None, attention_mask: Any = None) -> Any:
        """The block's attention weights for its input x and masks: (b, n, d) -> (b, k, n, n)."""
        return self._weights(self.attention_norm(x), mask, attention_mask)

    def _weights(self, x, mask, attention_mask):
        """The attention weights of the attention's input x: (b, n, d) -> (b, k, n, n)."""
        if self.windows == 1:
            return self.attention.attention_weights(x, mask, attention_mask)
        from keras_vit.layers.attention.window_tokens import to_windows, whole_weights

        places = (self.grid, self.windows, self.prefix)
        return whole_weights(self.attention.attention_weights(to_windows(x, *places)), *places)

    def compute_output_shape(self, input_shape, **_):
        return input_shape


@serializable
class PostNormBlock(TransformerBlock):
    """x = norm(x + attention(x)); x = norm(x + mlp(x)), the order of arXiv 1706.03762 and nn.TransformerEncoderLayer.

    Arguments, input, output (b, n, d) and masks as in TransformerBlock.
    """

    def _residuals(self, x, attention, mlp, training):
        x = self.attention_norm(x + attention(x))
        x = self.mlp_norm(x + mlp(x))
        return x

    def next_token(self, x: Any, keys: Any, values: Any, place: Any) -> tuple[Any, Any, Any]:
        y, keys, values = self.attention.attend_next(x, keys, values, place)
        x = self.attention_norm(x + self.attention_scale(y))
        return self.mlp_norm(x + self._mlp(x)), keys, values

    def attention_weights(self, x: Any, mask: Any = None, attention_mask: Any = None) -> Any:
        return self._weights(x, mask, attention_mask)
