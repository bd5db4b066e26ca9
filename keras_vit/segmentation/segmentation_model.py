"""A class for every pixel: a ViT or BiT, maps of some of its blocks, and a dense head on them."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import keras

from keras_vit.layers.arguments import number
from keras_vit.layers.registration import serializable
from keras_vit.layers.resizing import LogitsAtPixels
from keras_vit.models.headed import HeadedModel, Shared, maps_for_head
from keras_vit.segmentation.heads.eomt import count_update, mask_outputs
from keras_vit.segmentation.heads.segmentation_heads import make_decoder
from keras_vit.segmentation.mask_loss import MaskClassificationLoss
from keras_vit.segmentation.mask_rules import MaskRules
from keras_vit.segmentation.pixel_losses import PixelLoss

if TYPE_CHECKING:
    from keras_vit.models.overrides import AnyOverrides
    from keras_vit.segmentation.segment import Segmentation


def _plain_colors(colors, classes):
    """`colors` as a tuple of tuples of three integers 0..255, or None; ValueError for anything else."""
    if colors is None:
        return None
    try:
        rows = [list(row) for row in colors]
        are_bytes = all(len(row) == 3 and all(0 <= c <= 255 and c == int(c) for c in row) for row in rows)
    except (TypeError, ValueError):  # no rows, or no numbers
        rows, are_bytes = [], False
    if len(rows) != classes or not are_bytes:
        raise ValueError(
            f"colors should be one (red, green, blue) from 0 to 255 for each of the {classes} classes, got {colors!r}."
        )
    return tuple(tuple(int(c) for c in row) for row in rows)


def _outputs(encoder, decoder):
    """The symbolic outputs: logits (b, height, width, classes), or a dict of these with auxiliary ones."""
    if decoder.joins:
        return mask_outputs(encoder, decoder)
    maps = maps_for_head(encoder, decoder)
    named = {"logits": decoder.head(maps)}
    named |= {f"auxiliary_{i}": layer([maps[place]]) for i, (place, layer) in enumerate(decoder.auxiliary)}
    at_pixels = {}
    for name, x in named.items():
        own = name if name == "logits" else f"{name}_logits"  # a head has the other name
        stride = 1 if name == "logits" else _auxiliary_stride(encoder.image_size)
        size = tuple(side // stride for side in encoder.image_size)
        at_pixels[name] = LogitsAtPixels(size, dtype="float32", name=own)(x)
    return at_pixels if decoder.auxiliary else at_pixels["logits"]


def _auxiliary_stride(image_size):
    """The distance of pixels that auxiliary losses compare: 4 if it divides both sides, for a sixteenth of the cost."""
    return math.gcd(4, *image_size)


@serializable
class SegmentationModel(HeadedModel):
    """A ViT, hybrid or BiT with a head that gives every pixel a class.

        vit = keras_vit.load("deit_tiny...", image_size=(384, 512), head="drop")
        model = keras_vit.SegmentationModel(vit, head="setr_pup", classes=11, auxiliary=0.4)

    Args:
        encoder: variant name such as "B/16", "R50+B/16" or "R50x1", its spec, or a ViT or BiT, with layers and weights
            the model shares.
        head: a row of segmentation.heads.segmentation_heads.HEADS.
        classes: number of classes.
        image_size: pixels, a number or (height, width); None for the given encoder's, or 224.
        channels: of the image; None for the given encoder's, or 3.
        class_names: in order.
        colors: (red, green, blue) from 0 to 255 of each class, for pictures.
        preprocessing: text of the evaluation preprocessing (docs/data.md).
        head_options: the head's own arguments, such as {"taps": (2, 5, 8, 11)}.
        auxiliary: weight of the auxiliary heads' losses, 0.4 in the papers; 0 for a model without them.
        remat, name, dtype: as in ViT.
        **overrides: fields of the encoder's spec.

    Input: pixels 0..255, (b, height, width, channels). Output: logits (b, height, width, classes), float32; with
    auxiliary heads a dict of "logits", and of "auxiliary_0"... at a quarter of the height and width. A mask (b, height,
    width) of class numbers, and of `void` for pixels without a class, is compared with each, every fourth row and
    column of it with the auxiliary ones; only "logits" count in evaluation and metrics. With the head "eomt" the others
    are masks with classes, "prediction" and "auxiliary_0"..., and these alone train the model, by the whole mask.

    Attributes:
        head: the head's last layer; with `neck` and `auxiliary_0`... in `decoder`.
        void: the value of pixels without a class in masks, 255, or 65535 with 255 classes or more.

    Raises:
        ValueError: for an unknown head, option or argument, or an encoder that does not suit the head.
    """

    task, things = "segmentation", "pixels"

    def __init__(
        self,
        encoder: Any,
        head: str = "setr_pup",
        classes: int = 2,
        image_size: int | tuple[int, int] | None = None,
        channels: int | None = None,
        class_names: Sequence[str] | None = None,
        colors: Sequence[Sequence[int]] | None = None,
        preprocessing: str | None = None,
        head_options: Mapping[str, Any] | None = None,
        auxiliary: float = 0.0,
        remat: bool | Sequence[int] | None = None,
        name: str | None = "segmentation",
        dtype: str | keras.DTypePolicy | None = None,
        **overrides: "Unpack[AnyOverrides]",
    ):
        classes, auxiliary = self.counted_classes(classes), number(auxiliary, "auxiliary", least=0.0)
        colors = _plain_colors(colors, classes)

        def make(facts, classes, policy, options):
            if options.get("depth"):
                raise ValueError(
                    f'head_options={{"depth": "{options["depth"]}"}}: a SegmentationModel gives classes. Write'
                    f' keras_vit.DepthModel(encoder, kind="{options["depth"]}").'
                )
            return make_decoder(head, facts, classes, auxiliary > 0, policy, options)

        super().__init__(
            encoder,
            head,
            classes,
            class_names,
            preprocessing,
            head_options,
            name,
            given={"image_size": image_size, "channels": channels, "remat": remat, "dtype": dtype},
            overrides=overrides,
            make=make,
            outputs=_outputs,
        )
        self.colors, self.auxiliary = colors, auxiliary
        self.usual_loss = "SegmentationLoss" if classes > 1 else "SoftmaxCrossEntropy"

    @classmethod
    def from_config(cls, config, custom_objects=None):
        if config["head_options"].get("depth"):  # of a file from before there was a DepthModel
            from keras_vit.depth.depth_model import DepthModel

            return DepthModel.from_config(DepthModel.config_from_segmentation(config))
        return super().from_config(config, custom_objects)

    def _usual_answers(self) -> tuple[str, ...]:
        return ("masks",) if self.classes > 1 else ("pixels",)

    @property
    def mask_rules(self) -> MaskRules | None:
        """The rules for masks; None for a single output, a probability."""
        return MaskRules.of(self.classes, self.image_size) if self.classes > 1 else None

    def target_rules(self) -> Any:
        """The rules for masks; without void under Keras' loss on class numbers, which has its own."""
        loss: Any = getattr(self, "loss", None)
        rules = self.mask_rules
        if rules is None:
            return super().target_rules()
        of_keras = isinstance(loss, keras.losses.SparseCategoricalCrossentropy)
        if not of_keras or loss.get_config()["ignore_class"] == rules.void:
            return rules
        return dataclasses.replace(rules, of_classes_only=f"keras.losses.{type(loss).__name__}")

    @property
    def void(self) -> int:
        """The value of pixels without a class."""
        return MaskRules.of(self.classes, self.image_size).void

    def _take_loss(self, loss):
        """Refuses a loss with another void than the model's masks have."""
        rules = self.mask_rules
        if rules is not None and isinstance(loss, PixelLoss) and loss.void != rules.void:
            raise ValueError(
                f"The loss {type(loss).__name__} has void={loss.void}, and masks of this model, with"
                f" {self.classes} classes, have {rules.void} where a pixel has no class. Write"
                f" keras_vit.training.{type(loss).__name__}(void={rules.void}), and masks with {rules.void} instead of"
                f" {loss.void}."
            )
        self._check_kind(loss)
        super()._take_loss(loss)

    def _check_kind(self, loss):
        """Refuses a loss for masks on a model of pixels, and the reverse."""
        of_masks = isinstance(loss, MaskClassificationLoss)
        if of_masks and not self._decoder.joins:
            raise ValueError(
                f'MaskClassificationLoss compares masks, and the head "{self.head_name}" gives every pixel a class:'
                " write keras_vit.training.SegmentationLoss()."
            )
        trains = self._decoder.joins and bool(self._decoder.auxiliary)
        if of_masks and loss.classes != self.classes:
            raise ValueError(f"MaskClassificationLoss has {loss.classes} classes, the model {self.classes}.")
        if isinstance(loss, PixelLoss) and trains and not of_masks:
            raise ValueError(
                f'The head "{self.head_name}" predicts masks, which {type(loss).__name__} does not compare: write'
                f" keras_vit.training.MaskClassificationLoss({self.classes})."
            )
        if of_masks and not trains:
            raise ValueError(
                "This model has the logits of pixels alone, and MaskClassificationLoss compares masks: build it with"
                " auxiliary=1.0 to train it."
            )

    def after_update(self) -> None:
        count_update(self._decoder)

    def without_auxiliary(self) -> "SegmentationModel":
        """The model with its logits alone, of the same layers; itself if it has no auxiliary heads."""
        if not self._decoder.auxiliary:
            return self
        shared = Shared(self._encoder, dataclasses.replace(self._decoder, auxiliary=()))
        return self._with(shared, auxiliary=0.0)

    def supervised(self, outputs: Any, y: Any = None) -> tuple[Any, list[tuple[float, Any]]]:
        if not isinstance(outputs, dict):
            return outputs, []
        others = [x for name, x in sorted(outputs.items()) if name.startswith("auxiliary_")]
        return outputs["prediction" if self._decoder.joins else "logits"], [(self.auxiliary, x) for x in others]

    def measured(self, outputs: Any) -> Any:
        return outputs["logits"] if isinstance(outputs, dict) else outputs

    def auxiliary_targets(self, y: Any) -> Any:
        if self._decoder.joins:
            return y
        stride = _auxiliary_stride(self.image_size)
        return y[:, stride // 2 :: stride, stride // 2 :: stride]  # (b, height, width) -> those of the logits' centres

    def segment(
        self,
        x: Any,
        window: str = "whole",
        overlap: float = 1 / 3,
        scale: float | None = None,
        flips: bool = False,
        batch_size: int = 8,
        probabilities: bool = False,
        verbose: bool | int | str = "auto",
    ) -> "Segmentation | list[Segmentation]":
        """Gives every pixel of images of any size a class.

            found = model.segment("street.jpg", window="slide")
            found.picture().save("look.png")

        Logits are averaged over windows and flips, resized to the image's size, half-pixel bilinear, and the highest
        one is the class. Sliding windows see details that a resized image loses; they take as many forward passes as
        there are windows, and memory for one row of windows.

        Args:
            x: an image or several, as for `preprocess`.
            window: "whole" resizes the image to the model's size; "slide" moves windows of that size over it.
            overlap: share of a window that the next one sees again; mmsegmentation's 1/3.
            scale: factor of the image's sides before windows move over it, 1 for its own pixels; None for the smallest
                that fits a window. A smaller factor than that has no effect.
            flips: average over the image and its mirror image.
            batch_size: windows at once.
            probabilities: also return these, (h, w, classes) float32.
            verbose: show progress; "auto" for more images than a batch.

        Returns:
            A Segmentation, or a list for several images: `classes` (h, w), uint8 or uint16, `names`, `colors`,
            `shares` (name, share, index), largest first, `probabilities`, `picture()`, a Pillow image with a legend,
            and `png()`, the mask as a file.

        Raises:
            FileNotFoundError, ImportError: as in `preprocess`.
            ValueError: as in `preprocess`, or for an argument out of range.
        """
        how = {"window": window, "overlap": overlap, "scale": scale, "flips": flips}
        from keras_vit.segmentation.segment import segment

        return segment(self, x, verbose, batch_size=batch_size, probabilities=probabilities, **how)

    def classify(self, x, *args, **kwargs):
        raise ValueError(
            f'"{self.name}" gives every pixel a class, not the whole image: use model.segment(image), or predict for'
            " the logits (b, height, width, classes)."
        )

    def arguments(self) -> dict:
        return {**super().arguments(), "colors": self.colors, "auxiliary": self.auxiliary}
