"""The pre-norm Transformer block (equations 2 and 3 of arXiv 2010.11929) and LayerScale."""

import keras

from keras_vit.layers.attention import MultiHeadSelfAttention
from keras_vit.layers.composed import ComposedLayer
from keras_vit.layers.dropout import DropPath
from keras_vit.layers.mlp import MlpBlock, check_gelu, check_mlp
from keras_vit.layers.registration import serializable
from keras_vit.layers.seeds import ReplicaSeedGenerator, fold_in


@serializable
class LayerScale(keras.layers.Layer):
    """Multiplies by one learned factor per channel, all starting at `initial` (arXiv 2103.17239). Any shape (..., d)."""

    def __init__(self, initial: float = 1e-5, **kwargs):
        super().__init__(**kwargs)
        self.initial = initial

    def build(self, input_shape):
        initializer = keras.initializers.Constant(self.initial)
        self.gamma = self.add_weight(shape=(input_shape[-1],), initializer=initializer, name="gamma")

    def call(self, x):
        return x * self.gamma

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {**super().get_config(), "initial": self.initial}


def _unscaled(x):
    """In the place of a LayerScale in blocks without one."""
    return x


def _branch_seeds(seed):
    """The seeds of one branch's dropout and of its DropPath, children of the branch's seed; None for None."""
    return (None, None) if seed is None else (fold_in(seed, 2), fold_in(seed, 5))


@serializable
class TransformerBlock(ComposedLayer):
    """x = x + attention(norm(x)); x = x + mlp(norm(x)).

    Args:
        heads, head_dim, qkv_bias, qk_norm, attention_dropout: see MultiHeadSelfAttention.
        mlp_dim, gelu, mlp_form: see MlpBlock, whose `form` is `mlp_form`.
        epsilon: of the layer normalisations.
        dropout: rate after every dense layer except query, key and value, as in the paper.
        drop_path: probability that an example skips a branch.
        layer_scale: LayerScale's initial value; None for no LayerScale.
        remat: recompute the block in the backward pass instead of keeping its activations: less memory, more time.

    Input and output (b, n, d).
    """

    def __init__(
        self,
        heads: int,
        mlp_dim: int,
        head_dim: int | None = None,
        qkv_bias: bool = True,
        qk_norm: bool = False,
        gelu: str = "erf",
        epsilon: float = 1e-6,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        drop_path: float = 0.0,
        layer_scale: float | None = None,
        remat: bool = False,
        mlp_form: str = "gelu",
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_gelu(gelu, "TransformerBlock")
        check_mlp(mlp_form, "TransformerBlock")
        self.heads = heads
        self.mlp_dim = mlp_dim
        self.head_dim = head_dim
        self.qkv_bias = qkv_bias
        self.qk_norm = qk_norm
        self.gelu = gelu
        self.epsilon = epsilon
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.drop_path = drop_path
        self.layer_scale = layer_scale
        self.remat = remat
        self.mlp_form = mlp_form
        random = dropout or attention_dropout or drop_path
        self.seed_generator = ReplicaSeedGenerator() if random else None

    def build(self, input_shape):
        policy = self.dtype_policy
        self.attention = MultiHeadSelfAttention(
            heads=self.heads,
            head_dim=self.head_dim,
            qkv_bias=self.qkv_bias,
            qk_norm=self.qk_norm,
            epsilon=self.epsilon,
            dropout=self.dropout,
            attention_dropout=self.attention_dropout,
            dtype=policy,
            name="attention",
        )
        self.mlp = MlpBlock(self.mlp_dim, self.gelu, self.dropout, self.mlp_form, dtype=policy, name="mlp")
        self.attention_norm = keras.layers.LayerNormalization(epsilon=self.epsilon, dtype=policy, name="attention_norm")
        self.attention_scale = self._make_scale("attention_scale", input_shape)
        self.mlp_norm = keras.layers.LayerNormalization(epsilon=self.epsilon, dtype=policy, name="mlp_norm")
        self.mlp_scale = self._make_scale("mlp_scale", input_shape)
        # Initial values and seeds are sampled in this order.
        for layer in (self.attention_norm, self.attention, self.mlp_norm, self.mlp):
            layer.build(input_shape)
        self.skip = DropPath(self.drop_path, dtype=policy, name="drop_path")
        self.restore_dense()

    def _make_scale(self, name, input_shape):
        if self.layer_scale is None:
            return _unscaled
        scale = LayerScale(self.layer_scale, dtype=self.dtype_policy, name=name)
        scale.build(input_shape)
        return scale

    def call(self, x, training=False):
        # Taken once, outside the function that may be recomputed, so that recomputing repeats the masks.
        seed = self.seed_generator.next() if training and self.seed_generator else None

        def residuals(x):
            inner, path = _branch_seeds(seed)
            y = self.attention(self.attention_norm(x), training=training, seed=inner)
            x = x + self.skip(self.attention_scale(y), training=training, seed=path)
            inner, path = _branch_seeds(None if seed is None else fold_in(seed, 7))
            y = self.mlp(self.mlp_norm(x), training=training, seed=inner)
            return x + self.skip(self.mlp_scale(y), training=training, seed=path)

        return keras.remat(residuals)(x) if self.remat and training else residuals(x)

    def attention_weights(self, x):
        """The block's attention weights for its input x: (b, n, d) -> (b, k, n, n)."""
        return self.attention.attention_weights(self.attention_norm(x))

    def compute_output_shape(self, input_shape, **_):
        return input_shape

    def get_config(self):
        return {
            **super().get_config(),
            "heads": self.heads,
            "mlp_dim": self.mlp_dim,
            "head_dim": self.head_dim,
            "qkv_bias": self.qkv_bias,
            "qk_norm": self.qk_norm,
            "gelu": self.gelu,
            "epsilon": self.epsilon,
            "dropout": self.dropout,
            "attention_dropout": self.attention_dropout,
            "drop_path": self.drop_path,
            "layer_scale": self.layer_scale,
            "remat": self.remat,
            "mlp_form": self.mlp_form,
        }
