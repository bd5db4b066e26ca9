"""Heads that give every pixel a class: a row per head, a function from encoder and options to layers."""

from collections.abc import Callable, Mapping
from typing import Any

import keras

from keras_vit.layers.arguments import choice
from keras_vit.models.heads.decoder import Decoder, Encoder, check_options, options_of
from keras_vit.segmentation.heads.dpt import dpt
from keras_vit.segmentation.heads.eomt import eomt
from keras_vit.segmentation.heads.linear import linear
from keras_vit.segmentation.heads.setr import setr_mla, setr_naive, setr_pup
from keras_vit.segmentation.heads.upernet import upernet

# {name: (encoder, classes, whether with auxiliary heads, policy, **options) -> Decoder}
HEADS: dict[str, Callable[..., Decoder]] = {
    "linear": linear,  # on frozen features: arXiv 2304.07193, 2508.10104
    "setr_naive": setr_naive,  # arXiv 2012.15840
    "setr_pup": setr_pup,
    "setr_mla": setr_mla,
    "dpt": dpt,  # arXiv 2103.13413
    "upernet": upernet,  # arXiv 1807.10221
    "eomt": eomt,  # arXiv 2503.19108
}
_GIVEN = ("encoder", "classes", "auxiliary", "policy")


def head_options(name: str) -> tuple[str, ...]:
    """The names of a head's options."""
    return options_of(HEADS[name], _GIVEN)


def make_decoder(
    name: str,
    encoder: Encoder,
    classes: int,
    auxiliary: bool,
    policy: keras.DTypePolicy,
    options: Mapping[str, Any],
) -> Decoder:
    """The layers of the head `name`, a row of HEADS.

    Args:
        encoder: the encoder below the head.
        classes: number of logits.
        auxiliary: whether with auxiliary heads.
        policy: of its layers.
        options: the row's own arguments.

    Raises:
        ValueError: for an unknown head or option, with the nearest, an invalid option, or an encoder that does not suit
            the head.
    """
    row = HEADS[choice(name, "head", HEADS)]
    check_options(name, options, head_options(name))
    return row(encoder, classes, auxiliary, policy, **options)
