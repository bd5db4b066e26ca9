"""Swin's block: attention in windows, then an MLP (arXiv 2103.14030; V2: arXiv 2111.09883)."""

from typing import Any

import keras

from keras_vit.layers.arguments import arguments_of, flag, number, rate
from keras_vit.layers.attention.window_attention import WindowAttention
from keras_vit.layers.blocks.mlp import MlpBlock
from keras_vit.layers.blocks.transformer import branch_seeds
from keras_vit.layers.dense import ComposedLayer
from keras_vit.layers.dropout import DropPath, ReplicaSeedGenerator, fold_in
from keras_vit.layers.normalization import LayerNormalization
from keras_vit.layers.registration import serializable

_OF_ATTENTION = arguments_of(WindowAttention)


@serializable
class SwinBlock(ComposedLayer):
    """x = x + attention(norm(x)); x = x + mlp(norm(x)); in V2 x = x + norm(attention(x)); x = x + norm(mlp(x)).

    Args:
        heads: number of attention heads.
        mlp_dim: hidden width of the MLP.
        window: places of a window, a number or (rows, columns).
        v2: the block of Swin V2: normalisations after the branches, attention by cosines.
        epsilon: of the layer normalisations.
        dropout: rate after the attention's output and both dense layers of the MLP.
        drop_path: probability that an example skips a branch.
        remat: recompute the block in the backward pass instead of keeping its activations.
        **kwargs: other arguments of WindowAttention, such as `shift`.

    Input and output (b, h, w, d).
    """

    def __init__(
        self,
        heads: int,
        mlp_dim: int,
        window: int | tuple[int, int],
        *,
        v2: bool = False,
        epsilon: float = 1e-5,
        dropout: float = 0.0,
        drop_path: float = 0.0,
        remat: bool = False,
        **kwargs: Any,
    ):
        of_attention = {name: value for name, value in kwargs.items() if name in _OF_ATTENTION}
        super().__init__(**{name: value for name, value in kwargs.items() if name not in _OF_ATTENTION})
        self.v2, policy = flag(v2, "SwinBlock: v2"), self.dtype_policy
        # These two check their arguments and make them plain values.
        self.attention = WindowAttention(
            heads, window, **of_attention, cosine=self.v2, dropout=dropout, dtype=policy, name="attention"
        )
        self.mlp = MlpBlock(mlp_dim, dropout=dropout, dtype=policy, name="mlp")
        self.mlp_dim = self.mlp.mlp_dim
        for name in _OF_ATTENTION:
            setattr(self, name, getattr(self.attention, name))
        self.epsilon = number(epsilon, "SwinBlock: epsilon", least=0)
        self.drop_path = rate(drop_path, "SwinBlock: drop_path")
        self.remat = flag(remat, "SwinBlock: remat")
        self.input_spec = keras.layers.InputSpec(ndim=4)
        random = self.mlp.dropout or self.attention.attention_dropout or self.drop_path
        self.seed_generator = ReplicaSeedGenerator() if random else None

    def get_config(self):
        names = (
            "mlp_dim",
            "v2",
            "epsilon",
            "drop_path",
            "remat",
            *(name for name in _OF_ATTENTION if name != "cosine"),
        )
        return super().get_config() | {name: getattr(self, name) for name in names}

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

        def residuals(x):
            return self._add_mlp(self._add_attention(x, seed, training), seed, training)

        return keras.remat(residuals)(x) if self.remat and training else residuals(x)

    def _add_attention(self, x, seed, training):
        """The first residual line: (b, h, w, d) -> (b, h, w, d)."""
        inner, path = branch_seeds(seed)
        if self.v2:
            y = self.attention(x, training=training, seed=inner)
            y = self.attention_norm(y, training=training)
        else:
            x, y = self.attention_norm.fork(x, training)
            y = self.attention(y, training=training, seed=inner)
        return x + self.skip(y, training=training, seed=path)

    def _add_mlp(self, x, seed, training):
        """The second residual line: (b, h, w, d) -> (b, h, w, d)."""
        inner, path = branch_seeds(None if seed is None else fold_in(seed, 7))
        if self.v2:
            y = self.mlp_norm(self.mlp(x, training=training, seed=inner), training=training)
        else:
            x, y = self.mlp_norm.fork(x, training)
            y = self.mlp(y, training=training, seed=inner)
        return x + self.skip(y, training=training, seed=path)

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
