"""Parts of dense heads: convolutions with normalisation and ReLU, and the classifier of places."""

import math
from typing import Any

import keras
from keras import ops

from keras_vit.layers.arguments import choice, integer, rate
from keras_vit.layers.dropout import Dropout
from keras_vit.layers.normalization import BatchNormalization, LayerNormalization
from keras_vit.layers.registration import serializable

NORMS = ("batch", "group", "layer")
GROUPS = 32  # at most, as in mmsegmentation


def convolution(filters: int, kernel_size: int, policy: Any, name: str, **options: Any) -> keras.layers.Conv2D:
    """A convolution with stride 1 that keeps the map's size; `options` as in keras.layers.Conv2D."""
    given = {"padding": "same", "kernel_initializer": "he_normal", "data_format": "channels_last", **options}
    return keras.layers.Conv2D(filters, kernel_size, dtype=policy, name=name, **given)


def normalization(kind: str, width: int, policy: Any, name: str = "norm") -> keras.layers.Layer:
    """Batch normalisation over the global batch, with PyTorch's momentum; group normalisation, 32 groups at most; or
    layer normalisation of each place.
    """
    if choice(kind, "norm", NORMS) == "batch":
        return BatchNormalization(momentum=0.9, epsilon=1e-5, dtype=policy, name=name)
    if kind == "layer":
        return LayerNormalization(1e-5, dtype=policy, name=name)
    return keras.layers.GroupNormalization(math.gcd(GROUPS, width), epsilon=1e-5, dtype=policy, name=name)


@serializable
class ConvBlock(keras.layers.Layer):
    """Convolution without bias, normalisation and activation: (b, h, w, d) -> (b, h, w, width).

    Args:
        width: number of channels.
        kernel_size: 1 or 3.
        norm: a row of NORMS.
        activation: "relu" or "silu".
    """

    def __init__(self, width: int, kernel_size: int = 3, norm: str = "batch", activation: str = "relu", **kwargs: Any):
        super().__init__(**kwargs)
        self.width = integer(width, "ConvBlock: width")
        self.kernel_size = integer(kernel_size, "ConvBlock: kernel_size")
        self.norm = choice(norm, "ConvBlock: norm", NORMS)
        self.activation = choice(activation, "ConvBlock: activation", ("relu", "silu"))
        policy = self.dtype_policy
        self.convolution = convolution(width, kernel_size, policy, "conv", use_bias=False)
        self.normalization = normalization(norm, width, policy)

    def build(self, input_shape):
        self.convolution.build(input_shape)
        self.normalization.build((*input_shape[:-1], self.width))

    def call(self, x, training=False):
        x = self.convolution(x)
        x = self.normalization(x) if self.norm == "group" else self.normalization(x, training=training)
        return ops.relu(x) if self.activation == "relu" else ops.silu(x)

    def compute_output_shape(self, input_shape):
        return (*input_shape[:-1], self.width)


@serializable
class Enlargement(keras.layers.Layer):
    """A transposed convolution with kernel and stride `factor`: (b, h, w, d) -> (b, h*factor, w*factor, width).

    Args:
        factor: of height and width.
        width: number of channels; None for the input's.
    """

    def __init__(self, factor: int, width: int | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        self.factor = integer(factor, "Enlargement: factor")
        self.width = None if width is None else integer(width, "Enlargement: width")

    def build(self, input_shape):
        d = input_shape[-1]
        shape = (d, self.factor, self.factor, self.width or d)
        self.kernel = self.add_weight(shape=shape, initializer=_fan_in(d), name="kernel")
        self.bias = self.add_weight(shape=shape[-1:], initializer="zeros", name="bias")

    def call(self, x):
        (_, h, w, d), f, c = x.shape, self.factor, self.bias.shape[0]
        x = ops.matmul(x, ops.reshape(self.kernel, (d, f * f * c)))  # no two kernels overlap: a matrix product
        x = ops.reshape(x, (-1, h, w, f, f, c))  # (b, h, w, f*f*c) -> (b, h, w, f, f, c)
        x = ops.transpose(x, (0, 1, 3, 2, 4, 5))  # (b, h, f, w, f, c)
        return ops.reshape(x, (-1, h * f, w * f, c)) + self.bias  # (b, h*f, w*f, c)

    def compute_output_shape(self, input_shape):
        b, h, w, d = input_shape
        return (b, h * self.factor, w * self.factor, self.width or d)


def _fan_in(d):
    """He's initialisation for d inputs, whatever the kernel's shape."""
    return keras.initializers.RandomNormal(stddev=math.sqrt(2 / d))


@serializable
class PlaceClassifier(keras.layers.Layer):
    """Dropout, then a linear layer on every place, in full precision: (b, h, w, d) -> logits (b, h, w, classes).

    Args:
        classes: number of outputs.
        dropout: rate.
    """

    def __init__(self, classes: int, dropout: float = 0.0, **kwargs: Any):
        super().__init__(**kwargs)
        self.classes = integer(classes, "PlaceClassifier: classes")
        self.dropout = rate(dropout, "PlaceClassifier: dropout")
        policy = self.dtype_policy
        self.drop = Dropout(self.dropout, dtype=policy, name="dropout")
        self.linear = keras.layers.Dense(
            self.classes,
            kernel_initializer=keras.initializers.RandomNormal(stddev=0.01),
            dtype=policy.variable_dtype,
            name="linear",
        )

    def build(self, input_shape):
        self.linear.build(input_shape)

    def call(self, x, training=False):
        return self.linear(self.drop(x, training=training))

    def compute_output_shape(self, input_shape):
        return (*input_shape[:-1], self.classes)


@serializable
class FCNHead(keras.layers.Layer):
    """An auxiliary head: convolutions, then the classifier: [map (b, h, w, d)] -> logits (b, h, w, classes).

    Args:
        classes: number of outputs.
        width: channels of the convolutions.
        convs: number of 3x3 convolutions; 0 for the classifier alone.
        norm, dropout: as in ConvBlock and PlaceClassifier.
    """

    def __init__(
        self,
        classes: int,
        width: int = 256,
        convs: int = 1,
        norm: str = "batch",
        dropout: float = 0.0,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.classes, self.width, self.norm, self.dropout = classes, width, norm, dropout
        self.convs = integer(convs, "FCNHead: convs", least=0)
        policy = self.dtype_policy
        self.blocks = [ConvBlock(width, 3, norm, dtype=policy, name=f"conv_{i}") for i in range(convs)]
        self.classifier = PlaceClassifier(classes, dropout, dtype=policy, name="classifier")

    def build(self, input_shapes):
        [shape] = input_shapes
        for block in self.blocks:
            block.build(shape)
            shape = (*shape[:-1], self.width)
        self.classifier.build(shape)

    def call(self, maps, training=False):
        [x] = maps
        for block in self.blocks:
            x = block(x, training=training)
        return self.classifier(x, training=training)

    def compute_output_spec(self, maps, training=False):
        return keras.KerasTensor((*maps[0].shape[:-1], self.classes), self.variable_dtype)
