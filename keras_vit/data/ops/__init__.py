"""Preprocessing ops, one file per kind. Importing this package registers them; registry.py parses their text."""

from keras_vit.data.ops import (
    boxes,
    corrupt,
    decode,
    decode_and_crop,
    erasing,
    geometry,
    letterbox,
    patches,
    policies,
    random_color,
    scenes,
    values,
)

__all__ = [
    "boxes",
    "corrupt",
    "decode",
    "decode_and_crop",
    "erasing",
    "geometry",
    "letterbox",
    "patches",
    "policies",
    "random_color",
    "scenes",
    "values",
]
