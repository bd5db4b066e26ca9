"""Masked autoencoders with decoders: Hugging Face's ViTMAEForPreTraining, and the names of facebookresearch/mae.

Their encoders follow Hugging Face's ViT or timm's names: huggingface.py and timm.py read them, alone or fine-tuned.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_vit.checkpoints.formats import huggingface, huggingface_names, timm, timm_names
from keras_vit.checkpoints.formats.capabilities import Capabilities
from keras_vit.checkpoints.formats.huggingface_config import is_named
from keras_vit.checkpoints.formats.name_map import NameMap, same, torch_dense, torch_norm
from keras_vit.checkpoints.formats.parsed import Decoder, ParsedCheckpoint, check_agreement, depth, need, setting
from keras_vit.checkpoints.formats.questions import Options
from keras_vit.checkpoints.formats.recognise import recognise
from keras_vit.layers.embedding.patches import grid_size
from keras_vit.layers.positions.embeddings import fixed_table

_ROOT = "decoder_embed.weight"
_TABLES = {"vit.embeddings.position_embeddings", "pos_embed"}
# {argument: its value in all published files} that the arrays do not show.
DECODER = {"decoder_heads": 16, "normalise_targets": True, "mask_ratio": 0.75}
_NEAR = 1e-3  # for a table rounded to 16 bits


def _square(model):
    (h, w), (p, q) = model.image_size, model.spec.patch_size
    return (
        None
        if h == w and p == q
        else f"images and patches that are not square, image_size={(h, w)}, patch_size={(p, q)}"
    )


CAPABILITIES = Capabilities(
    "huggingface",
    {
        **{
            name: huggingface.CAPABILITIES.fields[name] for name in ("patch_size", "depth", "width", "mlp_dim", "heads")
        },
        **{
            name: huggingface.CAPABILITIES.fields[name]
            for name in ("mlp_activation", "epsilon", "mean", "std", "qkv_bias")
        },
        "class_token": (True,),
        "pool": ("token", "gap", "token_gap", "mean"),  # unused in pre-training; our metadata keep it
        "positions": ("learned", "sincos2d_mae"),
    },
    rules=(_square,),
)


def _is_of_decoder(name):
    return name.startswith(("decoder_", "mask_token"))


def _split(arrays):
    """(the decoder's arrays without a prefix, the encoder's); decoder block names vary by transformers release."""
    decoder, encoder = {}, {}
    for name, array in arrays.items():
        bare = name.removeprefix("decoder.")
        if _is_of_decoder(bare):
            decoder[re.sub(r"^decoder_encoder\.layer\.", "decoder_layers.", bare)] = array
        else:
            encoder[name] = array
    return decoder, encoder


def parse(contents, options: dict) -> ParsedCheckpoint:
    """Parses the encoder, with learned positions, and the decoder; arguments and errors as in timm.parse."""
    decoder, encoder = _split(contents.arrays)
    inner = dataclasses.replace(contents, arrays=encoder)
    form = huggingface if recognise(encoder) == "huggingface" else timm
    kept = options.get("head", "keep") == "keep"
    parsed = form.parse(inner, options.replaced(pool=options.get("pool") or "token") if kept else options)
    names = huggingface_names.spelling(encoder)["vit"] if form is huggingface else None
    if not kept:
        options = Options(options, asks=False)  # the decoder is left out
    return dataclasses.replace(parsed, decoder=_decoder(parsed, decoder, contents.config, names, options))


def _decoder(parsed, arrays, config, names, options):
    """The Decoder; what the file does not state is asked for. `names` as in decoder_map."""
    block = "decoder_layers" if names else "decoder_blocks"
    hidden = need(arrays, f"{block}.0.{names.mlp[0] if names else 'mlp.fc1'}.weight", 2)
    fields = {
        "decoder_depth": depth(arrays, rf"{block}\.(\d+)\."),
        "decoder_width": need(arrays, _ROOT, 2).shape[0],
        "decoder_mlp_dim": hidden.shape[0],
    }
    for key, name in (("depth", "num_hidden_layers"), ("width", "hidden_size"), ("mlp_dim", "intermediate_size")):
        check_agreement([(f"decoder_{name}", setting(config, f"decoder_{name}", int), fields[f"decoder_{key}"])])
    stated = {
        "decoder_heads": setting(config, "decoder_num_attention_heads", int),
        "normalise_targets": setting(config, "norm_pix_loss", bool),
        "mask_ratio": setting(config, "mask_ratio", float),
    }
    certain = is_named(config)  # transformers' defaults are the published values
    fields.update({name: options.value(name, DECODER[name], value, certain) for name, value in stated.items()})
    grid = grid_size(parsed.image_size, parsed.fields["patch_size"])
    fields["decoder_positions"] = find_kind(need(arrays, "decoder_pos_embed", 3), grid)
    [table] = _TABLES & parsed.arrays.keys()
    encoder_positions = find_kind(parsed.arrays[table], grid)
    qkv_bias = parsed.fields["qkv_bias"]
    if fields["decoder_positions"] != "learned":
        arrays = {name: array for name, array in arrays.items() if name != "decoder_pos_embed"}
    prefix = int(parsed.fields["class_token"])
    return Decoder(fields, decoder_map(fields, qkv_bias, names, prefix), arrays, encoder_positions, table)


def find_kind(table: np.ndarray, grid: tuple[int, int]) -> str:
    """The kind of a position table (1, prefix + h*w, d): MAE's "sincos2d_mae", or "learned"."""
    prefix, width = table.shape[1] - grid[0] * grid[1], table.shape[2]
    if prefix < 0 or width % 4:
        return "learned"
    return (
        "sincos2d_mae" if np.abs(table - fixed_table("sincos2d_mae", grid, prefix, width)).max() < _NEAR else "learned"
    )


def decoder_map(
    fields: Mapping[str, Any], qkv_bias: bool, names: huggingface_names.Names | None, prefix: int = 1
) -> NameMap:
    """{name: Entry} of the decoder without a prefix; `fields` are its arguments of MaskedAutoencoder.

    Its blocks have the `names` of Hugging Face's ViT; None for those of facebookresearch/mae.
    """
    entries = {
        **torch_dense("decoder_embed", "decoder_embed"),
        "mask_token": same("decoder_patches/mask_token"),
        **torch_norm("decoder_norm", "decoder_norm"),
        **torch_dense("decoder_pred", "decoder_pred"),
    }
    if fields["decoder_positions"] == "learned":
        entries["decoder_pos_embed"] = same("decoder_position_embedding/embedding")
    spec = {"qkv_bias": qkv_bias, "qk_norm": False, "layer_scale": None, "mlp_form": "plain"}
    for i in range(fields["decoder_depth"]):
        ours = f"decoder_block_{i:02d}"
        if names:
            entries.update(huggingface_names.block_map(f"decoder_layers.{i}.", ours, names, spec))
        else:
            entries.update(timm_names.block_map(f"decoder_blocks.{i}", ours, spec))
    return entries


def pack_tables(model: Any) -> dict[str, np.ndarray]:
    """The fixed position tables of a MaskedAutoencoder in Hugging Face's layout."""
    kinds = {
        "vit.embeddings.position_embeddings": (model.spec.positions, model.spec.width),
        "decoder.decoder_pos_embed": (model.decoder_positions, model.decoder_width),
    }
    return {name: fixed_table(kind, model.grid, 1, width) for name, (kind, width) in kinds.items() if kind != "learned"}
