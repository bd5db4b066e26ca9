"""The pre-norm Transformer block (equations 2 and 3 of arXiv 2010.11929), the post-norm one, and LayerScale."""

from typing import Any

import keras

from keras_vit.layers.arguments import arguments_of, flag, integer, number, rate
from keras_vit.layers.attention.self_attention import MultiHeadSelfAttention
from keras_vit.layers.attention.window_tokens import from_windows, to_windows, whole_weights
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


# The arguments that a block passes on: {the block's name: its attention's, or its MLP's}.
_RENAMED = {"form": "mlp_form", "norm": "hidden_norm"}
_OF_ATTENTION = {name: name for name in arguments_of(MultiHeadSelfAttention)}
_OF_MLP = {_RENAMED.get(name, name): name for name in arguments_of(MlpBlock)}


@serializable
class TransformerBlock(ComposedLayer):
    """x = x + attention(norm(x)); x = x + mlp(norm(x)).

    Args:
        heads: number of attention heads.
        mlp_dim: hidden width of the MLP.
        drop_path: probability that an example skips a branch.
        layer_scale: LayerScale's initial value; None for no LayerScale.
        remat: recompute the block in the backward pass instead of keeping its activations: less memory, more time.
        windows: number of windows per side of the grid, inside which tokens attend, each with a copy of the `prefix`
            tokens (layers.WindowTokens); 1 for attention among all.
        **kwargs: the arguments of MultiHeadSelfAttention and MlpBlock, whose `form` and `norm` are `mlp_form` and
            `hidden_norm` here. Both share `dropout`, the rate after every dense layer except query, key and value,
            and `epsilon`, that of all normalisations. Blocks share the random factors of `rope_rescale`.

    Input and output (b, n, d). Takes `mask` and `attention_mask` as MultiHeadSelfAttention.
    """

    def __init__(
        self,
        heads: int,
        mlp_dim: int,
        *,
        drop_path: float = 0.0,
        layer_scale: float | None = None,
        remat: bool = False,
        windows: int = 1,
        **kwargs: Any,
    ):
        of_attention, of_mlp = (
            {names[n]: kwargs[n] for n in kwargs if n in names} for names in (_OF_ATTENTION, _OF_MLP)
        )
        super().__init__(**{n: value for n, value in kwargs.items() if n not in _OF_ATTENTION and n not in _OF_MLP})
        policy = self.dtype_policy
        # These two check their arguments and make them plain values.
        self.attention = MultiHeadSelfAttention(heads, **of_attention, dtype=policy, name="attention")
        self.mlp = MlpBlock(mlp_dim, **of_mlp, dtype=policy, name="mlp")
        for part, names in ((self.attention, _OF_ATTENTION), (self.mlp, _OF_MLP)):
            for name in names:  # attributes of the block, as its own options are
                setattr(self, name, getattr(part, names[name]))
        self.drop_path = rate(drop_path, "TransformerBlock: drop_path")
        self.layer_scale = None if layer_scale is None else number(layer_scale, "TransformerBlock: layer_scale")
        self.remat = flag(remat, "TransformerBlock: remat")
        self.windows = integer(windows, "TransformerBlock: windows")
        self._check_windows()
        self.supports_masking = True
        self.input_spec = keras.layers.InputSpec(ndim=3)
        random = self.mlp.dropout or self.attention.attention_dropout or self.drop_path
        self.seed_generator = ReplicaSeedGenerator() if random else None
        rescales = self.attention.positions in ROTARY and self.attention.rope_rescale > 1
        self.rescale_generator = ReplicaSeedGenerator(_RESCALE_SEED, name="rescale_seeds") if rescales else None

    def _check_windows(self):
        inner = self.attention
        others = (inner.positions, inner.pattern, inner.causal or None)
        if self.windows > 1 and (inner.grid is None or any(other is not None for other in others)):
            raise ValueError(
                f"TransformerBlock: windows={self.windows} need the grid (h, w) of the patches, and no positions,"
                f" pattern or causal attention; got grid={inner.grid}, positions={inner.positions!r},"
                f" pattern={inner.pattern!r}, causal={inner.causal}."
            )

    def get_config(self):
        own = ("drop_path", "layer_scale", "remat", "windows")
        return super().get_config() | {name: getattr(self, name) for name in (*_OF_ATTENTION, *_OF_MLP, *own)}

    def build(self, input_shape):
        policy = self.dtype_policy
        self.attention_norm = LayerNormalization(epsilon=self.mlp.epsilon, dtype=policy, name="attention_norm")
        self.attention_scale = self._make_scale("attention_scale", input_shape)
        self.mlp_norm = LayerNormalization(epsilon=self.mlp.epsilon, dtype=policy, name="mlp_norm")
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

        def residuals(x):
            return self._add_mlp(self._add_attention(x, seed, training, **masks), seed, training)

        return keras.remat(residuals)(x) if self.remat and training else residuals(x)

    def _attended(self, x, seed, training, **masks):
        """The attention's output, in windows if there are any: (b, n, d) -> (b, n, d)."""
        if self.windows == 1:
            return self.attention.call(x, **masks, training=training, seed=seed)
        if any(mask is not None for mask in masks.values()):
            raise ValueError(f"A block with windows={self.windows} takes no masks.")
        places = (self.attention.grid, self.windows, self.attention.prefix)
        y = self.attention.call(to_windows(x, *places), training=training, seed=seed)
        return from_windows(y, *places)

    def _weights(self, x, mask, attention_mask):
        """The attention weights of the attention's input x: (b, n, d) -> (b, k, n, n)."""
        if self.windows == 1:
            return self.attention.attention_weights(x, mask, attention_mask)
        places = (self.attention.grid, self.windows, self.attention.prefix)
        return whole_weights(self.attention.attention_weights(to_windows(x, *places)), *places)

    def _add_attention(self, x, seed, training, **masks):
        """The first residual line: (b, n, d) -> (b, n, d)."""
        inner, path = branch_seeds(seed)
        x, y = self.attention_norm.fork(x, training)
        y = self._attended(y, inner, training, **masks)
        return x + self.skip(self.attention_scale(y), training=training, seed=path)

    def _add_mlp(self, x, seed, training):
        """The second residual line: (b, n, d) -> (b, n, d)."""
        inner, path = branch_seeds(None if seed is None else fold_in(seed, 7))
        x, y = self.mlp_norm.fork(x, training)
        y = self.mlp(y, training=training, seed=inner)
        return x + self.skip(self.mlp_scale(y), training=training, seed=path)

    def next_token(self, x: Any, keys: Any, values: Any, place: Any) -> tuple[Any, Any, Any]:
        """A causal block's output for one token; arguments and results as in MultiHeadSelfAttention.attend_next."""
        y, keys, values = self.attention.attend_next(self.attention_norm(x), keys, values, place)
        return self._add_mlp(x + self.attention_scale(y), None, False), keys, values

    def attention_weights(self, x: Any, mask: Any = None, attention_mask: Any = None) -> Any:
        """The block's attention weights for its input x and masks: (b, n, d) -> (b, k, n, n)."""
        return self._weights(self.attention_norm(x), mask, attention_mask)

    def compute_output_shape(self, input_shape, **_):
        return input_shape


