"""Objects in images: a ViT or BiT, and a head that gives boxes with classes."""

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import keras

from keras_vit.detection.heads.detection_heads import HEADS, Head, make_detector
from keras_vit.detection.heads.suppress import THRESHOLD, Suppression, share
from keras_vit.detection.object_rules import ObjectRules
from keras_vit.detection.scene_mixing import Mosaic, SceneMixup
from keras_vit.fit import stepping
from keras_vit.fit.losses import Loss
from keras_vit.fit.model import Model
from keras_vit.layers.registration import serializable
from keras_vit.models.headed import HeadedModel

if TYPE_CHECKING:
    from keras_vit.detection.detect import Detections
    from keras_vit.models.overrides import AnyOverrides


@serializable
class DetectionModel(HeadedModel):
    """A ViT, hybrid or BiT with a head that finds objects.

        vit = keras_vit.load("deit_tiny...", image_size=384, head="drop")
        model = keras_vit.DetectionModel(vit, classes=3, class_names=["Platelets", "RBC", "WBC"])
        model.compile(keras_vit.training.AdamW(1e-4), keras_vit.training.DenseDetectionLoss())

    Args:
        encoder: variant name such as "B/16", "R50+B/16" or "R50x1", its spec, or a ViT or BiT, with layers and weights
            the model shares.
        head: a row of detection.heads.detection_heads.HEADS.
        classes: number of classes.
        image_size: pixels, a number or (height, width); None for the given encoder's, or 224.
        channels: of the image; None for the given encoder's, or 3.
        class_names: in order.
        preprocessing: text of the evaluation preprocessing (docs/data.md).
        head_options: the head's own arguments, such as {"scales": (4, 2, 1), "width": 256}.
        remat, name, dtype: as in ViT.
        score_threshold: the default of `detect` and of exports; a run sets the one with the highest F1 on its
            evaluation images.
        **overrides: fields of the encoder's spec.

    Input: pixels 0..255, (b, height, width, channels). Output: {"logits" (b, n, c), "boxes" (b, n, 4)}, float32; boxes
    are top, left, bottom, right as fractions of the image, and may leave it. Some heads add what their loss
    needs. Targets are (b, m, 7): rows of such a box, class number, 0 (1 for a crowd, 2 for a difficult object) and area
    in pixels, with class -1 for padding (`keras_vit.data.pack_objects`).

    Attributes:
        head: the head's last layer; with `neck` in `decoder`.
        head_row: the row of HEADS; `head_row.scores(outputs)` are probabilities (b, n, k).

    Raises:
        ValueError: for an unknown head, option or argument, or an encoder that does not suit the head.
    """

    task, things = "detection", "objects"

    def __init__(
        self,
        encoder: Any,
        head: str = "dense",
        classes: int = 1,
        image_size: int | tuple[int, int] | None = None,
        channels: int | None = None,
        class_names: Sequence[str] | None = None,
        preprocessing: str | None = None,
        head_options: Mapping[str, Any] | None = None,
        remat: bool | Sequence[int] | None = None,
        name: str | None = "detection",
        dtype: str | keras.DTypePolicy | None = None,
        score_threshold: float = THRESHOLD,
        **overrides: "Unpack[AnyOverrides]",
    ):
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
            make=functools.partial(make_detector, head),
            outputs=lambda encoder, decoder: HEADS[head].outputs(encoder, decoder),
        )
        self.__dict__.update(_finders={})  # as an attribute Keras would save these models
        self.score_threshold = share(score_threshold, "score_threshold")

    def _usual_answers(self) -> tuple[str, ...]:
        return ("objects",)

    @property
    def head_row(self) -> Head:
        """How the head is made, trained and read."""
        return HEADS[self.head_name]

    def target_rules(self) -> ObjectRules:
        """The rules for targets."""
        return ObjectRules(self.classes, None if self.head_row.suppresses else self.output["boxes"].shape[1])

    def _take_loss(self, loss):
        """Refuses the package's other losses, and Keras': none of them reads objects."""
        valid = self.head_row.losses
        known = isinstance(loss, (str, Loss)) or type(loss).__module__.split(".")[0] == "keras"
        if loss is not None and known and not isinstance(loss, valid):
            named = loss if isinstance(loss, str) else type(loss).__name__
            raise ValueError(
                f'The head "{self.head_name}" cannot be trained with the loss {named}: write'
                f" loss=keras_vit.training.{' or '.join(f'{form.__name__}()' for form in valid)}."
            )
        super()._take_loss(loss)

    def _check_trainable(self):
        if self.mixing is not None and not isinstance(self.mixing, (Mosaic, SceneMixup)):
            raise ValueError(
                f"model.mixing = {type(self.mixing).__name__}() blends the labels of whole images, which objects do not"
                " have. Leave it None, or use keras_vit.training.Mosaic() or SceneMixup()."
            )
        super()._check_trainable()

    def supervised(self, outputs: Any, y: Any = None) -> tuple[Any, list[tuple[float, Any]]]:
        return self.head_row.prediction(self._decoder, outputs, y), []

    def finder(
        self,
        threshold: float = 0.0,
        iou: float | None = None,
        limit: int = 100,
        soft: bool = False,
        across_classes: bool | None = None,
    ) -> Model:
        """The model from pixels to detections, of the same layers: {"boxes", "scores", "labels"}, as in `detections`.

        Args:
            threshold, iou, limit, soft, across_classes: as in `detections`.

        Raises:
            ValueError: for an argument out of range, or an option of suppression if the head needs none.
        """
        if not self.head_row.suppresses:
            if iou not in (None, 1.0) or soft or across_classes:
                raise ValueError(
                    f'The head "{self.head_name}" finds each object once, so no boxes are suppressed: leave out'
                    " iou, soft and across_classes."
                )
            iou = 1.0
        iou = 0.6 if iou is None else iou
        options = (threshold, iou, limit, soft, bool(across_classes))
        if options not in self._finders:
            row = self.head_row
            # A set prediction by softmax is one object each, of the best class, as in DETR.
            best = row.activation == "softmax" and not row.suppresses
            layer = Suppression(row.activation, iou, threshold, limit, soft, options[-1], best, name="suppression")
            with stepping.own_scope(self):
                found = layer(self.output["logits"], self.output["boxes"])
                self._finders[options] = Model(self.input, found, name=self.name)
        return self._finders[options]

    def detections(self, images: Any, **options: Any) -> tuple[Any, Any, Any]:
        """The objects in images of the model's size.

        Args:
            images: pixels 0..255, (b, height, width, channels).
            threshold: scores must be above it.
            iou: boxes of one class that overlap a better one by more are left out; None for 0.6, and for heads that
                find each object once, which need no suppression and refuse iou (below 1), soft and across_classes.
            limit: d, the largest number of objects in an image.
            soft: lower the scores of overlapping boxes instead (arXiv 1704.04503).
            across_classes: whether boxes of other classes count as overlapping too.

        Returns:
            Boxes (b, d, 4), top, left, bottom, right as fractions of the image; scores (b, d), highest first; labels
            (b, d), class numbers. Empty places have score 0 and label -1.
        """
        found = self.finder(**options).predict_on_batch(images)
        return found["boxes"], found["scores"], found["labels"]

    def detect(
        self,
        x: Any,
        threshold: float | None = None,
        iou: float | None = None,
        limit: int | None = None,
        soft: bool = False,
        across_classes: bool = False,
        batch_size: int = 8,
        verbose: bool | int | str = "auto",
        tiles: int | tuple[int, int] | None = None,
        tile_overlap: float = 0.2,
    ) -> "Detections | list[Detections]":
        """Finds objects in images of any size.

            found = model.detect("street.jpg")
            for name, score, box in found:
                print(name, score, box)
            found.picture().save("look.png")

        Args:
            x: an image or several, as for `preprocess`.
            threshold: scores must be above it; None for `model.score_threshold`.
            iou, soft, across_classes: as in `detections`; the iou of boxes from two tiles is 0.5 unless given.
            limit: the largest number of objects in an image; None for 100, with tiles 1,000.
            batch_size: images, or tiles, at once.
            verbose: show progress; "auto" for more images than a batch.
            tiles: find small objects in large images: the model sees overlapping tiles of this size, in pixels of the
                image, a number or (height, width), and the whole image. Each object is returned once.
            tile_overlap: share of a tile's sides that the next one sees again; objects up to this size are whole in
                some tile.

        Returns:
            Detections, or a list for several images: `names`, `scores`, and `boxes`, top, left, bottom, right in pixels
            of the given image, highest score first; `labels`, and `picture()`, a Pillow image.

        Raises:
            FileNotFoundError, ImportError: as in `preprocess`.
            ValueError: as in `preprocess`, or for an argument out of range.
        """
        from keras_vit.detection.detect import detect

        how = {"threshold": threshold, "iou": iou, "limit": limit, "soft": soft, "across_classes": across_classes}
        return detect(self, x, verbose, batch_size=batch_size, tiles=tiles, tile_overlap=tile_overlap, **how)

    def classify(self, x, *args, **kwargs):
        raise ValueError(
            f'"{self.name}" finds objects, and does not classify whole images: use model.detect(image), or predict for'
            " the logits and boxes of every point."
        )

    def arguments(self) -> dict:
        return {**super().arguments(), "score_threshold": self.score_threshold}
