"""A depth for every pixel: a ViT or BiT, maps of some of its blocks, and a head on them.

The heads are DPT's, as in transformers' DPTForDepthEstimation and Depth Anything, and a linear one.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import keras
from keras import ops

from keras_vit.layers.arguments import choice, flag, integer, integers, number
from keras_vit.layers.registration import serializable
from keras_vit.layers.resizing import LogitsAtPixels, resize_bilinear
from keras_vit.models.headed import HeadedModel, maps_for_head
from keras_vit.models.heads.decoder import Decoder, Encoder, with_options
from keras_vit.models.heads.parts import LayerOfParts, convolution
from keras_vit.segmentation.heads.dpt import DPT, doubled
from keras_vit.segmentation.heads.linear_map import Linear, LinearMap

if TYPE_CHECKING:
    from keras_vit.depth.depth_map import DepthMap
    from keras_vit.models.overrides import AnyOverrides

KINDS = ("metric", "relative")
_MAX_DEPTH = {"metric": 10.0, "relative": 1.0}
_OF_SEGMENTATION = ("classes", "class_names", "colors", "auxiliary")


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
        # Fused maps grow from stage to stage: with larger weights a new head's sigmoid or ReLU starts where it is flat.
        self.linear = keras.layers.Dense(
            1,
            kernel_initializer=keras.initializers.RandomNormal(stddev=0.01),
            bias_initializer="zeros" if self.depth == "metric" else "ones",
            dtype=policy.variable_dtype,
            name="linear",
        )
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


@serializable
class DepthAtPixels(LogitsAtPixels):
    """A head's depth at the image's size: (b, h, w, 1) -> (b, height, width, 1)."""

    returns = "depth"


def _outputs(encoder, decoder):
    """The symbolic depth (b, height, width, 1), float32."""
    depth = decoder.head(maps_for_head(encoder, decoder))
    return DepthAtPixels(encoder.image_size, dtype="float32", name="depth")(depth)


@serializable
class DepthModel(HeadedModel):
    """A ViT, hybrid or BiT with a head that gives every pixel a depth.

        vit = keras_vit.load("deit/tiny", image_size=(192, 256), head="drop")
        model = keras_vit.DepthModel(vit, head="dpt", max_depth=10.0)

    Args:
        encoder: variant name, spec, or a ViT or BiT, as in SegmentationModel.
        head: "dpt" (arXiv 2103.13413), or "linear", a linear layer on the last features.
        kind: "metric", metres up to `max_depth`; or "relative", an inverse depth up to scale and shift, larger is
            nearer (MiDaS, Depth Anything).
        max_depth: a metric model's largest depth, None for 10; a relative one's factor, None for 1.
        image_size, channels, preprocessing, remat, name, dtype, **overrides: as in SegmentationModel.
        head_options: the head's own arguments, such as {"width": 64}.

    Input: pixels 0..255, (b, height, width, channels). Output: (b, height, width, 1) float32, not negative. Targets are
    depths (b, height, width) in metres; 0, negative numbers and NaN are void, and count nowhere.

    Attributes:
        head: the head's last layer.

    Raises:
        ValueError: for an unknown head, kind, option or argument, or an encoder that does not suit the head.
    """

    task, things = "depth", "pixels"
    usual_loss = "ScaleInvariantLogLoss"

    def __init__(
        self,
        encoder: Any,
        head: str = "dpt",
        kind: str = "metric",
        max_depth: float | None = None,
        image_size: int | tuple[int, int] | None = None,
        channels: int | None = None,
        preprocessing: str | None = None,
        head_options: Mapping[str, Any] | None = None,
        remat: bool | Sequence[int] | None = None,
        name: str | None = "depth",
        dtype: str | keras.DTypePolicy | None = None,
        **overrides: "Unpack[AnyOverrides]",
    ):
        kind, row = choice(kind, "kind", KINDS), HEADS[choice(head, "head", HEADS)]
        max_depth = float(_MAX_DEPTH[kind] if max_depth is None else number(max_depth, "max_depth"))
        if max_depth <= 0:
            raise ValueError(f"max_depth must be above 0, got {max_depth}.")

        def make(facts, classes, policy, options):
            given = {"depth": kind, "max_depth": max_depth}
            return with_options(head, row, {**options, **given}).decoder(facts, classes, False, policy)

        super().__init__(
            encoder,
            head,
            1,
            None,
            preprocessing,
            head_options,
            name,
            given={"image_size": image_size, "channels": channels, "remat": remat, "dtype": dtype},
            overrides=overrides,
            make=make,
            outputs=_outputs,
        )
        self.kind, self.max_depth = kind, max_depth

    @staticmethod
    def constructor_arguments(options: Mapping[str, Any]) -> dict[str, Any]:
        """`kind`, `max_depth` and `head_options` of a head's options in one dict, as files have them."""
        own = {name: value for name, value in options.items() if name not in ("depth", "max_depth")}
        own = {name: value for name, value in own.items() if (name, value) != ("residual_norm", "same")}
        return {"kind": options["depth"], "max_depth": options.get("max_depth", 1.0), "head_options": own}

    @classmethod
    def config_from_segmentation(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        """The config of a SegmentationModel with a depth, as files had it up to 0.5, as a DepthModel's."""
        others = {name: value for name, value in config.items() if name not in _OF_SEGMENTATION}
        return {**others, **cls.constructor_arguments(config["head_options"])}

    def _usual_answers(self) -> tuple[str, ...]:
        return ("depth",)

    def estimate(self, x: Any, batch_size: int = 8, verbose: bool | int | str = "auto") -> "DepthMap | list[DepthMap]":
        """Estimates the depth of every pixel of images of any size.

            found = model.estimate("room.jpg")
            found.picture().save("look.png")

        The whole image is resized to the model's size, and its depth back, bilinearly.

        Args:
            x: an image or several, as for `preprocess`.
            batch_size: images at once.
            verbose: show progress; "auto" for more images than a batch.

        Returns:
            A DepthMap, or a list for several images: `depth` (h, w) float32, `kind`, `picture()`, a Pillow image with a
            scale, and `png()`, millimetres of 16 bits as a file.

        Raises:
            FileNotFoundError, ImportError, ValueError: as in `preprocess`.
        """
        from keras_vit.depth.depth_map import estimate

        return estimate(self, x, batch_size, verbose)

    def classify(self, x, *args, **kwargs):
        raise ValueError(f'"{self.name}" gives every pixel a depth, and no classes: use model.estimate(image).')

    def arguments(self) -> dict:
        own = {name: value for name, value in super().arguments().items() if name not in _OF_SEGMENTATION}
        return {**own, "kind": self.kind, "max_depth": self.max_depth}
