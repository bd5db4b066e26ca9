"""The pre-norm Transformer block (the paper's equations 2 and 3) and LayerScale."""

import keras

from keras_vit.layers.attention import MultiHeadSelfAttention
from keras_vit.layers.dropout import DropPath
from keras_vit.layers.mlp import MlpBlock, check_gelu, check_mlp
from keras_vit.layers.randomness import ReplicaSeedGenerator, fold_in
from keras_vit.layers.registration import serializable


@serializable
class LayerScale(keras.layers.Layer):
    """Multiplies by one learned factor a channel, all of which start at `initial` (arXiv 2103.17239). Any shape (..., d)."""

    def __init__(self, initial=1e-5, **kwargs):
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


@serializable
class TransformerBlock(keras.layers.Layer):
    """x += attention(norm(x)); x += mlp(norm(x)).

    Args:
        heads, head_dim, qkv_bias, qk_norm, attention_dropout: of MultiHeadSelfAttention.
        mlp_dim, gelu: of MlpBlock; mlp_form is its form.
        epsilon: of the layer normalisations.
        dropout: behind every dense layer but query, key and value, as in the paper.
        drop_path: the probability with which an example skips a branch.
        layer_scale: LayerScale's initial value; None for no LayerScale.
        remat: recompute the block in the backward pass instead of keeping what it computed: less memory, more time.

    Input and output (b, n, d).
    """

    def __init__(
        self,
        heads,
        mlp_dim,
        head_dim=None,
        qkv_bias=True,
        qk_norm=False,
        gelu="erf",
        epsilon=1e-6,
        dropout=0.0,
        attention_dropout=0.0,
        drop_path=0.0,
        layer_scale=None,
        remat=False,
        mlp_form="gelu",
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
        for name, branch in (("attention", self.attention), ("mlp", self.mlp)):
            norm = keras.layers.LayerNormalization(epsilon=self.epsilon, dtype=policy, name=f"{name}_norm")
            parts = [norm, branch]
            setattr(self, f"{name}_norm", norm)
            if self.layer_scale is not None:
                scale = LayerScale(self.layer_scale, dtype=policy, name=f"{name}_scale")
                setattr(self, f"{name}_scale", scale)
                parts.append(scale)
            for part in parts:
                part.build(input_shape)
        self.skip = DropPath(self.drop_path, dtype=policy, name="drop_path")

    def _branch(self, x, name, training, drawn):
        """One residual branch: (b, n, d) -> (b, n, d)."""
        child = (lambda i: None) if drawn is None else (lambda i: fold_in(drawn, i))
        y = getattr(self, f"{name}_norm")(x)
        y = getattr(self, name)(y, training=training, drawn=child(2))
        if self.layer_scale is not None:
            y = getattr(self, f"{name}_scale")(y)
        return self.skip(y, training=training, drawn=child(5))

    def call(self, x, training=False):
        # The seed is drawn out here once, so that a recomputed block repeats its masks.
        drawn = self.seed_generator.next() if training and self.seed_generator else None

        def residuals(x):
            x = x + self._branch(x, "attention", training, drawn)
            return x + self._branch(x, "mlp", training, None if drawn is None else fold_in(drawn, 7))

        return keras.remat(residuals)(x) if self.remat and training else residuals(x)

    def attention_weights(self, x):
        """The block's attention weights for its input x: (b, n, d) -> (b, k, n, n)."""
        return self.attention.attention_weights(self.attention_norm(x))

    def compute_output_shape(self, input_shape, **_):
        return input_shape

    def get_config(self):
        names = (
            "heads mlp_dim head_dim qkv_bias qk_norm gelu epsilon dropout attention_dropout drop_path layer_scale remat mlp_form"
        )
        return {**super().get_config(), **{name: getattr(self, name) for name in names.split()}}
