"""Heads that give every pixel a class: a row per head."""

from collections.abc import Mapping
from typing import Any

import keras

from keras_vit.layers.arguments import choice
from keras_vit.models.heads.decoder import Decoder, Encoder, option_names, with_options
from keras_vit.segmentation.heads.dpt import DPT
from keras_vit.segmentation.heads.eomt import EoMT
from keras_vit.segmentation.heads.linear_map import Linear
from keras_vit.segmentation.heads.setr import MLA, PUP, Naive
from keras_vit.segmentation.heads.upernet import UPerNet

# {name: class of its options, with decoder(encoder, classes, auxiliary, policy) -> Decoder}
HEADS: dict[str, Any] = {
    "linear": Linear,  # on frozen features: arXiv 2304.07193, 2508.10104
    "setr_naive": Naive,  # arXiv 2012.15840
    "setr_pup": PUP,
    "setr_mla": MLA,
    "dpt": DPT,  # arXiv 2103.13413
    "upernet": UPerNet,  # arXiv 1807.10221
    "eomt": EoMT,  # arXiv 2503.19108
}


def head_options(name: str) -> tuple[str, ...]:
    """The names of a head's options."""
    return option_names(HEADS[name])


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
        options: the head's own.

    Raises:
        ValueError: for an unknown head or option, with the nearest, an invalid option, or an encoder that does not suit
            the head.
    """
    head = with_options(name, HEADS[choice(name, "head", HEADS)], options)
    return head.decoder(encoder, classes, auxiliary, policy)
