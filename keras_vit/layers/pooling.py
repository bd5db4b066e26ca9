"""From tokens (b, n, d) to one vector per image or text (b, d): one token, the patches' mean, or attention.

With a `mask` (b, n), Keras' own or passed, mean and attention ignore tokens that do not exist (False); without any
token the result is that of zeros. With `sizes` (b, n), integers, a token counts as often as its size, the number of
tokens it is the mean of (layers.ReducingBlock).
"""

from typing import Any

import keras
from keras import ops

from keras_vit.layers.arguments import choice, integer, number
from keras_vit.layers.attention.token_masks import attendable, masked_softmax, present, token_count
from keras_vit.layers.blocks.mlp import ACTIVATIONS, MlpBlock
from keras_vit.layers.dense import ComposedLayer, Dense
from keras_vit.layers.registration import serializable


@serializable
class TokenPooling(keras.layers.Layer):
    """Takes token 0, the class token (as in the paper), or 1, DeiT's distillation token."""

    def __init__(self, index: int = 0, **kwargs: Any):
        super().__init__(**kwargs)
        self.index = integer(index, "TokenPooling: index", least=0)
        self.supports_masking = True
        self.input_spec = keras.layers.InputSpec(ndim=3)

    def build(self, input_shape):
        if input_shape[1] is not None and input_shape[1] <= self.index:
            raise ValueError(f"TokenPooling: index={self.index}, but there are only {input_shape[1]} tokens.")

    def call(self, x):
        return x[:, self.index]

    def compute_mask(self, inputs, previous_mask):
        return None

    def compute_output_shape(self, input_shape):
        return (input_shape[0], input_shape[-1])


