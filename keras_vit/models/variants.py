"""Names of ViTs: "B/16" and "R50+B/16" to sizes, and other libraries', such as "vit_base_patch16_224", to ours.

Sizes Ti, S, B, L, H: table 1 of arXiv 2010.11929 and of 2106.10270; g and G: table 2 of arXiv 2106.04560; So400m: arXiv
2305.13035. Hybrids, "R50+B/16": appendix B.2 of arXiv 2010.11929 and table 1 of 2106.10270. Other structures:
"DINOv3-S+/16", arXiv 2508.10104; "EVA02-Ti/14", table 1 of arXiv 2303.11331; "PE-B/16", arXiv 2504.13181.
"""

import re
from typing import Any

from keras_vit.models.families import variant_hint

ROWS = {
    "Ti": {"depth": 12, "width": 192, "mlp_dim": 768, "heads": 3},
    "S": {"depth": 12, "width": 384, "mlp_dim": 1536, "heads": 6},
    "B": {"depth": 12, "width": 768, "mlp_dim": 3072, "heads": 12},
    "L": {"depth": 24, "width": 1024, "mlp_dim": 4096, "heads": 16},
    "So400m": {"depth": 27, "width": 1152, "mlp_dim": 4304, "heads": 16},
    "H": {"depth": 32, "width": 1280, "mlp_dim": 5120, "heads": 16},
    "g": {"depth": 40, "width": 1408, "mlp_dim": 6144, "heads": 16},
    "G": {"depth": 48, "width": 1664, "mlp_dim": 8192, "heads": 16},
}
_DINOV3: dict[str, dict[str, Any]] = {
    **{name: ROWS[name] for name in ("Ti", "S", "B", "L")},
    "S+": {**ROWS["S"], "mlp_form": "swiglu"},
    "H+": {"depth": 32, "width": 1280, "mlp_dim": 5120, "heads": 20, "mlp_form": "swiglu"},
    "7B": {"depth": 40, "width": 4096, "mlp_dim": 8192, "heads": 32, "mlp_form": "swiglu"},
}
_EVA02 = {
    "Ti": {**ROWS["Ti"], "mlp_dim": 512},
    "S": {**ROWS["S"], "mlp_dim": 1024},
    "B": {**ROWS["B"], "mlp_dim": 2048, "hidden_norm": True},
    "L": {**ROWS["L"], "mlp_dim": 2730, "hidden_norm": True},
}
_PE = {name: {**ROWS[name], "rope_grid": 14 if name == "B" else 24} for name in ("Ti", "S", "B", "L")}
# {structure: ({size: fields}, the fields of all sizes)}.
STRUCTURES: dict[str, tuple[dict[str, dict[str, Any]], dict[str, Any]]] = {
    "DINOv3": (
        _DINOV3,
        {
            **{"positions": "rope2d", "rope_rescale": 2.0, "registers": 4, "layer_scale": 1e-5},
            **{"key_bias": False, "epsilon": 1e-5},
        },
    ),
    "EVA02": (
        _EVA02,
        {
            **{"rope": "rope2d_cells", "key_bias": False, "mlp_form": "swiglu"},
            **{"pool": "gap", "class_token": True, "fc_norm": True},
        },
    ),
    "PE": (
        _PE,
        {
            **{"rope": "rope2d_cells1", "pre_norm": True, "epsilon": 1e-5},
            **{"pool": "map", "class_token": True, "pool_heads": 8},
        },
    ),
}
# A hybrid's stem by its name and patch size: ResNet units per stage, and the patch size on the stem's output.
STEMS = {
    ("R", 16): {"stem": (), "patch_size": 8},  # "16" is the published name; a token covers 32 pixels
    ("R26", 32): {"stem": (2, 2, 2, 2), "patch_size": 1},
    ("R50", 16): {"stem": (3, 4, 9), "patch_size": 1},
    ("R50", 32): {"stem": (3, 4, 6, 3), "patch_size": 1},
}
# The sizes and hybrids of the papers.
VARIANTS = (
    *("Ti/16", "S/32", "S/16", "B/32", "B/16", "L/32", "L/16", "So400m/14", "H/14", "g/14", "G/14"),
    *("R+Ti/16", "R26+S/32", "R50+B/16", "R50+L/32"),
    *(f"DINOv3-{size}/16" for size in ("S", "S+", "B", "L", "H+", "7B")),
    *(f"EVA02-{size}/14" for size in _EVA02),
    *("PE-Ti/16", "PE-S/16", "PE-B/16", "PE-L/14"),
)
NAMES = re.compile(r"(?:(R\d*)\+|(DINOv3|EVA02|PE)-)?(\w+\+?)/([1-9]\d*)")
# Other spellings of the sizes, in small letters. A single letter g or G keeps its case: they are two sizes.
SIZES = {
    **{"ti": "Ti", "tiny": "Ti", "s": "S", "small": "S", "b": "B", "base": "B", "l": "L", "large": "L"},
    **{"so400m": "So400m", "h": "H", "huge": "H", "giant": "g", "gigantic": "G"},
}
_HYBRID = re.compile(r"(?:^|[^a-z])r(\d*)[^a-z]")
_STRIDE = re.compile(r"r\d+_s(\d+)")  # timm's vit_base_r50_s16_224
_SIZE = re.compile(
    r"(?:^|vit|[^a-z])(tiny|small|base|large|huge|gigantic|giant|so400m|ti|[sblhg])(?:[^a-z0-9]*(?:patch|p)?[^a-z0-9]*(\d{1,2}))?(?![a-z0-9])",
    re.IGNORECASE,
)
_STRUCTURE = re.compile(r"dinov3|eva[\W_]*02|(?<![a-z])pe(?=[\W_])", re.IGNORECASE)
_STRUCTURED_SIZE = re.compile(
    r"(?:vit|dinov3|02|pe[\W_]|pe[\W_](?:core|spatial|lang))[\W_]*(tiny|small|base|large|huge|7b|ti|[sblh])(?![a-z])"
)


