"""Objects with masks: a ViT, and a head whose queries have a class and a mask each."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import keras

from keras_vit.detection.heads.suppress import THRESHOLD, share
from keras_vit.detection.object_rules import InstanceRules
from keras_vit.fit import stepping
from keras_vit.fit.losses import Loss
from keras_vit.fit.model import Model
from keras_vit.instances.heads.instance_heads import HEADS, Head, make_decoder
from keras_vit.layers.arguments import number
from keras_vit.layers.registration import serializable
from keras_vit.models.headed import HeadedModel, Shared
from keras_vit.segmentation.heads.eomt import count_update

if TYPE_CHECKING:
    from keras_vit.instances.found import Instances
    from keras_vit.instances.panoptic import Panoptic
    from keras_vit.models.overrides import AnyOverrides
    from keras_vit.segmentation.segmentation_model import SegmentationModel


def _stuff_numbers(stuff, classes, names):
    """The numbers of the classes `stuff`, names or numbers, in order; ValueError for another class."""
    if isinstance(stuff, str):
        raise ValueError(f'stuff is a list of classes, got "{stuff}": write ["{stuff}"].')
    known = {**{name: i for i, name in enumerate(names or ())}, **{i: i for i in range(classes)}}
    unknown = [each for each in stuff if each not in known]
    if unknown:
        valid = ", ".join(map(str, names or range(classes)))
        raise ValueError(f"stuff={tuple(stuff)}: {unknown[0]!r} is not a class. Valid: {valid}.")
    return tuple(sorted({known[each] for each in stuff}))


@serializable
class InstanceModel(HeadedModel):
    """A ViT with a head that finds objects, each with its mask, and for panoptic scenes the regions of stuff.

        vit = keras_vit.load("dinov2/small", image_size=448, head="drop")
        model = keras_vit.InstanceModel(vit, classes=2, class_names=["car", "person"])
        model.compile(keras_vit.training.AdamW(1e-4), keras_vit.training.InstanceLoss(2))

    Args:
        encoder: variant name such as "B/16", its spec, or a ViT, with layers and weights the model shares.
        head: a row of instances.heads.instance_heads.HEADS.
        classes: number of classes.
        image_size: pixels, a number or (height, width); None for the given encoder's, or 224.
        channels: of the image; None for the given encoder's, or 3.
        class_names: in order.
        stuff: the classes, by name or number, that are stuff, such as sky: at most one region of an image each. All
            others are things. `detect` finds things; `segment` gives every pixel to one of either.
        preprocessing: text of the evaluation preprocessing (docs/data.md).
        head_options: the head's own arguments, such as {"queries": 100}.
        auxiliary: weight of the losses of the predictions before each block, 1 in the paper; 0 for a model without
            them, which only predicts.
        remat, name, dtype: as in ViT.
        score_threshold: the default of `detect` and of exports; a run sets the one with the highest F1 on its
            evaluation images.
        **overrides: fields of the encoder's spec.

    Input: pixels 0..255, (b, height, width, channels). Output: {"logits" (b, q, classes + 1), "masks" (b, h', w', q)},
    float32: logits of the classes, "no object" last, and of masks on a grid of about a quarter of the pixels per side.
    Heads with sigmoid scores have logits (b, q, classes). Some heads add "boxes" (b, q, 4). With auxiliary predictions
    also "auxiliary_0"... or "prediction", for the loss.
    Targets are (b, m, 7 + h' * w'), rows as of a DetectionModel and then the object's mask on this grid
    (`keras_vit.data.pack_masks`).

    Attributes:
        head: the head's last layer; with `neck` in `decoder`.
        head_row: the row of HEADS.
        mask_grid: (h', w').
        stuff: the names of the classes that are stuff, or numbers as text.

    Raises:
        ValueError: for an unknown head, option or argument, or an encoder that does not suit the head.
    """

    task, things = "instances", "objects"

    def __init__(
        self,
        encoder: Any,
        head: str = "eomt",
        classes: int = 1,
        image_size: int | tuple[int, int] | None = None,
        channels: int | None = None,
        class_names: Sequence[str] | None = None,
        stuff: Sequence[str | int] = (),
        preprocessing: str | None = None,
        head_options: Mapping[str, Any] | None = None,
        auxiliary: float = 1.0,
        remat: bool | Sequence[int] | None = None,
        name: str | None = "instances",
        dtype: str | keras.DTypePolicy | None = None,
        score_threshold: float = THRESHOLD,
        **overrides: "Unpack[AnyOverrides]",
    ):
        auxiliary = number(auxiliary, "auxiliary", least=0.0)

        def make(facts, classes, policy, options):
            return make_decoder(head, facts, classes, auxiliary > 0, policy, options)

        super().__init__(
            encoder,
            head,
            self.counted_classes(classes),
            class_names,
            preprocessing,
            head_options,
            name,
            given={"image_size": image_size, "channels": channels, "remat": remat, "dtype": dtype},
            overrides=overrides,
            make=make,
            outputs=lambda encoder, decoder: HEADS[head].outputs(encoder, decoder),
        )
        self.__dict__.update(_finders={})  # as an attribute Keras would save these models
        self.auxiliary = auxiliary
        self.stuff_numbers = _stuff_numbers(stuff, self.classes, self.class_names)
        self.score_threshold = share(score_threshold, "score_threshold")
        self.usual_loss = self.head_row.losses[0].__name__

    @classmethod
    def from_segmentation(cls, model: "SegmentationModel", stuff: Sequence[str | int] = ()) -> "InstanceModel":
        """The model of the same layers as a SegmentationModel with the head "eomt".

        EoMT's published files for instances and panoptic scenes have the same form as those for classes of pixels, and
        do not say which classes are stuff:

            model = keras_vit.InstanceModel.from_segmentation(keras_vit.load("FOLDER"), stuff=["sky", "road"])

        Args:
            model: a SegmentationModel.
            stuff: as in the constructor.

        Raises:
            ValueError: for a model with another head, or a class that it does not have.
        """
        if isinstance(model, cls) or model.head_name != "eomt":
            raise ValueError(
                f'"{model.name}" has the head "{model.head_name}", which predicts no masks of objects. Expected "eomt".'
            )
        given = model.arguments()
        names = ("classes", "class_names", "preprocessing", "head_options", "auxiliary")
        shared = Shared(model.get_encoder(), model.decoder)
        return cls(shared, head="eomt", stuff=stuff, **{name: given[name] for name in names})

    def _usual_answers(self) -> tuple[str, ...]:
        return ("instances",)

    @property
    def head_row(self) -> Head:
        """How the head is made, trained and read."""
        return HEADS[self.head_name]

    @property
    def mask_grid(self) -> tuple[int, int]:
        """(h', w') of the masks."""
        return tuple(self.output["masks"].shape[1:3])

    @property
    def stuff(self) -> tuple[str, ...]:
        """The names of the classes that are stuff, or numbers as text."""
        names = self.class_names or tuple(map(str, range(self.classes)))
        return tuple(names[i] for i in self.stuff_numbers)

    def target_rules(self) -> InstanceRules:
        """The rules for targets."""
        return InstanceRules(self.classes, self.output["logits"].shape[1], self.mask_grid)

    def _take_loss(self, loss):
        """Refuses losses that do not read objects with masks, and a model without the predictions to train."""
        valid = self.head_row.losses
        known = isinstance(loss, (str, Loss)) or type(loss).__module__.split(".")[0] == "keras"
        if loss is not None and known and not isinstance(loss, valid):
            named = loss if isinstance(loss, str) else type(loss).__name__
            written = " or ".join(f"{form.__name__}({self.classes})" for form in valid)
            raise ValueError(
                f'The head "{self.head_name}" cannot be trained with the loss {named}: write'
                f" loss=keras_vit.training.{written}."
            )
        if isinstance(loss, valid) and getattr(loss, "classes", self.classes) != self.classes:
            raise ValueError(f"{type(loss).__name__} has {loss.classes} classes, the model {self.classes}.")
        if isinstance(loss, valid) and not self._decoder.auxiliary:
            raise ValueError(
                "This model has no auxiliary predictions, without which it does not train: build it with auxiliary=1.0."
            )
        super()._take_loss(loss)

    def _check_trainable(self):
        if self.mixing is not None:
            raise ValueError(
                f"model.mixing = {type(self.mixing).__name__}() blends images, and masks of objects cannot follow:"
                " leave it None."
            )
        super()._check_trainable()

    def after_update(self) -> None:
        count_update(self._decoder)

    def without_auxiliary(self) -> "InstanceModel":
        """The model with its last prediction alone, of the same layers; itself if it has no others."""
        if not self._decoder.auxiliary:
            return self
        shared = Shared(self._encoder, dataclasses.replace(self._decoder, auxiliary=()))
        return self._with(shared, auxiliary=0.0)

    def supervised(self, outputs: Any, y: Any = None) -> tuple[Any, list[tuple[float, Any]]]:
        others = [x for name, x in sorted(outputs.items()) if name.startswith("auxiliary_")]
        return self.head_row.prediction(outputs), [(self.auxiliary, x) for x in others]

    def finder(self, limit: int = 100) -> Model:
        """The model from pixels to its best objects, of the same layers; see BestObjects for the outputs.

        Args:
            limit: the largest number of objects in an image.
        """
        from keras_vit.instances.selection import BestObjects

        return self._reading(
            limit, lambda: BestObjects(self.head_row.activation, limit, self.stuff_numbers, name="best_objects")
        )

    def queries(self) -> Model:
        """The model from pixels to the class and mask of each query; see BestClasses for the outputs."""
        from keras_vit.instances.selection import BestClasses

        return self._reading(None, lambda: BestClasses(self.head_row.activation))

    def _reading(self, key, layer):
        """The model of this one's layers and another on its outputs, made once for each key."""
        if key not in self._finders:
            with stepping.own_scope(self):
                reading = layer()
                names = ("logits", "masks", "boxes") if key else ("logits", "masks")
                parts = [self.output[name] for name in names if name in self.output]
                self._finders[key] = Model(self.input, reading(*parts), name=self.name)
        return self._finders[key]

    def detect(
        self,
        x: Any,
        threshold: float | None = None,
        limit: int | None = None,
        tiles: int | tuple[int, int] | None = None,
        tile_overlap: float = 0.2,
        batch_size: int = 8,
        verbose: bool | int | str = "auto",
    ) -> "Instances | list[Instances]":
        """Finds objects, with their masks, in images of any size.

            found = model.detect("street.jpg")
            for name, score, box in found:
                print(name, score, box)
            found.picture().save("look.png")
            found.mask(0)  # (h, w) booleans, at the image's own size

        Args:
            x: an image or several, as for `preprocess`.
            threshold: scores must be above it; None for `model.score_threshold`.
            limit: the largest number of objects in an image; None for 100, or 1,000 with tiles.
            tiles: find small objects in large images: overlapping tiles of so many pixels of the image, or (height,
                width), are seen one by one besides the whole image, and what they find is merged.
            tile_overlap: the share of a tile that the next one sees again. Objects of up to this size are whole in
                some tile.
            batch_size: images, or tiles, at once.
            verbose: show progress; "auto" for more images than a batch.

        Returns:
            Instances, or a list for several images: `names`, `scores`, highest first, `boxes`, `labels`, `mask(i)`,
            `masks`, `run_lengths()` in COCO's form, and `picture()`, a Pillow image. Masks are made when asked for:
            of a thousand objects in a large image the grids alone are kept.

        Raises:
            FileNotFoundError, ImportError: as in `preprocess`.
            ValueError: as in `preprocess`, or for an argument out of range.
        """
        from keras_vit.instances.found import detect

        how = {"threshold": threshold, "limit": limit, "tiles": tiles, "tile_overlap": tile_overlap}
        return detect(self, x, verbose, batch_size=batch_size, **how)

    def segment(
        self,
        x: Any,
        threshold: float = 0.8,
        overlap: float = 0.8,
        batch_size: int = 8,
        verbose: bool | int | str = "auto",
    ) -> "Panoptic | list[Panoptic]":
        """Gives every pixel of images of any size to one segment: an object, or a region of stuff.

            found = model.segment("street.jpg")
            found.picture().save("look.png")

        Args:
            x: an image or several, as for `preprocess`.
            threshold: a query's probability of its class must be above it.
            overlap: a segment that keeps less than this share of its mask, behind better ones, is left out.
            batch_size: images at once.
            verbose: show progress; "auto" for more images than a batch.

        Returns:
            Panoptic, or a list for several images: `segments` (h, w), numbers from 1 and 0 for none; `labels`,
            `scores` and `names` of the segments, and `picture()`, a Pillow image.

        Raises:
            FileNotFoundError, ImportError: as in `preprocess`.
            ValueError: as in `preprocess`, or for an argument out of range.
        """
        from keras_vit.instances.panoptic import segment

        return segment(self, x, verbose, batch_size, threshold=threshold, overlap=overlap)

    def classify(self, x, *args, **kwargs):
        raise ValueError(
            f'"{self.name}" finds objects, and does not classify whole images: use model.detect(image), or predict for'
            " the logits and masks of every query."
        )

    def arguments(self) -> dict:
        own = {"stuff": self.stuff_numbers, "auxiliary": self.auxiliary, "score_threshold": self.score_threshold}
        return {**super().arguments(), **own}
