"""Swin's block: attention in windows, then an MLP (arXiv 2103.14030; V2: arXiv 2111.09883)."""

import functools
from typing import Any

import keras

from keras_vit.layers.arguments import flag, number, rate
from keras_vit.layers.attention.window_attention import WindowAttention
from keras_vit.layers.blocks.mlp import MlpBlock
from keras_vit.layers.blocks.transformer import branch_seeds, residual
from keras_vit.layers.dense import ComposedLayer
from keras_vit.layers.dropout import DropPath, ReplicaSeedGenerator, fold_in
from keras_vit.layers.normalization import LayerNormalization
from keras_vit.layers.registration import serializable


@serializable
class SwinBlock(ComposedLayer):
    """x = x + attention(norm(x)); x = x + mlp(norm(x)); in V2 x = x + norm(attention(x)); x = x + norm(mlp(x)).

    Args:
        heads: number of attention heads.
        mlp_dim: hidden width of the MLP.
        window, shift, pretrained_window, roll_first, qkv_bias, attention_dropout: as in WindowAttention.
        v2: the block of Swin V2: normalisations after the branches, attention by cosines.
        epsilon: of the layer normalisations.
        dropout: rate after the attention's output and both dense layers of the MLP.
        drop_path: probability that an example skips a branch.
        remat: recompute the block in the backward pass instead of keeping its activations.

    Input and output (b, h, w, d).
    """

    def __init__(
        self,
        heads: int,
        mlp_dim: int,
        window: int | tuple[int, int],
        *,
        shift: tuple[int, int] = (0, 0),
        pretrained_window: int | tuple[int, int] | None = None,
        roll_first: bool = False,
        qkv_bias: bool = True,
        v2: bool = False,
        epsilon: float = 1e-5,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        drop_path: float = 0.0,
        remat: bool = False,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.v2 = flag(v2, "SwinBlock: v2")
        # These two check their arguments and make them plain values.
        self.attention = WindowAttention(
            heads,
            window,
            shift,
            cosine=self.v2,
            pretrained_window=pretrained_window,
            roll_first=roll_first,
            qkv_bias=qkv_bias,
            dropout=dropout,
            attention_dropout=attention_dropout,
            dtype=self.dtype_policy,
            name="attention",
        )
        self.mlp = MlpBlock(mlp_dim, dropout=dropout, dtype=self.dtype_policy, name="mlp")
        attention = self.attention
        self.heads, self.window, self.shift = attention.heads, attention.window, attention.shift
        self.pretrained_window, self.roll_first = attention.pretrained_window, attention.roll_first
        self.qkv_bias, self.attention_dropout = attention.qkv_bias, attention.attention_dropout
        self.mlp_dim, self.dropout = self.mlp.mlp_dim, self.mlp.dropout
        self.epsilon = number(epsilon, "SwinBlock: epsilon", least=0)
        self.drop_path = rate(drop_path, "SwinBlock: drop_path")
        self.remat = flag(remat, "SwinBlock: remat")
        self.input_spec = keras.layers.InputSpec(ndim=4)
        random = self.dropout or self.attention_dropout or self.drop_path
        self.seed_generator = ReplicaSeedGenerator() if random else None

    def build(self, input_shape):
        policy = self.dtype_policy
        self.attention_norm = LayerNormalization(epsilon=self.epsilon, dtype=policy, name="attention_norm")
        self.mlp_norm = LayerNormalization(epsilon=self.epsilon, dtype=policy, name="mlp_norm")
        for layer in (self.attention_norm, self.attention, self.mlp_norm, self.mlp):
            layer.build(input_shape)
        self.skip = DropPath(self.drop_path, dtype=self.compute_dtype, name="drop_path")
        self.restore_dense()

    def call(self, x, training=False):
        # Taken once, outside the function that may be recomputed, so that masks repeat.
        seed = self.seed_generator.next() if training and self.seed_generator else None

        attention = functools.partial(self._attention, training=training, seed=seed)
        mlp = functools.partial(self._mlp, training=training, seed=seed)
        residuals = functools.partial(self._residuals, attention=attention, mlp=mlp, training=training)
        return keras.remat(residuals)(x) if self.remat and training else residuals(x)

    def _residuals(self, x, attention, mlp, training):
        """The block: (b, h, w, d) -> (b, h, w, d)."""
        if self.v2:
            x = x + attention(x)
            return x + mlp(x)
        x = residual(x, self.attention_norm, attention, training)  # x = x + attention(norm(x))
        return residual(x, self.mlp_norm, mlp, training)  # x = x + mlp(norm(x))

    def _attention(self, y, training, seed):
        """The first branch: (b, h, w, d) -> (b, h, w, d)."""
        inner, path = branch_seeds(seed)
        y = self.attention(y, training=training, seed=inner)
        y = self.attention_norm(y, training=training) if self.v2 else y
        return self.skip(y, training=training, seed=path)

    def _mlp(self, y, training, seed):
        """The second branch: (b, h, w, d) -> (b, h, w, d)."""
        inner, path = branch_seeds(None if seed is None else fold_in(seed, 7))
        y = self.mlp(y, training=training, seed=inner)
        y = self.mlp_norm(y, training=training) if self.v2 else y
        return self.skip(y, training=training, seed=path)

    def window_weights(self, x: Any) -> Any:
        """The attention weights (b*m, k, n, n) inside the m windows of n places, for the block's input (b, h, w, d)."""
        x = self._attended(x)
        return self.attention.window_weights(self.attention.windows(x), x.shape[1:3])

    def received(self, x: Any, shares: Any) -> Any:
        """The attention that places receive: WindowAttention.received for the block's input."""
        return self.attention.received(self._attended(x), shares)

    def _attended(self, x):
        return x if self.v2 else self.attention_norm(x)

    def compute_output_shape(self, input_shape, **_):
        return input_shape