BLOCK_ARGUMENTS = {
    **arguments_of(MultiHeadSelfAttention),
    **{_RENAMED.get(name, name): default for name, default in arguments_of(MlpBlock).items()},
    **arguments_of(TransformerBlock),
}
"""{name: default} of all arguments of a TransformerBlock."""


@serializable
class PostNormBlock(TransformerBlock):
    """x = norm(x + attention(x)); x = norm(x + mlp(x)), the order of arXiv 1706.03762 and nn.TransformerEncoderLayer.

    Arguments, input, output (b, n, d) and masks as in TransformerBlock.
    """

    def _add_attention(self, x, seed, training, **masks):
        inner, path = branch_seeds(seed)
        y = self._attended(x, inner, training, **masks)
        return self.attention_norm(x + self.skip(self.attention_scale(y), training=training, seed=path))

    def _add_mlp(self, x, seed, training):
        inner, path = branch_seeds(None if seed is None else fold_in(seed, 7))
        y = self.mlp(x, training=training, seed=inner)
        return self.mlp_norm(x + self.skip(self.mlp_scale(y), training=training, seed=path))

    def next_token(self, x: Any, keys: Any, values: Any, place: Any) -> tuple[Any, Any, Any]:
        y, keys, values = self.attention.attend_next(x, keys, values, place)
        return self._add_mlp(self.attention_norm(x + self.attention_scale(y)), None, False), keys, values

    def attention_weights(self, x: Any, mask: Any = None, attention_mask: Any = None) -> Any:
        return self._weights(x, mask, attention_mask)
