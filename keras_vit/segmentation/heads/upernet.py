"""UPerNet (arXiv 1807.10221): pyramid pooling on the deepest map, and a feature pyramid; as in mmsegmentation."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_vit.layers.arguments import choice, flag, integer, integers
from keras_vit.layers.embedding.patches import grid_size
from keras_vit.layers.registration import serializable
from keras_vit.layers.resizing import pool_to, resize_bilinear
from keras_vit.models.heads.decoder import Decoder, Encoder
from keras_vit.models.heads.parts import (
    NORMS,
    ConvBlock,
    Enlargement,
    FCNHead,
    PlaceClassifier,
    convolution,
    normalization,
)

PYRAMIDS = ("transposed", "bilinear")
_BINS = (1, 2, 3, 6)
_EVEN = (0.25, 0.5, 0.75, 1.0)


def _pyramid_size(level, h, w):
    """The size of a level of the pyramid above maps (h, w): four times, twice, once, half."""
    return (h // 2, w // 2) if level == 3 else (h * 2 ** (2 - level), w * 2 ** (2 - level))


@serializable
class PyramidNeck(keras.layers.Layer):
    """Four maps of one size (b, h, w, d) to a pyramid of 4h, 2h, h and h/2 rows, as BEiT's (arXiv 2106.08254).

    Args:
        norm: "batch" or "group", between the two transposed convolutions of the first map.
    """

    def __init__(self, norm: str = "batch", **kwargs: Any):
        super().__init__(**kwargs)
        self.norm = choice(norm, "PyramidNeck: norm", NORMS)

    def build(self, input_shapes):
        (b, h, w, d), policy = input_shapes[0], self.dtype_policy
        self.first, self.second, self.third = (
            Enlargement(2, dtype=policy, name=f"resize_{n}") for n in ("0a", "0b", "1")
        )
        self.normalization = normalization(self.norm, d, policy)
        for layer in (self.first, self.third):
            layer.build((b, h, w, d))
        for layer in (self.normalization, self.second):
            layer.build((b, 2 * h, 2 * w, d))

    def call(self, maps, training=False):
        x = self.first(maps[0])
        x = self.normalization(x, training=training) if self.norm == "batch" else self.normalization(x)
        x = self.second(ops.gelu(x, approximate=False))
        small = ops.max_pool(maps[3], 2, 2, "valid", data_format="channels_last")
        return [x, self.third(maps[1]), maps[2], small]

    def compute_output_shape(self, input_shapes):
        return [(b, *_pyramid_size(i, h, w), d) for i, (b, h, w, d) in enumerate(input_shapes)]


@serializable
class BilinearPyramidNeck(keras.layers.Layer):
    """Four maps of one size (b, h, w, d) to a pyramid of 4h, 2h, h and h/2 rows, as mmsegmentation's for ViTs.

    Each map: a 1x1 convolution, bilinear resizing, a 3x3 convolution.

    Args:
        width: channels of the maps; None for the first one's.
    """

    def __init__(self, width: int | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        self.width = None if width is None else integer(width, "BilinearPyramidNeck: width")

    def build(self, input_shapes):
        width, policy = self.width or input_shapes[0][-1], self.dtype_policy
        self.laterals = [convolution(width, 1, policy, f"lateral_{i}") for i in range(4)]
        self.convolutions = [convolution(width, 3, policy, f"output_{i}") for i in range(4)]
        for i, (b, h, w, d) in enumerate(input_shapes):
            self.laterals[i].build((b, h, w, d))
            self.convolutions[i].build((b, *_pyramid_size(i, h, w), width))

    def call(self, maps):
        levels = []
        for i, x in enumerate(maps):
            h, w = x.shape[1:3]
            x = self.laterals[i](x)
            if i == 3:  # half the size: each place is the mean of four, and a last odd row or column is left out
                x = ops.average_pool(x, 2, 2, "valid", data_format="channels_last")
            levels.append(self.convolutions[i](resize_bilinear(x, _pyramid_size(i, h, w))))
        return levels

    def compute_output_shape(self, input_shapes):
        width = self.width or input_shapes[0][-1]
        return [(b, *_pyramid_size(i, h, w), width) for i, (b, h, w, _) in enumerate(input_shapes)]


@serializable
class UPerHead(keras.layers.Layer):
    """[(b, h, w, d), ...], the largest map first -> logits (b, h, w, classes) of the first map's size.

    Args:
        classes: number of outputs.
        width: channels of all convolutions.
        bins: sizes of the pooled maps.
        norm, dropout: as in ConvBlock and PlaceClassifier.
    """

    def __init__(
        self,
        classes: int,
        width: int = 512,
        bins: Sequence[int] = _BINS,
        norm: str = "batch",
        dropout: float = 0.1,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.classes, self.dropout = classes, dropout
        self.norm = choice(norm, "UPerHead: norm", NORMS)
        self.width, self.bins = integer(width, "UPerHead: width"), integers(bins, "UPerHead: bins", _BINS)
        self.classifier = PlaceClassifier(classes, dropout, dtype=self.dtype_policy, name="classifier")

    def _block(self, shape, kernel_size, name):
        block = ConvBlock(self.width, kernel_size, self.norm, dtype=self.dtype_policy, name=name)
        block.build(shape)
        return block

    def build(self, input_shapes):
        *finer, (b, h, w, d) = input_shapes
        levels, width = len(input_shapes), self.width
        self.pooled = [self._block((b, n, n, d), 1, f"pool_{n}") for n in self.bins]
        self.bottleneck = self._block((b, h, w, d + len(self.bins) * width), 3, "pool_bottleneck")
        self.laterals = [self._block(shape, 1, f"lateral_{i}") for i, shape in enumerate(finer)]
        self.smoothings = [self._block((*shape[:-1], width), 3, f"smooth_{i}") for i, shape in enumerate(finer)]
        first = input_shapes[0][:-1]
        self.fusion = self._block((*first, levels * width), 3, "fusion")
        self.classifier.build((*first, width))

    def _pyramid_pooling(self, x, training):
        """(b, h, w, d) -> (b, h, w, width)."""
        pools = [block(pool_to(x, (n, n)), training=training) for n, block in zip(self.bins, self.pooled)]
        found = [x, *(ops.cast(resize_bilinear(pool, x.shape[1:3]), x.dtype) for pool in pools)]
        return self.bottleneck(ops.concatenate(found, axis=-1), training=training)

    def call(self, maps, training=False):
        levels = [lateral(x, training=training) for x, lateral in zip(maps, self.laterals)]
        levels.append(self._pyramid_pooling(maps[-1], training))
        for i in range(len(levels) - 1, 0, -1):  # top down
            levels[i - 1] = levels[i - 1] + ops.cast(
                resize_bilinear(levels[i], levels[i - 1].shape[1:3]), levels[i].dtype
            )
        smooth = [block(x, training=training) for x, block in zip(levels, self.smoothings)]
        size, x = maps[0].shape[1:3], levels[0]
        smooth = [ops.cast(resize_bilinear(level, size), x.dtype) for level in (*smooth, levels[-1])]
        return self.classifier(self.fusion(ops.concatenate(smooth, axis=-1), training=training), training=training)

    def compute_output_spec(self, maps, training=False):
        return keras.KerasTensor((*maps[0].shape[:-1], self.classes), self.variable_dtype)


@dataclasses.dataclass(frozen=True)
class UPerNet:
    """The options of UPerNet, on a ViT's maps rescaled to a pyramid, or on a BiT's as they are.

    Attributes:
        taps: four blocks of a ViT, None for 2, 5, 8 and 11 of 12; any blocks of a BiT in order, None for the last of
            each stage.
        width, bins, norm, dropout: as in UPerHead.
        auxiliary_width: channels of the auxiliary head.
        auxiliary_level: number of the map that it takes, from 0, the largest; None for the last but one.
        pyramid: how a ViT's maps are rescaled: "transposed" convolutions (BEiT) or "bilinear" (mmsegmentation's ViT).
        pyramid_width: as in BilinearPyramidNeck.
        last_normalised: whether a ViT's last map is taken after the encoder's last normalisation; a BiT's always is.
    """

    taps: Sequence[int] | None = None
    width: int = 512
    bins: Sequence[int] = _BINS
    norm: str = "batch"
    dropout: float = 0.1
    auxiliary_width: int = 256
    auxiliary_level: int | None = None
    pyramid: str = "transposed"
    pyramid_width: int | None = None
    last_normalised: bool = False

    def __post_init__(self):
        flag(self.last_normalised, "last_normalised")
        if self.auxiliary_level is not None:
            integer(self.auxiliary_level, "auxiliary_level", least=0)
        if choice(self.pyramid, "pyramid", PYRAMIDS) == "transposed" and self.pyramid_width is not None:
            raise ValueError(
                f'pyramid_width={self.pyramid_width} is for pyramid="bilinear"; transposed convolutions keep the width.'
            )

    def decoder(self, encoder: Encoder, classes: int, auxiliary: bool, policy: keras.DTypePolicy) -> Decoder:
        """Its layers; see HEADS."""
        head = UPerHead(classes, self.width, self.bins, self.norm, self.dropout, dtype=policy, name="head")
        if encoder.spec.has_tokens:
            taps, neck = encoder.taps(self.taps, _EVEN), self._neck(encoder, policy)
            normalised = taps[-1:] if self.last_normalised else ()
        else:
            taps, neck = encoder.taps(encoder.spec.stage_ends if self.taps is None else self.taps, (1.0,)), None
            normalised = taps
        level = max(len(taps) - 2, 0) if self.auxiliary_level is None else self.auxiliary_level
        if level >= len(taps):
            raise ValueError(f"auxiliary_level should be the number of a map, from 0 to {len(taps) - 1}, got {level}.")
        other = FCNHead(classes, self.auxiliary_width, 1, self.norm, 0.1, dtype=policy, name="auxiliary_0")
        return Decoder(taps, head, neck, ((level, other),) if auxiliary else (), normalised=normalised)

    def _neck(self, encoder, policy):
        """The neck of a ViT's maps; ValueError for a grid that cannot be halved."""
        grid = grid_size(encoder.image_size, encoder.spec.strides[0])
        if min(grid) < 2:
            raise ValueError(f'The head "upernet" halves the grid of {grid[0]}x{grid[1]} patches: use larger images.')
        if self.pyramid == "bilinear":
            return BilinearPyramidNeck(self.pyramid_width, dtype=policy, name="neck")
        return PyramidNeck(self.norm, dtype=policy, name="neck")
