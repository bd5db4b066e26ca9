"""Heads that find objects: a row per head."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import keras

from keras_vit.detection.dense_loss import DenseDetectionLoss, ObjectLoss, packed
from keras_vit.detection.grouped_loss import GroupedSetPredictionLoss
from keras_vit.detection.heads.dense_detector import Dense
from keras_vit.detection.heads.frcnn import FasterRCNN, learned_rows
from keras_vit.detection.heads.lw_detr import LWDETR, RFDETR, query_outputs
from keras_vit.detection.heads.suppress import probabilities
from keras_vit.detection.heads.yolos import YOLOS, token_outputs
from keras_vit.detection.region_loss import RegionLoss
from keras_vit.detection.set_loss import SetPredictionLoss
from keras_vit.layers.arguments import choice
from keras_vit.models.classifier import Classifier
from keras_vit.models.headed import decoder_maps
from keras_vit.models.heads.decoder import Decoder, Encoder, option_names, with_options


@dataclasses.dataclass(frozen=True)
class Head:
    """A way to find objects.

    Attributes:
        form: class of its options, with decoder(encoder, classes, policy) -> Decoder, the layers.
        outputs: (encoder model, Decoder) -> {"logits" (b, n, c), "boxes" (b, n, 4)}, symbolic, float32; boxes are top,
            left, bottom, right as fractions of the image. Also what else training needs, by other names.
        prediction: (Decoder, outputs, y or None) -> the loss's input, as from detection.dense_loss.packed.
        losses: the classes of losses that train it, the usual one first.
        activation: from logits to scores, as in detection.heads.suppress.probabilities.
        suppresses: whether boxes of one object must be reduced to one; False for set predictions.
    """

    form: Any
    outputs: Callable[[Classifier, Decoder], dict[str, Any]]
    prediction: Callable[[Decoder, Mapping[str, Any], Any], Any]
    losses: tuple[type[ObjectLoss], ...]
    activation: str = "sigmoid"
    suppresses: bool = True

    def scores(self, outputs: Mapping[str, Any]) -> Any:
        """The probability of each class at each box, (b, n, k) float32."""
        return probabilities(outputs["logits"], self.activation)

    def options(self) -> tuple[str, ...]:
        """The names of the head's options."""
        return option_names(self.form)


def _dense_outputs(encoder, decoder):
    logits, boxes = decoder.head(decoder.neck(decoder_maps(encoder, decoder)))
    return {"logits": logits, "boxes": boxes}


def _region_outputs(encoder, decoder):
    return decoder.head(decoder.neck(decoder_maps(encoder, decoder)))


def _dense_prediction(decoder, outputs, y):
    return packed(outputs["boxes"], outputs["logits"], decoder.head.points)


def _set_prediction(decoder, outputs, y):
    return packed(outputs["boxes"], outputs["logits"])


def _grouped_prediction(decoder, outputs, y):
    return outputs["prediction"]


HEADS: dict[str, Head] = {
    "dense": Head(Dense, _dense_outputs, _dense_prediction, (DenseDetectionLoss,)),  # arXiv 2203.16527, 2006.09214
    "yolos": Head(  # arXiv 2106.00666
        YOLOS, token_outputs, _set_prediction, (SetPredictionLoss,), activation="softmax", suppresses=False
    ),
    "lw_detr": Head(  # arXiv 2406.03459
        LWDETR, query_outputs, _grouped_prediction, (GroupedSetPredictionLoss,), suppresses=False
    ),
    "rf_detr": Head(  # arXiv 2511.09554
        RFDETR, query_outputs, _grouped_prediction, (GroupedSetPredictionLoss,), suppresses=False
    ),
    "frcnn": Head(FasterRCNN, _region_outputs, learned_rows, (RegionLoss,), activation="softmax"),  # arXiv 2012.09958
}


def make_detector(
    name: str, encoder: Encoder, classes: int, policy: keras.DTypePolicy, options: Mapping[str, Any]
) -> Decoder:
    """The layers of the head `name`, a row of HEADS.

    Args:
        encoder: the encoder below the head.
        classes: number of classes.
        policy: of its layers.
        options: the head's own.

    Raises:
        ValueError: for an unknown head or option, with the nearest, an invalid option, or an encoder that does not suit
            the head.
    """
    head = with_options(name, HEADS[choice(name, "head", HEADS)].form, options)
    return head.decoder(encoder, classes, policy)
