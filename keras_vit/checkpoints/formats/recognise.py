"""The registry of formats: which names of arrays show each, even inside other modules, its reader and its writers."""

import dataclasses
import re
from collections.abc import Callable, Collection, Mapping
from types import ModuleType
from typing import Any

from keras_vit.checkpoints.formats import (
    bit_files,
    google,
    google_text,
    huggingface,
    huggingface_beit,
    huggingface_dense,
    huggingface_dinov3,
    huggingface_eomt,
    huggingface_lw_detr,
    huggingface_text,
    huggingface_yolos,
    mae,
    mmsegmentation,
    own_names,
    swin_files,
    timm,
    timm_eva,
    vit_pytorch,
)
from keras_vit.checkpoints.formats.name_map import LONGEST_NAME

# Names that torch.compile, FSDP and activation checkpointing insert.
_INSERTED = re.compile(r"(?:^|(?<=\.))(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
_OUTER_HEAD = re.compile(r"(?:\w*head|classifier|fc|linear)\.(weight|bias)")


def _is_bit(names):
    """BiT's stem has a norm in timm's names, unlike other models' `stem.conv`."""
    stems = [name.removesuffix("stem.conv.weight") for name in names if name.endswith("stem.conv.weight")]
    return any(f"{stem}norm.weight" in names for stem in stems) or any(
        name.startswith("resnet/root_block/") for name in names
    )


def _is_eva(names):
    """Without a table of positions it is DINOv3, in timm's names or its own; with one, EVA-02; with a norm before the
    blocks, and MAP or no norm after them, Perception Encoder.
    """

    def ending(*ends):
        return any(name.endswith(ends) for name in names)

    if ending("norm_pre.weight") and (ending("attn_pool.latent") or not ending("norm.weight")):
        return True
    if ending("pos_embed"):
        return ending("blocks.0.attn.q_bias", "blocks.0.attn.q_proj.bias")
    return ending("blocks.0.gamma_1", "storage_tokens")


@dataclasses.dataclass(frozen=True)
class Format:
    """A format of files.

    Attributes:
        module: its file, whose `parse` reads it.
        anchor: pattern of the end of a name that a model has once.
        keeps_module: whether its names include the module just around the backbone, as Hugging Face's do.
        head: its head, which may also be outside the modules around the backbone.
        condition: of all names, besides the anchor.
        writes: {(format of `save`, kind of model): function of a model and its weights, which returns the arrays and
            {config file: content}}.
    """

    module: ModuleType
    anchor: str
    keeps_module: bool = False
    head: str | None = None
    condition: Callable[[Collection[str]], bool] = lambda names: True
    writes: Mapping[tuple[str, str], Callable] = dataclasses.field(default_factory=dict)


def _huggingface(module, anchor, *kinds, keeps_module=False, head=None):
    writes = {("huggingface", kind): module.write for kind in kinds}
    return Format(module, anchor, keeps_module, head, writes=writes)


_PATCHES = r"patch_embed\.proj\.weight"
FORMATS = {  # the first that has the names reads a file
    "bit": Format(
        bit_files,
        r"stem\.conv\.weight|^resnet/root_block/.*",
        condition=_is_bit,
        writes={("google", "BiT"): bit_files.write_google, ("timm", "BiT"): bit_files.write_timm},
    ),
    "google": Format(
        google,
        "embedding/kernel",
        writes={("google", "ViT"): google.write, ("google", "DualEncoder"): google_text.write},
    ),
    "vit_pytorch": Format(vit_pytorch, r"transformer\.layers\.0\.0\.(?:fn\.)*to_qkv\.weight", head="mlp_head"),
    "swin": Format(
        swin_files,
        r"layers\.0\.blocks\.0\.attn\.qkv\.weight"
        r"|(?:\w+\.)?encoder\.layers\.0\.blocks\.0\.layernorm_before\.weight",
        writes={("timm", "Swin"): swin_files.write_timm, ("huggingface", "Swin"): swin_files.write_huggingface},
    ),
    "mae": _huggingface(mae, r"(?:decoder\.)?decoder_embed\.weight", "MaskedAutoencoder"),
    "mmsegmentation": Format(
        mmsegmentation,
        r"decode_head\.conv_seg\.weight",
        writes={("mmsegmentation", head): mmsegmentation.write for head in mmsegmentation.HEADS},
    ),
    "huggingface_beit": _huggingface(huggingface_beit, r"fpn1\.0\.weight", "upernet"),
    "huggingface_dense": _huggingface(huggingface_dense, r"neck\.fusion_stage\.layers\.0\.projection\.weight", "dpt"),
    "huggingface_eomt": _huggingface(huggingface_eomt, r"upscale_block\.block\.0\.conv1\.weight", "eomt"),
    "huggingface_yolos": _huggingface(huggingface_yolos, r"vit\.embeddings\.detection_tokens", "yolos"),
    "huggingface_lw_detr": _huggingface(huggingface_lw_detr, r"(?:model\.)?query_feat\.weight", "lw_detr", "rf_detr"),
    "huggingface_dinov3": _huggingface(
        huggingface_dinov3, r"embeddings\.patch_embeddings\.weight", "ViT of rope2d", keeps_module=True
    ),
    "huggingface": Format(
        huggingface,
        r"embeddings\.patch_embedding(?:s\.projection)?\.weight",
        keeps_module=True,
        head="classifier",
        writes={("huggingface", "ViT"): huggingface.write, ("huggingface", "DualEncoder"): huggingface_text.write},
    ),
    # A block of nn.MultiheadAttention, as in nn.TransformerEncoder.
    "own_names": Format(own_names, r"\.\d+\.(?:\w+\.)*in_proj_weight"),
    "timm_eva": Format(
        timm_eva,
        _PATCHES,
        head="head",
        condition=_is_eva,
        writes={("timm", f"ViT of {kind}"): timm_eva.write for kind in timm_eva.ROTARY},
    ),
    # Of a ViT, and of a hybrid in either form.
    "timm": Format(
        timm,
        rf"{_PATCHES}|patch_embed\.backbone\.(?:stem\.)?conv\.weight",
        head="head",
        writes={("timm", "ViT"): timm.write},
    ),
}


def writers(format: str) -> dict[str, Callable]:
    """{kind of model: function that packs it} of a format of `save`."""
    return {kind: write for row in FORMATS.values() for (name, kind), write in row.writes.items() if name == format}


def recognise(names: Collection[str]) -> str | None:
    """The first format with these names; None for an unknown format."""
    short = [name for name in names if len(name) <= LONGEST_NAME]

    def shows(row):
        return any(map(re.compile(f"(?:{row.anchor})$").search, short)) and row.condition(names)

    return next((name for name, row in FORMATS.items() if shows(row)), None)


def _prefixes(names, row):
    """The prefixes of a format's anchor in the names, shortest first."""
    module = r"(?:\w+\.)?" if row.keeps_module else ""
    pattern = re.compile(rf"((?:.*?\.)??){module}(?:{row.anchor})")
    found = (pattern.fullmatch(name) for name in names if len(name) <= LONGEST_NAME)
    return sorted({match[1] for match in found if match}, key=lambda prefix: (len(prefix), prefix))


def _keys(prefixes):
    """The shortest first parts by which prefixes differ: "student" and "teacher" of "student.vit." and "teacher.vit."""
    parts = [prefix.split(".")[:-1] for prefix in prefixes]
    longest = max(map(len, parts))
    count = next(n for n in range(1, longest + 1) if len({tuple(p[:n]) for p in parts}) == len(parts))
    return sorted(".".join(p[:count]) for p in parts)


def unwrapped(arrays: Mapping[str, Any], key: str | None = None) -> tuple[dict[str, Any], list[str]]:
    """Removes the names of the modules around a model of a known format: "module.", "model.vit._orig_mod."...

    A dense head outside the model, such as "fc" next to "backbone", gets the format's name.

    Args:
        arrays: {name: array}.
        key: "" chooses the shortest prefix if several models are among the arrays.

    Returns:
        ({name without prefix: array}, names outside the model).

    Raises:
        ValueError: for several models, or if two names would become the same.
    """
    plain = {_INSERTED.sub("", name): array for name, array in arrays.items()}
    row = FORMATS.get(recognise(plain) or "")
    if len(plain) < len(arrays):
        raise ValueError("Some arrays occur with and without _orig_mod in their names: two versions of one model.")
    prefixes = _prefixes(plain, row) if row else []
    if len(prefixes) > 1 and key != "":
        listed = ", ".join(f'key="{name}"' for name in _keys(prefixes))
        raise ValueError(f"There are several models among the arrays. Pass one of these to load: {listed}.")
    prefix, *others = prefixes or [""]
    around = [prefix[:end] for end, letter in enumerate(prefix, 1) if letter == "."][::-1]  # longest first
    inside, heads, outside = {}, {}, []
    for name, array in plain.items():
        short = name.removeprefix(next((part for part in around if name.startswith(part)), ""))
        head = _OUTER_HEAD.fullmatch(short) if row and row.head else None
        if head and not name.startswith(f"{prefix}{row.head}."):
            heads[f"{row.head}.{head[1]}"] = name
        elif name.startswith(prefix) and not name.startswith(tuple(others)):
            inside[short] = array
        else:
            outside.append(name)
    for new, name in heads.items():
        if new in inside:
            pattern = "^" + re.escape(name.rpartition(".")[0])
            raise ValueError(
                f'"{name}" and "{prefix}{new}" are two heads. Leave one out by a rule: names=[({pattern!r}, None)].'
            )
        inside[new] = plain[name]
    return inside, outside
