"""The content of a dual encoder's file besides the image encoder: text encoder, projection, scale and bias."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_vit.checkpoints.formats.capabilities import Problems, refuse
from keras_vit.checkpoints.formats.name_map import NameMap


@dataclasses.dataclass(frozen=True)
class ParsedText:
    """The result of `parse` of a format with texts.

    Attributes:
        fields: {field of TextSpec: value}.
        name_map: {name in the file: Entry} of the text encoder.
        arrays: {name in the file: array}, under the names of name_map.
        activation: of the DualEncoder.
        projection: kernel of the layer after the image encoder (c, d), or None.
        log_scale, bias: t and b; None for no bias.
        image: {name: array} of the image encoder's own file.
    """

    fields: dict[str, Any]
    name_map: NameMap
    arrays: dict[str, np.ndarray]
    activation: str
    projection: np.ndarray | None
    log_scale: float
    bias: float | None
    image: Mapping[str, np.ndarray]


def check_texts(format: str, model: Any, expected: Mapping[str, Any], problems: Problems) -> None:
    """ValueError, with each reason, for a DualEncoder with other texts than a format expresses.

    Args:
        format: its name in keras_vit.save.
        expected: {field of the text encoder's spec: its only value}.
        problems: as in capabilities.refuse.
    """
    own = vars(model.text_encoder.text_spec)
    wrong = [(own[name] != x, f"{name}={own[name]!r} of the text encoder ({x!r})") for name, x in expected.items()]
    without = (not model.image_encoder.spec.has_tokens, "an image encoder without attention")
    refuse(format, "DualEncoder", [*wrong, without, *problems])


def scalar(arrays: Mapping[str, np.ndarray], name: str) -> float:
    """The one number of an array; ValueError if it is missing or has several."""
    if name not in arrays:
        raise ValueError(f'The array "{name}" is missing: this is not an image encoder with its text encoder.')
    if arrays[name].size != 1:
        raise ValueError(f'The array "{name}" should be one number, but has shape {arrays[name].shape}.')
    return float(arrays[name].reshape(()))
