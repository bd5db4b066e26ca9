"""Continuous relative position bias (Swin V2, arXiv 2111.09883, section 3.3): a bias for windows of any size."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.layers.embedding.patches import pair
from keras_vit.layers.positions.relative import between_patches
from keras_vit.layers.registration import serializable

_HIDDEN = 512  # units of the small MLP
_LARGEST = 16.0  # bias


def log_offsets(window: tuple[int, int], pretrained: tuple[int, int]) -> np.ndarray:
    """The offsets of a window's places, relative to the size of the window trained with, on a logarithmic scale.

    Args:
        window, pretrained: (rows, columns).

    Returns:
        (2 rows - 1, 2 columns - 1, 2) float32: sign(x) log2(1 + 8 |x|) / 3 for x = offset / (pretrained - 1), which is
            from -1 to 1 in a window of the pretrained size.
    """
    axes = [np.arange(1 - side, side) / max(before - 1, 1) for side, before in zip(window, pretrained)]
    x = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)
    return (np.sign(x) * np.log2(1 + 8 * np.abs(x)) / 3).astype("float32")


@serializable
class ContinuousBias(keras.layers.Layer):
    """A small MLP from two places' offset to a bias for each head, between 0 and 16.

    Args:
        window: (rows, columns) of places that attend to each other.
        pretrained: (rows, columns) of the window that the weights were trained with; None for `window`.

    Input: queries (b, k, n, c), of which only the shape counts. Output: addition to the scores, (1, k, n, n). Computes
    in float32.
    """

    def __init__(self, window: tuple[int, int], pretrained: tuple[int, int] | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        self.window = pair(window, "ContinuousBias: window")
        self.pretrained = None if pretrained is None else pair(pretrained, "ContinuousBias: pretrained")
        self.input_spec = keras.layers.InputSpec(ndim=4)

    def build(self, input_shape):
        normal = keras.initializers.TruncatedNormal(stddev=0.02)
        # Not named "kernel": weight decay leaves them out, as the original.
        self.hidden = self.add_weight(shape=(2, _HIDDEN), initializer=normal, name="hidden")
        self.hidden_bias = self.add_weight(shape=(_HIDDEN,), initializer="zeros", name="hidden_bias")
        self.out = self.add_weight(shape=(_HIDDEN, input_shape[1]), initializer=normal, name="out")

    def call(self, queries):
        hidden, bias, out = (ops.cast(w, "float32") for w in (self.hidden, self.hidden_bias, self.out))
        offsets = ops.convert_to_tensor(log_offsets(self.window, self.pretrained or self.window))
        x = ops.matmul(ops.relu(ops.matmul(offsets, hidden) + bias), out)  # (2 rows - 1, 2 columns - 1, k)
        return between_patches(ops.cast(_LARGEST * ops.sigmoid(x), queries.dtype), self.window)

    def compute_output_shape(self, input_shape):
        _, k, n, _ = input_shape
        return (1, k, n, n)
