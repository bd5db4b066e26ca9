"""Recognises formats by the names of a file's arrays."""

import re
from collections.abc import Collection

LONGEST_NAME = 500  # characters: a longer name could make a pattern search for hours
# timm's patch embedding: of a ViT, and of a hybrid in either form.
TIMM_ROOTS = ("patch_embed.proj.weight", "patch_embed.backbone.stem.conv.weight", "patch_embed.backbone.conv.weight")
# A block of nn.MultiheadAttention, as in nn.TransformerEncoder.
_TORCH_ATTENTION = re.compile(r"\.\d+\.(?:\w+\.)*in_proj_weight$")


def recognise(names: Collection[str]) -> str | None:
    """The first format with these names; None for an unknown format."""

    def ending(*ends):
        return any(name.endswith(ends) for name in names)

    formats = {
        "bit": any(name.startswith("resnet/root_block/") for name in names)
        or {"stem.conv.weight", "norm.weight"} <= set(names),
        "google": ending("embedding/kernel"),
        "vit_pytorch": ending("transformer.layers.0.0.to_qkv.weight")
        or any(".0.fn.to_qkv.weight" in name for name in names),
        "mae": ending("decoder_embed.weight"),
        "huggingface": ending("embeddings.patch_embeddings.projection.weight", "embeddings.patch_embedding.weight"),
        "own_names": any(_TORCH_ATTENTION.search(name) for name in names if len(name) <= LONGEST_NAME),
        "timm": ending(*TIMM_ROOTS),
    }
    return next((name for name, recognised in formats.items() if recognised), None)