def _nearest_structure(structure, text):
    """The variant of a name such as "facebook/dinov3-vits16plus-pretrain-lvd1689m", or None."""
    found = _STRUCTURED_SIZE.search(text)
    if not found:
        return None
    size = "7B" if found[1] == "7b" else SIZES[found[1]]
    if structure == "pe":
        return f"PE-{size}/14" if size == "L" else f"PE-{size}/16"
    size += "+" if size == "H" or (size == "S" and ("plus" in text or "+" in text)) else ""
    return f"DINOv3-{size}/16" if structure == "dinov3" else f"EVA02-{size.rstrip('+')}/14"


def nearest_variant(text: str) -> str | None:
    """The variant, such as "B/16" or "R50+B/16", that `text` probably means, or None."""
    if structure := _STRUCTURE.search(text):
        return _nearest_structure(structure[0].lower(), text.lower())
    found = _SIZE.search(text)
    if not found:
        return None
    size = found[1] if found[1] in "gG" else SIZES[found[1].lower()]
    stem, stride = _HYBRID.search(text.lower()), _STRIDE.search(text.lower())
    patch = stride[1] if stride else found[2] or ("14" if size in ("So400m", "H", "g", "G") else "16")
    return f"R{stem[1]}+{size}/{patch}" if stem else f"{size}/{patch}"


def parse(variant: str) -> dict:
    """The fields of a name such as "R50+B/16" or "DINOv3-S+/16"; ValueError, with the nearest, for an unknown one."""
    match = NAMES.fullmatch(variant)
    stem, structure, row, patch = match.groups() if match else (None, None, None, 0)
    if structure and row in STRUCTURES[structure][0]:
        sizes, fields = STRUCTURES[structure]
        return {"patch_size": int(patch), **sizes[row], **fields}
    if structure or row not in ROWS:
        raise ValueError(
            f'Unknown variant "{variant}".{variant_hint(variant, "ViT")} A variant is a size and a patch size in'
            ' pixels, such as "B/16"; '
            f"sizes: {', '.join(ROWS)}; of DINOv3: {', '.join(_DINOV3)}; of EVA02: {', '.join(_EVA02)}; of PE:"
            f" {', '.join(_PE)}."
        )
    if stem is None:
        return {"patch_size": int(patch), **ROWS[row]}
    if (stem, int(patch)) not in STEMS:
        valid = ", ".join(f"{name}+{row}/{size}" for name, size in STEMS)
        raise ValueError(f'Unknown hybrid "{variant}". Valid: {valid}.')
    return {**STEMS[stem, int(patch)], **ROWS[row]}
