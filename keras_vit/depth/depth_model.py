"""A depth for every pixel: a ViT or BiT, maps of some of its blocks, and a head on them."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import keras

from keras_vit.depth.depth_heads import HEADS, KINDS
from keras_vit.layers.arguments import choice, number
from keras_vit.layers.registration import serializable
from keras_vit.layers.resizing import LogitsAtPixels
from keras_vit.models.headed import HeadedModel, maps_for_head
from keras_vit.models.heads.decoder import with_options

if TYPE_CHECKING:
    from keras_vit.depth.depth_map import DepthMap
    from keras_vit.models.overrides import AnyOverrides

_MAX_DEPTH = {"metric": 10.0, "relative": 1.0}
_OF_SEGMENTATION = ("classes", "class_names", "colors", "auxiliary")


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
    def of_options(options: Mapping[str, Any]) -> dict[str, Any]:
        """`kind`, `max_depth` and `head_options` of a head's options in one dict, as files have them."""
        own = {name: value for name, value in options.items() if name not in ("depth", "max_depth")}
        own = {name: value for name, value in own.items() if (name, value) != ("residual_norm", "same")}
        return {"kind": options["depth"], "max_depth": options.get("max_depth", 1.0), "head_options": own}

    @classmethod
    def of_segmentation(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        """The config of a SegmentationModel with a depth, as files had it up to 0.5, as a DepthModel's."""
        others = {name: value for name, value in config.items() if name not in _OF_SEGMENTATION}
        return {**others, **cls.of_options(config["head_options"])}

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

    def segment(self, x, *args, **kwargs):
        """Refused: a depth is no class."""
        raise ValueError(f'"{self.name}" has one output per pixel, a depth: use model.estimate(image).')

    def arguments(self) -> dict:
        own = {name: value for name, value in super().arguments().items() if name not in _OF_SEGMENTATION}
        return {**own, "kind": self.kind, "max_depth": self.max_depth}
