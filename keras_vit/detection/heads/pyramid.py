"""Feature pyramids for detectors: ViTDet's simple one from a last map (arXiv 2203.16527, section 3), and the top-down
one of convolutional networks (FPN, arXiv 1612.03144).
"""

import math
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_vit.layers.arguments import integer
from keras_vit.layers.normalization import LayerNormalization
from keras_vit.layers.registration import serializable
from keras_vit.layers.resizing import resize_bilinear
from keras_vit.models.heads.parts import Enlargement, convolution

_EPSILON = 1e-6


def doublings(scales: Any) -> tuple[int, ...]:
    """The base-2 logarithms of scales such as 2, 1 and 0.5; ValueError unless descending powers of two up to 4."""
    values = list(scales) if isinstance(scales, (list, tuple)) else [scales]
    powers = []
    for value in values:
        power = math.log2(value) if isinstance(value, (int, float)) and value > 0 else None
        if power is not None and power == round(power) <= 2:
            powers.append(round(power))
    if not values or len(powers) < len(values) or any(a <= b for a, b in zip(powers, powers[1:])):
        raise ValueError(f"scales should be powers of two from 4 down, each once, such as (2, 1, 0.5), got {scales!r}.")
    return tuple(powers)


@serializable
class Lateral(keras.layers.Layer):
    """1x1 and 3x3 convolutions without bias, each with LayerNorm over channels: (b, h, w, d) -> (b, h, w, width).

    Args:
        width: number of channels.
    """

    def __init__(self, width: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.width = integer(width, "Lateral: width")

    def build(self, input_shape):
        policy, shape = self.dtype_policy, (*input_shape[:-1], self.width)
        self.first = convolution(self.width, 1, policy, "conv_0", use_bias=False)
        self.second = convolution(self.width, 3, policy, "conv_1", use_bias=False)
        self.norms = [LayerNormalization(_EPSILON, dtype=policy, name=f"norm_{i}") for i in range(2)]
        self.first.build(input_shape)
        for layer in (self.second, *self.norms):
            layer.build(shape)

    def call(self, x, training=False):
        x = self.norms[0](self.first(x), training=training)
        return self.norms[1](self.second(x), training=training)

    def compute_output_shape(self, input_shape):
        return (*input_shape[:-1], self.width)


@serializable
class Rescaling(keras.layers.Layer):
    """A map at 2^power times its size: (b, h, w, d) -> (b, h', w', d'), d' = d / 2^power for power above 0.

    4: transposed convolution to d/2, LayerNorm, GELU, transposed convolution to d/4; 2: transposed convolution to d/2;
    1: the map; below: max-pooling of 2x2, which leaves out a last odd row or column.

    Args:
        power: 2 or less.
    """

    def __init__(self, power: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.power = power

    def build(self, input_shape):
        b, h, w, d = input_shape
        policy = self.dtype_policy
        self.enlargements, self.norm = [], None
        for i in range(max(self.power, 0)):
            layer = Enlargement(2, max(d // 2, 1), dtype=policy, name=f"enlargement_{i}")
            layer.build((b, h, w, d))
            self.enlargements.append(layer)
            b, h, w, d = layer.compute_output_shape((b, h, w, d))
            if i == 0 and self.power == 2:
                self.norm = LayerNormalization(_EPSILON, dtype=policy, name="norm")
                self.norm.build((b, h, w, d))

    def call(self, x, training=False):
        for i, layer in enumerate(self.enlargements):
            if i:
                x = ops.gelu(self.norm(x, training=training), approximate=False)
            x = layer(x)
        for _ in range(-self.power):
            x = ops.max_pool(x, 2, 2, "valid", data_format="channels_last")
        return x

    def compute_output_shape(self, input_shape):
        b, h, w, d = input_shape
        for _ in range(self.power):
            h, w, d = 2 * h, 2 * w, max(d // 2, 1)
        return (b, h // 2 ** max(-self.power, 0), w // 2 ** max(-self.power, 0), d)


@serializable
class SimplePyramid(keras.layers.Layer):
    """[map (b, h, w, d)] -> [(b, h', w', width), ...] at the scales, the largest first.

    Args:
        width: number of channels.
        scales: of the map's height and width, powers of two from 4 down.
    """

    def __init__(self, width: int = 256, scales: Sequence[float] = (4, 2, 1, 0.5), **kwargs: Any):
        super().__init__(**kwargs)
        self.width, self.scales = integer(width, "SimplePyramid: width"), tuple(scales)
        self.powers = doublings(self.scales)

    def build(self, input_shapes):
        [shape] = input_shapes
        policy = self.dtype_policy
        self.rescalings = [Rescaling(p, dtype=policy, name=f"rescaling_{i}") for i, p in enumerate(self.powers)]
        self.laterals = [Lateral(self.width, dtype=policy, name=f"lateral_{i}") for i in range(len(self.powers))]
        for rescaling, lateral in zip(self.rescalings, self.laterals):
            rescaling.build(shape)
            lateral.build(rescaling.compute_output_shape(shape))

    def call(self, maps, training=False):
        [x] = maps
        return [
            lateral(rescaling(x, training=training), training=training)
            for rescaling, lateral in zip(self.rescalings, self.laterals)
        ]

    def compute_output_shape(self, input_shapes):
        [shape] = input_shapes
        return [(*Rescaling(power).compute_output_shape(shape)[:-1], self.width) for power in self.powers]


@serializable
class TopDownPyramid(keras.layers.Layer):
    """Maps [(b, h, w, d), ...], the largest first -> the same sizes with `width` channels; each adds the next, resized.

    Args:
        width: number of channels.
    """

    def __init__(self, width: int = 256, **kwargs: Any):
        super().__init__(**kwargs)
        self.width = integer(width, "TopDownPyramid: width")

    def build(self, input_shapes):
        policy = self.dtype_policy
        self.firsts, self.laterals = [], []
        for i, shape in enumerate(input_shapes):
            self.firsts.append(convolution(self.width, 1, policy, f"first_{i}"))
            self.laterals.append(Lateral(self.width, dtype=policy, name=f"lateral_{i}"))
            self.firsts[i].build(shape)
            self.laterals[i].build((*shape[:-1], self.width))

    def call(self, maps, training=False):
        levels = [first(x) for first, x in zip(self.firsts, maps)]
        for i in range(len(levels) - 1, 0, -1):  # top down
            above = resize_bilinear(levels[i], levels[i - 1].shape[1:3])
            levels[i - 1] = levels[i - 1] + ops.cast(above, levels[i - 1].dtype)
        return [lateral(x, training=training) for lateral, x in zip(self.laterals, levels)]

    def compute_output_shape(self, input_shapes):
        return [(*shape[:-1], self.width) for shape in input_shapes]
