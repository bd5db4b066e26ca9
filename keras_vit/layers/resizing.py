"""Bilinear resizing of maps, differentiable everywhere: TensorFlow's operation, or one matrix product per axis."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.layers.backend import resized_bilinearly
from keras_vit.layers.embedding.patches import pair
from keras_vit.layers.positions.interpolation import METHODS
from keras_vit.layers.registration import serializable


def resized_dtype(dtype: Any) -> str:
    """The dtype of maps once they are resized: float32 or wider."""
    return keras.backend.result_type(dtype, "float32")


def resize_bilinear(x: Any, size: tuple[int, int], aligned: bool = False) -> Any:
    """Maps at another size: (b, h, w, c) -> (b, h', w', c), in float32 or wider.

    Args:
        x: of static height and width.
        size: (h', w').
        aligned: whether the corner pixels' centres stay in the corners (`align_corners=True` in PyTorch), rather than
            the outer edges. Neither is antialiased.
    """
    x = ops.cast(x, resized_dtype(x.dtype))
    dtype = keras.backend.standardize_dtype(x.dtype)
    if tuple(x.shape[1:3]) == tuple(size):
        return x
    if (resized := resized_bilinearly(x, size, aligned)) is not None:
        return resized
    for axis, new in enumerate(size, start=1):
        old = x.shape[axis]
        if old != new:
            weights = METHODS["google" if aligned else "bilinear"](old, new).astype(dtype)  # (new, old)
            x = along_axis(x, weights, axis)
    return x


def pool_to(x: Any, size: tuple[int, int]) -> Any:
    """Means over bins that cover a map: (b, h, w, c) -> (b, h', w', c), in float32 or wider.

    Bin i of n reaches from floor(i h / n) to ceil((i + 1) h / n), as in PyTorch's AdaptiveAvgPool2d.
    """
    x = ops.cast(x, resized_dtype(x.dtype))
    for axis, bins in enumerate(size, start=1):
        if bins == 1:
            x = ops.mean(x, axis=axis, keepdims=True)  # tf2onnx converts a product with one column wrongly
            continue
        old = x.shape[axis]
        weights = np.zeros((bins, old), keras.backend.standardize_dtype(x.dtype))
        for i in range(bins):
            start, stop = i * old // bins, -(-(i + 1) * old // bins)
            weights[i, start:stop] = 1 / (stop - start)
        x = along_axis(x, weights, axis)
    return x


def along_axis(x: Any, weights: np.ndarray, axis: int) -> Any:
    """Weighted sums of a map's rows (axis 1) or columns (2): (b, h, w, c) and (h', h) -> (b, h', w, c)."""
    there, back = ((0, 2, 3, 1), (0, 3, 1, 2)) if axis == 1 else ((0, 1, 3, 2), (0, 1, 3, 2))
    y = ops.matmul(ops.transpose(x, there), weights.T)  # (b, w, c, h) -> (b, w, c, h'); (b, h, c, w) -> (b, h, c, w')
    return ops.transpose(y, back)


@serializable
class LogitsAtPixels(keras.layers.Layer):
    """A dense head's logits at the image's size: (b, h, w, classes) -> (b, height, width, classes), float32 or wider.

    Args:
        size: (height, width) in pixels.
    """

    returns = "logits"  # for the checks of losses and metrics

    def __init__(self, size: int | tuple[int, int], **kwargs: Any):
        super().__init__(**{"autocast": False, **kwargs})
        self.size = pair(size, "LogitsAtPixels: size")

    def build(self, input_shape):
        self.built = True

    def call(self, x):
        return resize_bilinear(x, self.size)

    def compute_output_shape(self, input_shape):
        return (input_shape[0], *self.size, input_shape[-1])
