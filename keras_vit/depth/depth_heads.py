"""Heads that give every pixel a depth: DPT's, as in transformers' DPT and Depth Anything, and a linear one."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_vit.layers.arguments import choice, flag, integer, integers, number
from keras_vit.layers.registration import serializable
from keras_vit.layers.resizing import resize_bilinear
from keras_vit.models.heads.decoder import Decoder, Encoder
from keras_vit.models.heads.parts import LayerOfParts, convolution
from keras_vit.segmentation.heads.dpt import DPT, doubled
from keras_vit.segmentation.heads.linear_map import Linear, LinearMap

KINDS = ("metric", "relative")


@serializable
class DepthHead(LayerOfParts):
    """DPT's head for depth: [..., (b, h, w, d)] -> depth (b, h', w', 1), not negative, of the finest map.

    Args:
        size: (h', w'), pixels; None for twice the map's (DPT).
        width: channels before the last convolution.
        projection: whether a convolution with ReLU comes first (`add_projection` of transformers' DPT).
        depth: "relative", a ReLU, or "metric", a sigmoid.
        max_depth: factor of the output.
    """

    def __init__(
        self,
        size: Sequence[int] | None = None,
        width: int = 32,
        projection: bool = False,
        depth: str = "relative",
        max_depth: float = 1.0,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.size = None if size is None else integers(size, "DepthHead: size", (518, 518))
        self.width, self.projection = integer(width, "DepthHead: width"), flag(projection, "DepthHead: projection")
        self.depth = choice(depth, "DepthHead: depth", KINDS)
        self.max_depth = number(max_depth, "DepthHead: max_depth")

    def build(self, input_shapes):
        shape, policy = input_shapes[-1], self.dtype_policy
        d = shape[-1]
        self.first = convolution(d, 3, policy, "projection") if self.projection else None
        self.convolutions = [convolution(d // 2, 3, policy, "conv_0"), convolution(self.width, 3, policy, "conv_1")]
        self.linear = keras.layers.Dense(1, dtype=policy.variable_dtype, name="linear")
        if self.first is not None:
            self.first.build(shape)
        self.convolutions[0].build(shape)
        size = (2 * shape[1], 2 * shape[2]) if self.size is None else self.size
        self.convolutions[1].build((shape[0], *size, d // 2))
        self.linear.build((shape[0], *size, self.width))

    def call(self, maps):
        x = maps[-1] if self.first is None else ops.relu(self.first(maps[-1]))
        x = self.convolutions[0](x)
        x = doubled(x) if self.size is None else resize_bilinear(x, self.size, aligned=True)
        x = self.linear(ops.relu(self.convolutions[1](x)))
        return self.max_depth * (ops.relu(x) if self.depth == "relative" else ops.sigmoid(x))

    def compute_output_spec(self, maps):
        b, h, w, _ = maps[-1].shape
        return keras.KerasTensor((b, *(self.size or (2 * h, 2 * w)), 1), self.variable_dtype)


@serializable
class LinearDepth(LinearMap):
    """Maps, concatenated, to depth by one linear layer: [(b, h, w, d), ...] -> (b, h, w, 1), above 0.

    Args:
        classes, norm, dropout: as in LinearMap.
        depth: "relative", a softplus, or "metric", a sigmoid.
        max_depth: factor of the output.
    """

    def __init__(
        self,
        classes: int = 1,
        norm: str | None = None,
        dropout: float = 0.0,
        depth: str = "metric",
        max_depth: float = 1.0,
        **kwargs: Any,
    ):
        super().__init__(classes, norm, dropout, **kwargs)
        self.depth = choice(depth, "LinearDepth: depth", KINDS)
        self.max_depth = number(max_depth, "LinearDepth: max_depth")

    def call(self, maps, training=False):
        x = super().call(maps, training=training)
        return self.max_depth * (ops.softplus(x) if self.depth == "relative" else ops.sigmoid(x))


@dataclasses.dataclass(frozen=True)
class DPTDepth(DPT):
    """The options of DPT for depth.

    Attributes:
        taps, widths, width, readout, residual_norm, residual_bias, exact_sizes, normalised: as in DPT, without a
            normalisation by default.
        depth_width, depth_projection: width and projection of DepthHead. With exact_sizes the depth is computed at the
            image's size.
        depth, max_depth: as in DepthHead.
    """

    residual_norm: str | None = None
    depth_width: int = 32
    depth_projection: bool = False
    depth: str = "metric"
    max_depth: float = 1.0

    def decoder(self, encoder: Encoder, classes: int, auxiliary: bool, policy: keras.DTypePolicy) -> Decoder:
        """Its layers; see HEADS."""
        below = self.below_head(encoder, policy)
        size = encoder.image_size if self.exact_sizes else None
        options = (size, self.depth_width, self.depth_projection, self.depth, self.max_depth)
        return Decoder(head=DepthHead(*options, dtype=policy, name="head"), **below)


@dataclasses.dataclass(frozen=True)
class DepthOfMaps(Linear):
    """The options of the linear head for depth.

    Attributes:
        taps, norm, dropout: as in segmentation's Linear.
        depth, max_depth: as in LinearDepth.
    """

    depth: str = "metric"
    max_depth: float = 1.0

    def decoder(self, encoder: Encoder, classes: int, auxiliary: bool, policy: keras.DTypePolicy) -> Decoder:
        """Its layers; see HEADS."""
        taps = encoder.taps(self.taps, (1.0,))
        head = LinearDepth(1, self.norm, self.dropout, self.depth, self.max_depth, dtype=policy, name="head")
        return Decoder(taps, head, normalised=taps)


# {name: class of its options, with decoder(encoder, 1, False, policy) -> Decoder}
HEADS: dict[str, Any] = {"dpt": DPTDepth, "linear": DepthOfMaps}
