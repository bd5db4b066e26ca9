"""Heads that find objects with masks: a row per head."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import keras

from keras_vit.instances.heads.query_masks import RFDETRSeg, mask_outputs
from keras_vit.instances.instance_loss import GroupedInstanceLoss, InstanceLoss
from keras_vit.layers.arguments import choice
from keras_vit.models.heads.decoder import Decoder, Encoder, option_names, with_options
from keras_vit.segmentation.heads.eomt import EoMT, auxiliary_outputs, prediction_rows, query_outputs


@dataclasses.dataclass(frozen=True)
class Head:
    """How a head is made, trained and read.

    Attributes:
        form: class of its options, with decoder(encoder, classes, auxiliary, policy) -> Decoder.
        outputs: (encoder, Decoder) -> symbolic outputs: "logits" (b, q, c) and "masks" (b, h', w', q), "boxes" if it
            predicts them, and "auxiliary_0"... for the loss if the decoder has auxiliary predictions.
        activation: from logits to scores: "softmax" with "no object" last, or "sigmoid".
        losses: classes of losses that train it, the usual one first.
        prediction: outputs -> the loss's input; None without auxiliary predictions, if it is one of them.
    """

    form: type
    outputs: Callable[[Any, Decoder], dict[str, Any]]
    activation: str
    losses: tuple[type, ...]
    prediction: Callable[[Mapping[str, Any]], Any]

    def options(self) -> tuple[str, ...]:
        """The names of the options."""
        return option_names(self.form)


@dataclasses.dataclass(frozen=True)
class EoMTInstances(EoMT):
    """EoMT with the paper's 200 queries for instances and panoptic segmentation."""

    queries: int = 200


def _of_queries(encoder, decoder):
    *before, last = query_outputs(encoder, decoder)
    logits, masks = (
        keras.layers.Activation("linear", dtype="float32", name=name)(x) for name, x in zip(("logits", "masks"), last)
    )
    return {"logits": logits, "masks": masks, **auxiliary_outputs(before)}


def _rows(outputs):
    return prediction_rows(outputs["logits"], outputs["masks"])


def _packed(outputs):
    return outputs.get("prediction")


HEADS: dict[str, Head] = {
    "eomt": Head(EoMTInstances, _of_queries, "softmax", (InstanceLoss,), _rows),  # arXiv 2503.19108
    "rf_detr": Head(RFDETRSeg, mask_outputs, "sigmoid", (GroupedInstanceLoss,), _packed),  # arXiv 2511.09554
}


def make_decoder(
    name: str,
    encoder: Encoder,
    classes: int,
    auxiliary: bool,
    policy: keras.DTypePolicy,
    options: Mapping[str, Any],
) -> Decoder:
    """The layers of the head `name`, a row of HEADS.

    Raises:
        ValueError: for an unknown head or option, with the nearest, an invalid option, or an encoder that does not suit
            the head.
    """
    row = HEADS[choice(name, "head", HEADS)]
    return with_options(name, row.form, options).decoder(encoder, classes, auxiliary, policy)
