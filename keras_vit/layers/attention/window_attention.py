"""Attention inside windows of a map, shifted or not: Swin (arXiv 2103.14030) and Swin V2 (arXiv 2111.09883)."""

import math
from typing import Any

import keras
from keras import ops

from keras_vit.layers.arguments import flag, integer, rate
from keras_vit.layers.attention.token_masks import masked_softmax
from keras_vit.layers.attention.windows import pad, padding, partition, roll, shifted_regions, unpartition
from keras_vit.layers.dense import ComposedLayer, Dense
from keras_vit.layers.dropout import Dropout, fold_in
from keras_vit.layers.embedding.patches import pair
from keras_vit.layers.positions.continuous import ContinuousBias
from keras_vit.layers.positions.relative import RelativeBias
from keras_vit.layers.registration import serializable

_SCALE = math.log(10)  # the logarithm of the scale of cosines, at the start
_LARGEST_SCALE = math.log(100)


def _unit(x):
    """Vectors (..., c) of length 1, computed in float32."""
    exact = ops.cast(x, keras.backend.result_type(x.dtype, "float32"))
    square = ops.sum(ops.square(exact), axis=-1, keepdims=True)
    return ops.cast(exact * ops.rsqrt(ops.maximum(square, 1e-24)), x.dtype)


