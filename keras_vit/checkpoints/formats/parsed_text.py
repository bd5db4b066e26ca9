"""The content of a dual encoder's file besides the image encoder: text encoder, projection, scale and bias."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

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


def scalar(arrays: Mapping[str, np.ndarray], name: str) -> float:
    """The one number of an array; ValueError if it is missing or has several."""
    if name not in arrays:
        raise ValueError(f'The array "{name}" is missing: this is not an image encoder with its text encoder.')
    if arrays[name].size != 1:
        raise ValueError(f'The array "{name}" should be one number, but has shape {arrays[name].shape}.')
    return float(arrays[name].reshape(()))