@serializable
class EndPooling(keras.layers.Layer):
    """Takes the token at a text's end: the first with the number `end` (CLIP, arXiv 2103.00020, section 2.4).

    Args:
        end: number of the token that ends a text. Without it in a text the first token is taken.

    Inputs: tokens (b, n, d) and their numbers (b, n), integers. Output (b, d).
    """

    def __init__(self, end: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.end = integer(end, "EndPooling: end", least=0)

    def call(self, x, numbers):
        place = ops.argmax(ops.cast(ops.equal(numbers, self.end), "int32"), axis=1)  # (b,)
        return ops.take_along_axis(x, place[:, None, None], axis=1)[:, 0]  # (b, n, d) -> (b, d)

    def compute_output_shape(self, x_shape, numbers_shape):
        return (x_shape[0], x_shape[-1])


@serializable
class MeanPooling(keras.layers.Layer):
    """Averages the tokens after the first `prefix`; without class and distillation token and registers, that is GAP."""

    def __init__(self, prefix: int = 0, **kwargs: Any):
        super().__init__(**kwargs)
        self.prefix = integer(prefix, "MeanPooling: prefix", least=0)
        self.supports_masking = True
        self.input_spec = keras.layers.InputSpec(ndim=3)

    def build(self, input_shape):
        if input_shape[1] is not None and input_shape[1] <= self.prefix:
            raise ValueError(f"MeanPooling: prefix={self.prefix} leaves none of {input_shape[1]} tokens.")

    def call(self, x, mask=None, sizes=None):
        if mask is None and sizes is None:
            return ops.mean(x[:, self.prefix :], axis=1)
        wide = keras.backend.result_type(x.dtype, "float32")
        weights = 1.0 if mask is None else ops.cast(present(x, mask), wide)
        weights = weights if sizes is None else weights * ops.cast(sizes, wide)
        weights = weights[:, self.prefix :, None]  # (b, n, 1)
        values = ops.where(weights > 0, ops.cast(x[:, self.prefix :], wide), 0.0)
        total = ops.sum(values * weights, axis=1)  # (b, d)
        return ops.cast(total / ops.maximum(ops.sum(weights, axis=1), 1.0), x.dtype)

    def compute_mask(self, inputs, previous_mask):
        return None

    def compute_output_shape(self, input_shape):
        return (input_shape[0], input_shape[-1])


@serializable
class AttentionPooling(ComposedLayer):
    """Multi-head attention pooling (MAP, arXiv 2106.04560): a learned query attends to all tokens, then a residual MLP.

    Args:
        heads: number of heads k.
        mlp_dim, mlp_activation: of the MLP.
        epsilon: of its layer normalisation.
    """

    def __init__(self, heads: int, mlp_dim: int, mlp_activation: str = "gelu", epsilon: float = 1e-6, **kwargs: Any):
        super().__init__(**kwargs)
        self.heads = integer(heads, "AttentionPooling: heads")
        self.mlp_dim = integer(mlp_dim, "AttentionPooling: mlp_dim")
        self.mlp_activation = choice(mlp_activation, "AttentionPooling: mlp_activation", ACTIVATIONS)
        self.epsilon = number(epsilon, "AttentionPooling: epsilon", least=0)
        self.supports_masking = True
        self.input_spec = keras.layers.InputSpec(ndim=3)

    def build(self, input_shape):
        width = input_shape[-1]
        if width % self.heads:
            raise ValueError(
                f"AttentionPooling: a width of {width} does not divide into {self.heads} heads. Change heads."
            )
        self.probe = self.add_weight(shape=(1, 1, width), initializer="glorot_uniform", name="probe")
        policy = self.dtype_policy
        self.query = Dense(width, dtype=policy, name="query")
        self.key = Dense(width, dtype=policy, name="key")
        self.value = Dense(width, dtype=policy, name="value")
        self.out = Dense(width, dtype=policy, name="out")
        for dense in (self.query, self.key, self.value, self.out):
            dense.build(input_shape)
        self.norm = keras.layers.LayerNormalization(epsilon=self.epsilon, dtype=policy, name="norm")
        self.norm.build((None, 1, width))
        self.mlp = MlpBlock(self.mlp_dim, mlp_activation=self.mlp_activation, dtype=policy, name="mlp")
        self.mlp.build((None, 1, width))
        self.restore_dense()

    def _split(self, x):
        x = ops.reshape(x, (-1, token_count(x), self.heads, x.shape[2] // self.heads))  # (b, n, d) -> (b, n, k, c)
        return ops.transpose(x, (0, 2, 1, 3))  # (b, k, n, c)

    def attention_weights(self, x: Any, mask: Any = None, sizes: Any = None) -> Any:
        """The query's attention to each token: (b, n, d) -> (b, k, 1, n), rows summing to 1, or 0 if all is masked."""
        q = self._split(self.query(ops.cast(self.probe, x.dtype)))[0, :, 0]  # (1, k, 1, c) -> (k, c)
        q, k = q * ops.cast(q.shape[-1] ** -0.5, q.dtype), self._split(self.key(x))  # (k, c), (b, k, n, c)
        scores = ops.sum(q[:, None] * k, axis=-1)[:, :, None]  # (b, k, n, c) -> (b, k, 1, n)
        if sizes is not None:
            log_sizes = ops.log(ops.cast(sizes, "float32"))
            scores = scores + ops.cast(log_sizes[:, None, None, :], scores.dtype)  # (b, n) -> (b, 1, 1, n)
        return masked_softmax(scores, attendable(x, self.heads, mask))

    def call(self, x, mask=None, sizes=None):
        weights, v = self.attention_weights(x, mask, sizes), self._split(self.value(x))  # (b, k, 1, n), (b, k, n, c)
        y = ops.transpose(ops.matmul(weights, v), (0, 2, 1, 3))  # (b, 1, k, c)
        y = self.out(ops.reshape(y, (-1, 1, x.shape[2])))  # (b, 1, k, c) -> (b, 1, d)
        return (y + self.mlp(self.norm(y)))[:, 0]

    def compute_mask(self, inputs, previous_mask):
        return None

    def compute_output_shape(self, input_shape):
        return (input_shape[0], input_shape[-1])
