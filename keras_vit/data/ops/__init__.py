"""Preprocessing ops, one file per kind. Importing this package registers them; op_registry.py parses their text."""

from keras_vit.data.ops import (
    box_ops,
    corrupt,
    decode,
    decode_and_crop,
    erasing,
    geometry,
    letterbox,
    patch_ops,
    policies,
    random_color,
    scenes,
    values,
)

__all__ = [
    "box_ops",
    "corrupt",
    "decode",
    "decode_and_crop",
    "erasing",
    "geometry",
    "letterbox",
    "patch_ops",
    "policies",
    "random_color",
    "scenes",
    "values",
]
