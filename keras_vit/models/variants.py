"""Variants as other libraries write them, "vit_b16" or "vit_base_patch16_224": the nearest of ours, for error
messages.
"""

import re

# Other spellings of the sizes, in small letters. A single letter g or G keeps its case: they are two sizes.
SIZES = {
    **{"ti": "Ti", "tiny": "Ti", "s": "S", "small": "S", "b": "B", "base": "B", "l": "L", "large": "L"},
    **{"so400m": "So400m", "h": "H", "huge": "H", "giant": "g", "gigantic": "G"},
}
_BIT = re.compile(r"(?:^|[^a-z])(?:r|resnet|resnetv2_)(\d+)x(\d+)", re.IGNORECASE)
_HYBRID = re.compile(r"(?:^|[^a-z])r(\d*)[^a-z]")
_STRIDE = re.compile(r"r\d+_s(\d+)")  # timm's vit_base_r50_s16_224
_SIZE = re.compile(
    r"(?:^|vit|[^a-z])(tiny|small|base|large|huge|gigantic|giant|so400m|ti|[sblhg])(?:[^a-z0-9]*(?:patch|p)?[^a-z0-9]*(\d{1,2}))?(?![a-z0-9])",
    re.IGNORECASE,
)


def nearest_variant(text: str) -> str | None:
    """The variant, such as "B/16", "R50+B/16" or "R50x1", that `text` probably means; None if it is like none."""
    bit = _BIT.search(text)
    if bit:
        return f"R{bit[1]}x{bit[2]}"
    found = _SIZE.search(text)
    if not found:
        return None
    size = found[1] if found[1] in "gG" else SIZES[found[1].lower()]
    stem, stride = _HYBRID.search(text.lower()), _STRIDE.search(text.lower())
    patch = stride[1] if stride else found[2] or ("14" if size in ("So400m", "H", "g", "G") else "16")
    return f"R{stem[1]}+{size}/{patch}" if stem else f"{size}/{patch}"


def variant_hint(text: str, family: str) -> str:
    """' Did you mean "B/16"?', or that it is a model of the other class; "" if `text` is like no variant.

    Args:
        text: what was given.
        family: the class that was asked, "ViT" or "BiT".
    """
    near = nearest_variant(text)
    if near is None:
        return ""
    owner = "BiT" if _BIT.search(near) else "ViT"
    if owner != family:
        return f' It is a {owner}: write keras_vit.{owner}("{near}").'
    return f' Did you mean "{near}"?' if near != text else ""