@serializable
class WindowAttention(ComposedLayer):
    """Multi-head self-attention among the places of each window, with a relative position bias.

    Args:
        heads: number of heads k.
        window: places of a window, a number or (rows, columns).
        shift: places (down, right) by which the windows are shifted, fewer than a window's.
        cosine: as in Swin V2: scores are cosines times a learned scale, the bias is layers.ContinuousBias instead of
            the table of layers.RelativeBias, and keys have no bias.
        pretrained_window: window that a ContinuousBias was trained with; None for `window`.
        roll_first: for maps that are not whole windows: shift the map, then pad it (timm), instead of the reverse.
        qkv_bias: whether query, key and value have biases.
        dropout: rate after the output map.
        attention_dropout: rate on the attention weights.

    Input and output (b, h, w, d), of any known h and w. Zeros that fill the last windows are attended to, as in the
    original. Windows at the edge of a shifted map contain places from two sides of it, which do not see each other.
    """

    def __init__(
        self,
        heads: int,
        window: int | tuple[int, int],
        shift: tuple[int, int] = (0, 0),
        cosine: bool = False,
        pretrained_window: int | tuple[int, int] | None = None,
        roll_first: bool = False,
        qkv_bias: bool = True,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        owner = "WindowAttention"
        self.heads = integer(heads, f"{owner}: heads")
        self.window = pair(window, f"{owner}: window")
        down, right = (integer(step, f"{owner}: shift", least=0) for step in shift)
        self.shift = (down, right)
        if any(step >= side for step, side in zip(self.shift, self.window)):
            raise ValueError(
                f"{owner}: shift must be two numbers of places, fewer than the window's {self.window}, got {shift!r}."
            )
        self.cosine = flag(cosine, f"{owner}: cosine")
        self.pretrained_window = (
            None if pretrained_window is None else pair(pretrained_window, f"{owner}: pretrained_window")
        )
        self.roll_first = flag(roll_first, f"{owner}: roll_first")
        self.qkv_bias = flag(qkv_bias, f"{owner}: qkv_bias")
        self.dropout = rate(dropout, f"{owner}: dropout")
        self.attention_dropout = rate(attention_dropout, f"{owner}: attention_dropout")
        self.input_spec = keras.layers.InputSpec(ndim=4)

    def build(self, input_shape):
        width, policy = input_shape[-1], self.dtype_policy
        if width % self.heads:
            raise ValueError(f"WindowAttention: a width of {width} does not divide into {self.heads} heads.")
        self.size = width // self.heads
        tokens = (None, math.prod(self.window), width)
        self.query = Dense(width, use_bias=self.qkv_bias, dtype=policy, name="query")
        self.key = Dense(width, use_bias=self.qkv_bias and not self.cosine, dtype=policy, name="key")
        self.value = Dense(width, use_bias=self.qkv_bias, dtype=policy, name="value")
        self.out = Dense(width, dtype=policy, name="out")
        if self.cosine:
            self.bias = ContinuousBias(self.window, self.pretrained_window, dtype=policy, name="continuous")
            initializer = keras.initializers.Constant(_SCALE)
            self.scale = self.add_weight(shape=(self.heads, 1, 1), initializer=initializer, name="scale")
        else:
            self.bias = RelativeBias(self.window, dtype=policy, name="relative2d")
        for dense in (self.query, self.key, self.value, self.out):
            dense.build(tokens)
        self.bias.build((None, self.heads, tokens[1], self.size))
        self.weights_dropout = Dropout(self.attention_dropout, dtype=self.compute_dtype, name="attention_dropout")
        self.out_dropout = Dropout(self.dropout, dtype=self.compute_dtype, name="dropout")
        self.restore_dense()

    def _rolled(self, x, direction):
        return roll(x, (direction * self.shift[0], direction * self.shift[1]))

    def windows(self, x: Any) -> Any:
        """The windows of a map, shifted and padded: (b, h, w, d) -> (b*m, n, d)."""
        x = pad(self._rolled(x, -1), self.window) if self.roll_first else self._rolled(pad(x, self.window), -1)
        return partition(x, self.window)

    def _map(self, windows, h, w):
        """The inverse of `windows`: (b*m, n, d) -> (b, h, w, d)."""
        x = unpartition(windows, self.window, self._padded(h, w))
        return self._rolled(x[:, :h, :w], 1) if self.roll_first else self._rolled(x, 1)[:, :h, :w]

    def _padded(self, h, w):
        below, right = padding((h, w), self.window)
        return h + below, w + right

    def _split(self, x):
        x = ops.reshape(x, (-1, x.shape[1], self.heads, self.size))  # (b*m, n, k*c) -> (b*m, n, k, c)
        return ops.transpose(x, (0, 2, 1, 3))  # (b*m, k, n, c)

    def _scores(self, q, keys):
        """Products of queries and keys (b*m, k, n, c), with the bias: (b*m, k, n, n)."""
        if self.cosine:
            scale = ops.exp(ops.minimum(ops.cast(self.scale, "float32"), _LARGEST_SCALE))
            q, keys = _unit(q) * ops.cast(scale, q.dtype), _unit(keys)
        else:
            q = q * ops.cast(self.size**-0.5, q.dtype)
        return ops.matmul(q, ops.transpose(keys, (0, 1, 3, 2))) + self.bias(q)

    def window_weights(self, windows: Any, size: tuple[int, int]) -> Any:
        """The attention weights (b*m, k, n, n) inside `windows` (b*m, n, d) of a map of `size` (h, w)."""
        scores = self._scores(self._split(self.query(windows)), self._split(self.key(windows)))
        if not any(self.shift):
            return ops.softmax(scores)
        allowed = shifted_regions(self._padded(*size), self.window, self.shift)  # (m, n, n)
        m, n, _ = allowed.shape
        scores = ops.reshape(scores, (-1, m, self.heads, n, n))  # (b*m, k, n, n) -> (b, m, k, n, n)
        weights = masked_softmax(scores, ops.convert_to_tensor(allowed)[None, :, None])
        return ops.reshape(weights, (-1, self.heads, n, n))  # (b*m, k, n, n)

    def received(self, x: Any, shares: Any) -> Any:
        """The attention that places receive, head by head.

        Args:
            x: the layer's input (b, h, w, d).
            shares: (b, h, w) float32, the weight of each attending place.

        Returns:
            (b, h, w, k) float32: attention weights times the attending place's share, summed. The attention to zeros
                that fill windows receive is lost.
        """
        h, w = x.shape[1:3]
        weights = ops.cast(self.window_weights(self.windows(x), (h, w)), "float32")  # (b*m, k, n, n)
        attending = self.windows(shares[..., None])[:, None]  # (b*m, 1, n, 1)
        y = ops.matmul(ops.transpose(weights, (0, 1, 3, 2)), attending)[..., 0]  # (b*m, k, n)
        return self._map(ops.transpose(y, (0, 2, 1)), h, w)

    def call(self, x, training=False, seed=None):
        """With `seed`, (2,) integers, both dropouts take their masks from it; otherwise from their own generators."""
        h, w = x.shape[1:3]
        windows = self.windows(x)  # (b*m, n, d)
        weights = self.window_weights(windows, (h, w))
        weights = self.weights_dropout(weights, training=training, seed=None if seed is None else fold_in(seed, 1))
        y = ops.matmul(weights, self._split(self.value(windows)))  # (b*m, k, n, c)
        y = ops.transpose(y, (0, 2, 1, 3))  # (b*m, n, k, c)
        y = self.out(ops.reshape(y, (-1, windows.shape[1], self.heads * self.size)))  # (b*m, n, k*c) -> (b*m, n, d)
        return self.out_dropout(self._map(y, h, w), training=training, seed=seed)

    def compute_output_shape(self, input_shape, **_):
        return input_shape
