"""The preprocessing ops, one file per kind. Importing this package registers them; registry.py parses their text."""

from keras_vit.data.ops import (
    corrupt,
    decode,
    decode_and_crop,
    erasing,
    geometry,
    patches,
    policies,
    random_color,
    scenes,
    values,
)

__all__ = [
    "corrupt",
    "decode",
    "decode_and_crop",
    "erasing",
    "geometry",
    "patches",
    "policies",
    "random_color",
    "scenes",
    "values",
]
