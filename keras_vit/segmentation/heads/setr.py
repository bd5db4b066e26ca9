"""SETR's decoders (arXiv 2012.15840): naive, PUP and MLA, as in mmsegmentation.

The last upsampling comes after the classifier instead of before it. Both are linear and interpolation's weights sum to
1, so that the logits are the same, without maps of many channels at full resolution.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_vit.layers.arguments import choice, integer
from keras_vit.layers.normalization import LayerNormalization
from keras_vit.layers.registration import serializable
from keras_vit.layers.resizing import resize_bilinear, resized_dtype
from keras_vit.models.heads.decoder import Decoder, Encoder
from keras_vit.models.heads.parts import NORMS, ConvBlock, FCNHead, PlaceClassifier

_SHARES = (10 / 24, 15 / 24, 20 / 24, 1.0)  # blocks 9, 14, 19 and 23 of ViT-L
_EVEN = (0.25, 0.5, 0.75, 1.0)  # blocks 5, 11, 17 and 23


def scaled(x: Any, factor: int) -> Any:
    """A map enlarged bilinearly: (b, h, w, d) -> (b, h*factor, w*factor, d)."""
    return resize_bilinear(x, (x.shape[1] * factor, x.shape[2] * factor))


@serializable
class UpsamplingHead(keras.layers.Layer):
    """SETR's naive head and PUP: layer normalisation, then convolutions and upsampling by turns, then the classifier.

    [(b, h, w, d), ...] -> logits (b, h*scale^convs, w*scale^convs, classes), of the last map.

    Args:
        classes: number of outputs.
        width: channels of the convolutions.
        convs: number of convolutions, each followed by upsampling.
        scale: factor of each upsampling.
        kernel_size: 1 (naive) or 3 (PUP).
        norm, dropout: as in ConvBlock and PlaceClassifier.
    """

    def __init__(
        self,
        classes: int,
        width: int = 256,
        convs: int = 1,
        scale: int = 4,
        kernel_size: int = 1,
        norm: str = "batch",
        dropout: float = 0.0,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.classes, self.width, self.kernel_size, self.norm, self.dropout = classes, width, kernel_size, norm, dropout
        self.convs, self.scale = integer(convs, "UpsamplingHead: convs"), integer(scale, "UpsamplingHead: scale")
        policy = self.dtype_policy
        self.input_norm = LayerNormalization(epsilon=1e-6, dtype=policy, name="norm")
        self.blocks = [ConvBlock(width, kernel_size, norm, dtype=policy, name=f"conv_{i}") for i in range(convs)]
        self.classifier = PlaceClassifier(classes, dropout, dtype=policy, name="classifier")

    def build(self, input_shapes):
        shape = input_shapes[-1]
        self.input_norm.build(shape)
        for i, block in enumerate(self.blocks):
            b, h, w, d = shape
            shape = (b, h * self.scale, w * self.scale, d) if i else shape
            block.build(shape)
            shape = (*shape[:-1], self.width)
        self.classifier.build(shape)

    def call(self, maps, training=False):
        x = self.input_norm(maps[-1])
        for i, block in enumerate(self.blocks):
            x = block(scaled(x, self.scale) if i else x, training=training)
        return scaled(self.classifier(x, training=training), self.scale)

    def compute_output_spec(self, maps, training=False):
        (b, h, w, _), factor = maps[-1].shape, self.scale**self.convs
        shape = (b, h * factor, w * factor, self.classes)
        return keras.KerasTensor(shape, resized_dtype(self.variable_dtype))


@serializable
class MLANeck(keras.layers.Layer):
    """Multi-level aggregation: [(b, h, w, d), ...] -> as many (b, h, w, width), the deepest first.

    Args:
        width: channels.
        norm: as in ConvBlock.
    """

    def __init__(self, width: int = 256, norm: str = "batch", **kwargs: Any):
        super().__init__(**kwargs)
        self.width, self.norm = integer(width, "MLANeck: width"), choice(norm, "MLANeck: norm", NORMS)

    def build(self, input_shapes):
        policy, count = self.dtype_policy, len(input_shapes)
        self.norms = [LayerNormalization(epsilon=1e-6, dtype=policy, name=f"norm_{i}") for i in range(count)]
        self.projections = [
            ConvBlock(self.width, 1, self.norm, dtype=policy, name=f"projection_{i}") for i in range(count)
        ]
        self.convolutions = [
            ConvBlock(self.width, 3, self.norm, dtype=policy, name=f"output_{i}") for i in range(count)
        ]
        for shape, *layers, output in zip(input_shapes, self.norms, self.projections, self.convolutions):
            for layer in layers:
                layer.build(shape)
            output.build((*shape[:-1], self.width))

    def call(self, maps, training=False):
        projected = [
            project(norm(x), training=training) for x, norm, project in zip(maps, self.norms, self.projections)
        ]
        sums = []
        for x in reversed(projected):  # top down: each map, and all deeper ones
            sums.append(sums[-1] + x if sums else x)
        return [output(x, training=training) for x, output in zip(sums, self.convolutions)]

    def compute_output_shape(self, input_shapes):
        return [(*shape[:-1], self.width) for shape in input_shapes[::-1]]


@serializable
class MLAHead(keras.layers.Layer):
    """MLA's decoder: two convolutions for each map, concatenated: [(b, h, w, d), ...] -> logits (b, 4h, 4w, classes).

    Args:
        classes: number of outputs.
        width: channels for each map.
        norm, dropout: as in ConvBlock and PlaceClassifier.
    """

    def __init__(self, classes: int, width: int = 128, norm: str = "batch", dropout: float = 0.0, **kwargs: Any):
        super().__init__(**kwargs)
        self.classes, self.dropout = classes, dropout
        self.width, self.norm = integer(width, "MLAHead: width"), choice(norm, "MLAHead: norm", NORMS)
        self.classifier = PlaceClassifier(classes, dropout, dtype=self.dtype_policy, name="classifier")

    def build(self, input_shapes):
        self.branches = [
            [ConvBlock(self.width, 3, self.norm, dtype=self.dtype_policy, name=f"conv_{i}_{j}") for j in range(2)]
            for i in range(len(input_shapes))
        ]
        for shape, (first, second) in zip(input_shapes, self.branches):
            first.build(shape)
            second.build((*shape[:-1], self.width))
        self.classifier.build((*input_shapes[0][:-1], len(input_shapes) * self.width))

    def call(self, maps, training=False):
        found = [
            second(first(x, training=training), training=training) for x, (first, second) in zip(maps, self.branches)
        ]
        x = ops.concatenate(found, axis=-1)  # (b, h, w, k * width)
        return scaled(self.classifier(x, training=training), 4)

    def compute_output_spec(self, maps, training=False):
        b, h, w, _ = maps[0].shape
        return keras.KerasTensor((b, 4 * h, 4 * w, self.classes), resized_dtype(self.variable_dtype))


def _on_first(count, head, classes, **options):
    """Auxiliary heads on the first `count` maps, for Decoder."""
    return tuple((i, head(classes, name=f"auxiliary_{i}", **options)) for i in range(count))


@dataclasses.dataclass(frozen=True)
class Naive:
    """The options of SETR's naive decoder: a 1x1 convolution, and upsampling.

    Attributes:
        taps: four blocks, the last of which the head takes, the others auxiliary heads; None for 9, 14, 19 and 23 of
            24.
        width, norm, dropout: as in UpsamplingHead.
        auxiliary_convs: convolutions of each auxiliary head: 1 on Cityscapes, 2 on ADE20K.
    """

    taps: Sequence[int] | None = None
    width: int = 256
    norm: str = "batch"
    dropout: float = 0.0
    auxiliary_convs: int = 1

    def decoder(self, encoder: Encoder, classes: int, auxiliary: bool, policy: keras.DTypePolicy) -> Decoder:
        """Its layers; see HEADS."""
        taps = encoder.taps_of_one_stride("setr_naive", self.taps, _SHARES)
        options = {"width": self.width, "norm": self.norm, "dropout": self.dropout, "dtype": policy}
        head = UpsamplingHead(classes, name="head", **options)
        others = _on_first(3 if auxiliary else 0, UpsamplingHead, classes, convs=self.auxiliary_convs, **options)
        return Decoder(taps, head, auxiliary=others)


@dataclasses.dataclass(frozen=True)
class PUP:
    """The options of SETR's progressive upsampling: 3x3 convolutions, each followed by upsampling to twice the size.

    Attributes:
        taps: as in Naive.
        width, norm, dropout: as in UpsamplingHead.
        stages: number of convolutions; None for as many as lead to the image's size, 4 for a stride of 16.
    """

    taps: Sequence[int] | None = None
    width: int = 256
    stages: int | None = None
    norm: str = "batch"
    dropout: float = 0.0

    def __post_init__(self):
        if self.stages is not None:
            integer(self.stages, "stages")

    def decoder(self, encoder: Encoder, classes: int, auxiliary: bool, policy: keras.DTypePolicy) -> Decoder:
        """Its layers; see HEADS."""
        taps = encoder.taps_of_one_stride("setr_pup", self.taps, _SHARES)
        options = {"kernel_size": 3, "width": self.width, "norm": self.norm, "dropout": self.dropout, "dtype": policy}
        stages = self.stages or max(math.ceil(math.log2(max(encoder.spec.strides[taps[-1]]))), 1)
        head = UpsamplingHead(classes, convs=stages, scale=2, name="head", **options)
        return Decoder(taps, head, auxiliary=_on_first(3 if auxiliary else 0, UpsamplingHead, classes, **options))


@dataclasses.dataclass(frozen=True)
class MLA:
    """The options of SETR's multi-level aggregation.

    Attributes:
        taps: four blocks; None for 5, 11, 17 and 23 of 24.
        width: channels of the aggregated maps.
        branch_width: channels of the decoder for each map.
        norm, dropout: as in MLAHead.
    """

    taps: Sequence[int] | None = None
    width: int = 256
    branch_width: int = 128
    norm: str = "batch"
    dropout: float = 0.0

    def decoder(self, encoder: Encoder, classes: int, auxiliary: bool, policy: keras.DTypePolicy) -> Decoder:
        """Its layers; see HEADS."""
        taps = encoder.taps_of_one_stride("setr_mla", self.taps, _EVEN)
        neck = MLANeck(self.width, self.norm, dtype=policy, name="neck")
        head = MLAHead(classes, self.branch_width, self.norm, self.dropout, dtype=policy, name="head")
        others = _on_first(4 if auxiliary else 0, FCNHead, classes, convs=0, dropout=self.dropout, dtype=policy)
        return Decoder(taps, head, neck, others)
