"""The projector of LW-DETR (arXiv 2406.03459, section 3.1): maps of several blocks, side by side, to one map per scale.

A C2f block (of YOLOv8) mixes them: half of its channels pass through a chain of convolutions, and the results of all
steps are joined.

Letters: b images, h w places, d width of the encoder, c channels of the result.
"""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_vit.layers.arguments import integer
from keras_vit.layers.normalization import LayerNormalization
from keras_vit.layers.registration import serializable
from keras_vit.models.heads.parts import ConvBlock, Enlargement, convolution, normalization

SCALES = (2.0, 1.0, 0.5)
_WIDE = 512  # channels from which an enlargement is preceded by a 1x1 convolution


def scaled(size: tuple[int, int], scale: float) -> tuple[int, int]:
    """The size of a map at one of SCALES; halves are rounded up."""
    h, w = size
    return {2.0: (2 * h, 2 * w), 1.0: (h, w), 0.5: (-(-h // 2), -(-w // 2))}[scale]


@serializable
class C2f(keras.layers.Layer):
    """(b, h, w, d) -> (b, h, w, width).

    Args:
        width: c.
        blocks: steps of the chain, two 3x3 convolutions each.
        norm: as in ConvBlock.
    """

    def __init__(self, width: int, blocks: int = 3, norm: str = "layer", **kwargs: Any):
        super().__init__(**kwargs)
        self.width, self.blocks, self.norm = integer(width, "C2f: width"), integer(blocks, "C2f: blocks"), norm
        options = {"norm": norm, "activation": "silu", "dtype": self.dtype_policy}
        half = self.width // 2
        self.first = ConvBlock(2 * half, 1, name="first", **options)
        names = (f"step_{i}_{j}" for i in range(self.blocks) for j in range(2))
        self.steps = [ConvBlock(half, 3, name=name, **options) for name in names]
        self.last = ConvBlock(self.width, 1, name="last", **options)

    def build(self, input_shape):
        half, place = self.width // 2, input_shape[:-1]
        self.first.build(input_shape)
        for step in self.steps:
            step.build((*place, half))
        self.last.build((*place, (2 + self.blocks) * half))

    def call(self, x, training=False):
        kept = ops.split(self.first(x, training=training), 2, axis=-1)
        x = kept[-1]
        for i, step in enumerate(self.steps):
            x = step(x, training=training)
            kept += [x] if i % 2 else []
        return self.last(ops.concatenate(kept, axis=-1), training=training)

    def compute_output_shape(self, input_shape):
        return (*input_shape[:-1], self.width)


@serializable
class Resampling(keras.layers.Layer):
    """Doubles or halves a map: (b, h, w, d) -> (b, 2h, 2w, d/2) or (b, h/2, w/2, d).

    A transposed convolution doubles it, for more than 512 channels after a 1x1 convolution that halves these, to d/4
    channels in all. A 3x3 convolution halves it.

    Args:
        scale: 2 or 0.5.
        norm: as in ConvBlock.
    """

    def __init__(self, scale: float, norm: str = "batch", **kwargs: Any):
        super().__init__(**kwargs)
        self.scale, self.norm = scale, norm

    def build(self, input_shape):
        b, h, w, d = input_shape
        policy = self.dtype_policy
        self.narrowing = self.enlargement = self.convolution = None
        if self.scale == 2:
            if d > _WIDE:
                self.narrowing = ConvBlock(d // 2, 1, self.norm, dtype=policy, name="narrowing")
                self.narrowing.build(input_shape)
                d //= 2
            self.enlargement = Enlargement(2, d // 2, dtype=policy, name="enlargement")
            self.enlargement.build((b, h, w, d))
            return
        options = {"use_bias": False, "strides": 2, "padding": "valid"}
        self.convolution = convolution(d, 3, policy, "conv", **options)
        self.normalization = normalization(self.norm, d, policy)
        self.convolution.build((b, h + 2, w + 2, d))
        self.normalization.build(self.compute_output_shape(input_shape))

    def call(self, x, training=False):
        if self.enlargement is not None:
            return self.enlargement(x if self.narrowing is None else self.narrowing(x, training=training))
        x = self.convolution(ops.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0))))  # as torch pads
        x = self.normalization(x) if self.norm == "group" else self.normalization(x, training=training)
        return ops.relu(x)

    def compute_output_shape(self, input_shape):
        b, h, w, d = input_shape
        if self.scale == 2:
            d //= 4 if d > _WIDE else 2
        return (b, *scaled((h, w), self.scale), d)


@serializable
class Projector(keras.layers.Layer):
    """Maps of blocks to one map per scale: [(b, h, w, d), ...] -> [(b, h*scale, w*scale, width), ...].

    Args:
        width: c.
        scales: of the results, some of SCALES.
        blocks, norm: as in C2f.
    """

    def __init__(
        self, width: int, scales: Sequence[float] = (1.0,), blocks: int = 3, norm: str = "layer", **kwargs: Any
    ):
        super().__init__(**kwargs)
        self.width, self.norm = integer(width, "Projector: width"), norm
        self.scales = tuple(scales)
        self.blocks = integer(blocks, "Projector: blocks")

    def build(self, input_shapes):
        policy, options = self.dtype_policy, {"norm": self.norm, "dtype": self.dtype_policy}
        self.resampling, self.mixers, self.norms = [], [], []
        for i, scale in enumerate(self.scales):
            # One for each block's map, at the scale 1 none.
            count = 0 if scale == 1 else len(input_shapes)
            self.resampling.append([Resampling(scale, name=f"resampling_{i}_{j}", **options) for j in range(count)])
            self.mixers.append(C2f(self.width, self.blocks, name=f"mixer_{i}", **options))
            self.norms.append(LayerNormalization(1e-6, dtype=policy, name=f"norm_{i}"))
            shapes = list(input_shapes)
            for j, layer in enumerate(self.resampling[i]):
                layer.build(shapes[j])
                shapes[j] = layer.compute_output_shape(shapes[j])
            self.mixers[i].build((*shapes[0][:-1], sum(shape[-1] for shape in shapes)))
            self.norms[i].build((*shapes[0][:-1], self.width))

    def call(self, maps, training=False):
        made = []
        for layers, mixer, norm in zip(self.resampling, self.mixers, self.norms):
            at_scale = [layer(x, training=training) for layer, x in zip(layers, maps)] if layers else maps
            made.append(norm(mixer(ops.concatenate(at_scale, axis=-1), training=training), training=training))
        return made

    def compute_output_shape(self, input_shapes):
        b, h, w, _ = input_shapes[0]
        return [(b, *scaled((h, w), scale), self.width) for scale in self.scales]

    def compute_output_spec(self, maps, training=False):
        shapes = self.compute_output_shape([x.shape for x in maps])
        return [keras.KerasTensor(shape, self.compute_dtype) for shape in shapes]
