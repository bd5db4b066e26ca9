"""Masked autoencoders with decoders: Hugging Face's ViTMAEForPreTraining, and the names of facebookresearch/mae.

Their encoders follow Hugging Face's ViT or timm's names: huggingface.py and timm.py read them, alone or fine-tuned.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_vit.checkpoints.formats import huggingface, huggingface_config, timm
from keras_vit.checkpoints.formats.capabilities import Capabilities, any_of
from keras_vit.checkpoints.formats.huggingface_config import is_named
from keras_vit.checkpoints.formats.name_map import NameMap, Names, pack
from keras_vit.checkpoints.formats.parsed import Decoder, ParsedCheckpoint
from keras_vit.checkpoints.formats.questions import Options
from keras_vit.checkpoints.formats.settings import Settings, check_agreement, setting
from keras_vit.checkpoints.formats.shown import depth, need
from keras_vit.layers.embedding.patches import grid_size
from keras_vit.layers.positions.embeddings import fixed_table

_ROOT = "decoder_embed.weight"
_TABLES = {"vit.embeddings.position_embeddings", "pos_embed"}
# {argument: its value in all published files} that the arrays do not show.
DECODER = {"decoder_heads": 16, "normalise_targets": True, "mask_ratio": 0.75}
_NEAR = 1e-3  # for a table rounded to 16 bits
_NAMES = Names(
    """
    decoder_embed      decoder_embed                         dense
    mask_token         decoder_patches/mask_token            same
    decoder_norm       decoder_norm                          norm
    decoder_pred       decoder_pred                          dense
    decoder_pos_embed  decoder_position_embedding/embedding  same   if decoder_positions=learned
    """
)
_CONFIG = Settings(
    """
    decoder_hidden_size          decoder_width      int
    decoder_num_hidden_layers    decoder_depth      int
    decoder_num_attention_heads  decoder_heads      int
    decoder_intermediate_size    decoder_mlp_dim    int
    mask_ratio                   mask_ratio         number
    norm_pix_loss                normalise_targets  bool
    """
)


def _rules(model):
    (h, w), (p, q) = model.image_size, model.spec.patch_size
    yield h != w or p != q, f"images and patches that are not square, image_size={(h, w)}, patch_size={(p, q)}"


CAPABILITIES = Capabilities(
    "huggingface",
    {
        **any_of("patch_size depth width mlp_dim heads epsilon mean std qkv_bias"),
        "mlp_activation": huggingface.CAPABILITIES.fields["mlp_activation"],
        "class_token": (True,),
        "pool": ("token", "gap", "token_gap", "mean"),  # unused in pre-training; our metadata keep it
        "positions": ("learned", "sincos2d_mae"),
    },
    _rules,
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
    form = huggingface if any("embeddings.patch_embeddings." in name for name in encoder) else timm
    kept = options.get("head", "keep") == "keep"
    parsed = form.parse(inner, options.replaced(pool=options.get("pool") or "token") if kept else options)
    words = huggingface.spelling(encoder)["vit"].words if form is huggingface else None
    if not kept:
        options = Options(options, asks=False)  # the decoder is left out
    return dataclasses.replace(parsed, decoder=_decoder(parsed, decoder, contents.config, words, options))


def _decoder(parsed, arrays, config, words, options):
    """The Decoder; what the file does not state is asked for. `words` as in decoder_map."""
    block = "decoder_layers" if words else "decoder_blocks"
    hidden = need(arrays, f"{block}.0.{words['fc1'] if words else 'mlp.fc1'}.weight", 2)
    fields = {
        "decoder_depth": depth(arrays, rf"{block}\.(\d+)\."),
        "decoder_width": need(arrays, _ROOT, 2).shape[0],
        "decoder_mlp_dim": hidden.shape[0],
    }
    check_agreement(_CONFIG.compared(config, fields))
    stated = {
        "decoder_heads": setting(config, "decoder_num_attention_heads", int),
        "normalise_targets": setting(config, "norm_pix_loss", bool),
        "mask_ratio": setting(config, "mask_ratio", float),
    }
    certain = is_named(config)  # transformers' defaults are the published values
    fields |= {name: options.value(name, DECODER[name], value, certain) for name, value in stated.items()}
    grid = grid_size(parsed.image_size, parsed.fields["patch_size"])
    fields["decoder_positions"] = find_kind(need(arrays, "decoder_pos_embed", 3), grid)
    [table] = _TABLES & parsed.arrays.keys()
    encoder_positions = find_kind(parsed.arrays[table], grid)
    qkv_bias = parsed.fields["qkv_bias"]
    if fields["decoder_positions"] != "learned":
        arrays = {name: array for name, array in arrays.items() if name != "decoder_pos_embed"}
    return Decoder(fields, decoder_map(fields, qkv_bias, words), arrays, encoder_positions, table)


def find_kind(table: np.ndarray, grid: tuple[int, int]) -> str:
    """The kind of a position table (1, prefix + h*w, d): MAE's "sincos2d_mae", or "learned"."""
    prefix, width = table.shape[1] - grid[0] * grid[1], table.shape[2]
    if prefix < 0 or width % 4:
        return "learned"
    return (
        "sincos2d_mae" if np.abs(table - fixed_table("sincos2d_mae", grid, prefix, width)).max() < _NEAR else "learned"
    )


def decoder_map(fields: Mapping[str, Any], qkv_bias: bool, words: Mapping[str, str] | None) -> NameMap:
    """{name: Entry} of the decoder without a prefix; `fields` are its arguments of MaskedAutoencoder.

    Its blocks are spelled with the `words` of Hugging Face's ViT; None for facebookresearch/mae.
    """
    spec, place = {"depth": fields["decoder_depth"], "qkv_bias": qkv_bias}, {"ours": "decoder_block_{i:02d}"}
    theirs = huggingface.BLOCK.spelled(theirs="decoder_layers.{i}.", **place, **words) if words else timm.DECODER_BLOCK
    return _NAMES.map(fields) | theirs.map(spec)


def to_config(model: Any) -> dict[str, Any]:
    """config.json of a MaskedAutoencoder."""
    names = {"architectures": ["ViTMAEForPreTraining"], "model_type": "vit_mae"}
    facts = {fact: getattr(model, fact) for _, fact, _ in _CONFIG.rows}
    return {**huggingface.to_config(model.get_encoder()), **names, **_CONFIG.written(facts)}


def write(model: Any, weights: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """(arrays, {config file: content}) of a MaskedAutoencoder; ValueError for one that ViTMAE cannot express."""
    CAPABILITIES.check(model.get_encoder())
    fields = {"decoder_positions": model.decoder_positions, "decoder_depth": model.decoder_depth}
    spelled = huggingface.IN_FILES["vit"]
    entries = spelled.map(vars(model.spec))
    decoder = decoder_map(fields, model.spec.qkv_bias, spelled.words)
    entries |= {f"decoder.{name}": entry for name, entry in decoder.items()}
    tables = {
        "vit.embeddings.position_embeddings": (model.spec.positions, model.spec.width),
        "decoder.decoder_pos_embed": (model.decoder_positions, model.decoder_width),
    }
    fixed = {
        name: fixed_table(kind, model.grid, 1, width) for name, (kind, width) in tables.items() if kind != "learned"
    }
    arrays = pack({name: entry for name, entry in entries.items() if name not in fixed}, weights)
    return {**arrays, **fixed}, huggingface_config.files(model, to_config(model))
