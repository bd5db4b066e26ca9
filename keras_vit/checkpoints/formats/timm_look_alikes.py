"""timm models with a ViT's arrays but another function: refused by config.json; without one, a warning names them."""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from keras_vit.checkpoints.formats.parsed import setting

# Architectures that may have a ViT's arrays but compute something unsupported.
_OTHERS = [
    (re.compile(r"rope|^eva02|dinov3|_pe_(core|lang|spatial)_|lingbot|sapiens2"), "rotary positions"),
    (re.compile(r"_rpn_"), "normalisations after attention and MLP"),
    (re.compile(r"^test_vit3"), "pooling that includes registers"),
]
# Settings that reveal this in any architecture.
_OTHER_SETTINGS = {"use_rot_pos_emb": "rotary positions", "pool_include_prefix": "pooling that includes registers"}


def check_architecture(config: Mapping[str, Any]) -> None:
    """Refuses models that only config.json distinguishes from a ViT: ValueError with the unsupported part."""
    architecture, arguments = str(config.get("architecture")), setting(config, "model_args", dict) or {}
    other = next((what for pattern, what in _OTHERS if pattern.search(architecture)), None)
    other = other or next((what for name, what in _OTHER_SETTINGS.items() if setting(arguments, name, bool)), None)
    if other is not None:
        raise ValueError(
            f"By config.json, the architecture {architecture!r} has {other}, which is not implemented: the same arrays"
            " in a ViT would compute something else."
        )


def look_alikes(arrays: Collection[str], config: Mapping[str, Any]) -> Iterator[str]:
    """Sentences on other models that could have these arrays; config.json rules them out."""
    if config:
        return
    if any(name.endswith(".gamma_1") for name in arrays):
        yield (
            "Assuming a DeiT III: timm's models with rotary and learned positions (rope_ape) have the same arrays, and"
            " cannot be expressed. Their config.json distinguishes them."
        )
    scaled = any(name.endswith("blocks.0.ls1.gamma") for name in arrays)
    if scaled and not any(name.endswith((".qkv.bias", "cls_token")) for name in arrays):
        yield (
            "Assuming that blocks normalise before attention and MLP: timm's vit_base_patch16_rpn_224 has the same"
            " arrays, and cannot be expressed. Its config.json distinguishes them."
        )
