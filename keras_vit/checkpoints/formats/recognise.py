"""Recognises formats by the names of a file's arrays, even if other modules wrap the model."""

import re
from collections.abc import Collection, Mapping
from typing import Any

LONGEST_NAME = 500  # characters: a longer name could make a pattern search for hours
# timm's patch embedding: of a ViT, and of a hybrid in either form.
TIMM_ROOTS = ("patch_embed.proj.weight", "patch_embed.backbone.stem.conv.weight", "patch_embed.backbone.conv.weight")
_BIT_ROOT = "stem.conv.weight"
_SEGMENTATION_ROOT = "decode_head.conv_seg.weight"  # mmsegmentation's classifier
_BEIT_ROOT = "fpn1.0.weight"
_DENSE_ROOT = "neck.fusion_stage.layers.0.projection.weight"
_YOLOS_ROOT = "vit.embeddings.detection_tokens"
_LW_DETR_ROOT = "query_feat.weight"  # of RF-DETR, too
# timm's and the original's, and Hugging Face's with either version.
_SWIN_ROOTS = ("layers.0.blocks.0.attn.qkv.weight", "encoder.layers.0.blocks.0.layernorm_before.weight")
_EOMT_ROOT = "upscale_block.block.0.conv1.weight"
# A block of nn.MultiheadAttention, as in nn.TransformerEncoder.
_TORCH_ATTENTION = re.compile(r"\.\d+\.(?:\w+\.)*in_proj_weight$")
# Names that torch.compile, FSDP and activation checkpointing insert.
_INSERTED = re.compile(r"(?:^|(?<=\.))(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
# {format: an array that a model has once}; Hugging Face's names keep the module just around the backbone.
_ANCHORS = {
    "bit": re.escape(_BIT_ROOT),
    "vit_pytorch": r"transformer\.layers\.0\.0\.(?:fn\.)*to_qkv\.weight",
    "swin": rf"{re.escape(_SWIN_ROOTS[0])}|(?:\w+\.)?{re.escape(_SWIN_ROOTS[1])}",
    "mae": r"(?:decoder\.)?decoder_embed\.weight",
    "mmsegmentation": re.escape(_SEGMENTATION_ROOT),
    "huggingface_beit": re.escape(_BEIT_ROOT),
    "huggingface_dense": re.escape(_DENSE_ROOT),
    "huggingface_eomt": re.escape(_EOMT_ROOT),
    "huggingface_yolos": re.escape(_YOLOS_ROOT),
    "huggingface_lw_detr": r"(?:model\.)?query_feat\.weight",
    "huggingface_dinov3": r"(?:\w+\.)?embeddings\.patch_embeddings\.weight",
    "huggingface": r"(?:\w+\.)?embeddings\.patch_embedding(?:s\.projection)?\.weight",
    "timm_eva": re.escape(TIMM_ROOTS[0]),
    "timm": "|".join(map(re.escape, TIMM_ROOTS)),
}
# {format: its head}, for a head outside the modules around the backbone.
_HEADS = {"vit_pytorch": "mlp_head", "huggingface": "classifier", "timm": "head", "timm_eva": "head"}
_OUTER_HEAD = re.compile(r"(?:\w*head|classifier|fc|linear)\.(weight|bias)")


def recognise(names: Collection[str]) -> str | None:
    """The first format with these names; None for an unknown format."""

    def ending(*ends):
        return any(name.endswith(ends) for name in names)

    formats = {
        "bit": any(name.startswith("resnet/root_block/") for name in names)
        or any(f"{name.removesuffix(_BIT_ROOT)}norm.weight" in names for name in names if name.endswith(_BIT_ROOT)),
        "google": ending("embedding/kernel"),
        "vit_pytorch": ending("transformer.layers.0.0.to_qkv.weight")
        or any(".0.fn.to_qkv.weight" in name or ".0.fn.fn.to_qkv.weight" in name for name in names),
        "swin": ending(*_SWIN_ROOTS),
        "mae": ending("decoder_embed.weight"),
        "mmsegmentation": ending(_SEGMENTATION_ROOT),
        "huggingface_beit": ending(_BEIT_ROOT),
        "huggingface_dense": ending(_DENSE_ROOT),
        "huggingface_eomt": ending(_EOMT_ROOT),
        "huggingface_yolos": ending(_YOLOS_ROOT),
        "huggingface_lw_detr": ending(_LW_DETR_ROOT),
        "huggingface_dinov3": ending("embeddings.patch_embeddings.weight"),
        "huggingface": ending("embeddings.patch_embeddings.projection.weight", "embeddings.patch_embedding.weight"),
        "own_names": any(_TORCH_ATTENTION.search(name) for name in names if len(name) <= LONGEST_NAME),
        # Without a table of positions: DINOv3's, in timm's names or its own; with one, EVA-02's; a norm before the
        # blocks, and MAP or no norm after them: Perception Encoder's.
        "timm_eva": ending(TIMM_ROOTS[0])
        and (
            (ending("blocks.0.gamma_1", "storage_tokens") and not ending("pos_embed"))
            or (ending("blocks.0.attn.q_bias", "blocks.0.attn.q_proj.bias") and ending("pos_embed"))
            or (ending("norm_pre.weight") and (ending("attn_pool.latent") or not ending("norm.weight")))
        ),
        "timm": ending(*TIMM_ROOTS),
    }
    return next((name for name, recognised in formats.items() if recognised), None)


def _prefixes(names, anchor):
    """The prefixes of a format's anchor in the names, shortest first."""
    found = (re.fullmatch(rf"((?:.*?\.)??)(?:{anchor})", name) for name in names if len(name) <= LONGEST_NAME)
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
    form = recognise(plain)
    if len(plain) < len(arrays):
        raise ValueError("Some arrays occur with and without _orig_mod in their names: two versions of one model.")
    prefixes = _prefixes(plain, _ANCHORS[form]) if form in _ANCHORS else []
    if len(prefixes) > 1 and key != "":
        listed = ", ".join(f'key="{name}"' for name in _keys(prefixes))
        raise ValueError(f"There are several models among the arrays. Pass one of these to load: {listed}.")
    prefix, *others = prefixes or [""]
    around = [prefix[:end] for end, letter in enumerate(prefix, 1) if letter == "."][::-1]  # longest first
    inside, heads, outside = {}, {}, []
    for name, array in plain.items():
        short = name.removeprefix(next((part for part in around if name.startswith(part)), ""))
        head = _OUTER_HEAD.fullmatch(short) if form in _HEADS else None
        if head and not name.startswith(f"{prefix}{_HEADS[form]}."):
            heads[f"{_HEADS[form]}.{head[1]}"] = name
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
