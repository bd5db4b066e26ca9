"""timm's Eva: DINOv3's structure (EUPE and LingBot-Vision, too), EVA-02 and Perception Encoder. DINOv3's original names
are read, too.

Rotary positions take no array, so files of DINOv3 fit every image size; heads 64 wide are the published models',
except the largest.
"""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_vit.checkpoints.formats import timm_config
from keras_vit.checkpoints.formats.capabilities import Capabilities, any_of
from keras_vit.checkpoints.formats.name_map import pack
from keras_vit.checkpoints.formats.parsed import ParsedCheckpoint, any_size, known_heads, table_size
from keras_vit.checkpoints.formats.settings import check_agreement, section, setting, stated_pair
from keras_vit.checkpoints.formats.shown import Shown, need
from keras_vit.checkpoints.formats.timm import EVA_NAMES, in_timm

# DINOv3's own names, and timm's.
_ALIASES = [
    (r"^storage_tokens$", "reg_token"),
    (r"\.ls([12])\.gamma$", r".gamma_\1"),
    (r"\.mlp\.w1\.", ".mlp.fc1_g."),
    (r"\.mlp\.w2\.", ".mlp.fc1_x."),
    (r"\.mlp\.w3\.", ".mlp.fc2."),
]
# Of DINOv3's and EUPE's training: masked tokens, local crops, distillation; the periods are computed here.
_DROPPED = re.compile(r"^mask_token$|^local_cls_norm\.|^projectors\.|(^|\.)rope(_embed)?\.periods$|\.bias_mask$")
_ARCHITECTURES = {"dinov3": r"dinov3|lingbot", "eva02": r"^eva02_(?!.*_clip_)", "pe": r"^vit_pe_"}
_TITLES = {"dinov3": "DINOv3", "eva02": "EVA-02", "pe": "a Perception Encoder"}
# {argument of timm's Eva: its value}: other values compute something else from the same arrays.
_ALWAYS = {"use_rot_pos_emb": True, "attn_type": "eva", "use_post_norm": False, "rope_grid_offset": 0}
_WITH_TABLE = {**_ALWAYS, "rope_type": "cat", "rope_rotate_half": False, "use_abs_pos_emb": True}
_WITH_TABLE |= {"rope_temperature": 10000, "no_embed_class": False}
_ARGUMENTS = {
    "dinov3": {**_ALWAYS, "rope_type": "dinov3", "rope_rotate_half": True, "use_abs_pos_emb": False}
    | {"rope_temperature": 100},
    "eva02": {**_WITH_TABLE, "rope_grid_indexing": "ij"},
    "pe": {**_WITH_TABLE, "attn_type": "rope", "rope_grid_indexing": "xy", "rope_grid_offset": 1},
}
_FIELDS = {
    "dinov3": {"positions": "rope2d", "epsilon": 1e-5},
    "eva02": {"positions": "learned", "rope": "rope2d_cells", "epsilon": 1e-6},
    "pe": {"positions": "learned", "rope": "rope2d_cells1", "epsilon": 1e-5, "pre_norm": True},
}
HEAD_WIDTHS = {4096: 128}  # {width: width of a head} of the published models, otherwise 64
_PE_HEAD_WIDTHS = {1536: 96}
PE_POOL_HEADS = 8  # of Perception Encoder's MAP pool
IMAGE_SIZE = 256  # of timm's files without a config.json


ROTARY = {"rope2d": "dinov3", "rope2d_cells": "eva02", "rope2d_cells1": "pe"}  # {rotation: row of CAPABILITIES}


def find_structure(spec: Any) -> str:
    """The row of CAPABILITIES for a spec with rotations."""
    return ROTARY[spec.rope or spec.positions]


def _rules(model):
    spec, kind = model.spec, find_structure(model.spec)
    if kind == "pe":
        bare = not (spec.qkv_bias and spec.key_bias and spec.pre_norm)
        yield (
            bare,
            'qkv_bias, key_bias or pre_norm=False with rope="rope2d_cells1" (a Perception Encoder has all three)',
        )
        wrong = f"final_norm={spec.final_norm} with pool={spec.pool!r} (a MAP pool needs the last norm, others none)"
        yield (spec.pool == "map") != spec.final_norm, wrong
        return
    yield spec.qkv_bias and spec.key_bias, "key_bias=True (these have biases of query and value alone, or none)"
    unscaled = kind == "dinov3" and spec.layer_scale is None
    yield unscaled, 'layer_scale=None with positions="rope2d" (DINOv3 has LayerScale)'
    unbiased = kind == "eva02" and not spec.qkv_bias
    yield unbiased, 'qkv_bias=False with rope="rope2d_cells" (EVA-02 has biases of query and value)'


# mean and std are in config.json; epsilon is a convention, which this package's metadata override.
_COMMON = {
    **any_of("patch_size depth width mlp_dim heads fc_norm qkv_bias key_bias mean std epsilon"),
    "pool": ("token", "gap"),
}
_OWN: dict[str, dict[str, Any]] = {
    "dinov3": {"positions": ("rope2d",), **any_of("mlp_form class_token registers layer_scale")},
    "eva02": {"positions": ("learned",), "rope": ("rope2d_cells",), "mlp_form": ("swiglu",), "class_token": (True,)}
    | any_of("rope_grid hidden_norm"),
    "pe": {"positions": ("learned",), "rope": ("rope2d_cells1",), "pool": ("map", "gap", "token"), "pre_norm": (True,)}
    | {"fc_norm": (False,), **any_of("rope_grid class_token pool_heads final_norm layer_scale")},
}
CAPABILITIES = {
    name: Capabilities("timm", {**_COMMON, **own}, _rules, {"epsilon": _FIELDS[name]["epsilon"]})
    for name, own in _OWN.items()
}


def _kind(arrays):
    """The structure by the arrays: DINOv3 has no table of positions, and only Perception Encoder the first norm."""
    if "norm_pre.weight" in arrays:
        return "pe"
    return "eva02" if "pos_embed" in arrays else "dinov3"


def _fields(shown, kind, config, options):
    """The fields of the spec, without the normalisation."""
    arguments, certain, fields = section(config, "model_args"), timm_config.is_named(config), shown.vit_fields()
    width = fields["width"]
    usual = max(width // (_PE_HEAD_WIDTHS if kind == "pe" else HEAD_WIDTHS).get(width, 64), 1)
    stated = setting(arguments, "num_heads", int)
    k = known_heads(options, stated, usual if width % usual == 0 else 1, certain)
    if width % k:
        raise ValueError(f"A width of {width} does not divide into {k} heads: pass heads=...")
    fields |= {
        **_FIELDS[kind],
        "heads": k,
        "epsilon": options.value("epsilon", _FIELDS[kind]["epsilon"], certain=certain),
        "rope_rescale": setting(arguments, "rope_rescale_coords", int, float) or 1.0,
    }
    if fields["mlp_form"] == "plain":
        fields["mlp_activation"] = options.value("mlp_activation", "gelu", certain=certain)
    fields["pool"] = timm_config.pool(shown, fields, config, options)
    if "rope" in fields:
        stated = (stated_pair(arguments, "ref_feat_shape") or (None,))[0]
        fields["rope_grid"] = options.value("rope_grid", _rope_grid(kind, fields), stated, certain)
    if fields["pool"] == "map":
        stated = setting(arguments, "attn_pool_num_heads", int)
        fields["pool_heads"] = options.value("pool_heads", PE_POOL_HEADS, stated, certain)
    return fields


def _rope_grid(kind, fields):
    """The published models' grid, in whose units rotations measure."""
    if kind == "eva02":
        return 16
    return 32 if fields["pool"] != "map" else 14 if fields["width"] == 768 else 24


def _check(config, kind, rows, registers):
    """Compares config.json with `rows` of the arrays, and with this package; ValueError with each difference."""
    architecture, arguments = config.get("architecture"), section(config, "model_args")
    if architecture is not None and not re.search(_ARCHITECTURES[kind], str(architecture)):
        raise ValueError(
            f"By config.json, the architecture is {architecture!r}, but the arrays are those of {_TITLES[kind]}:"
            " other rotary positions are not implemented for them."
        )
    expected = _ARGUMENTS[kind].items()
    fixed = [(name, setting(arguments, name, bool, int, float, str), value) for name, value in expected]
    check_agreement([*rows, *fixed, ("num_reg_tokens", setting(arguments, "num_reg_tokens", int), registers)])


def _image_size(arrays, fields, config, options):
    """(height, width) of the checkpoint's images: by its table of positions, or else as stated."""
    stated = timm_config.input_size(config)
    if "pos_embed" not in arrays:
        return any_size(stated, options, IMAGE_SIZE, timm_config.is_named(config))
    rows = need(arrays, "pos_embed", 3).shape[1] - int(fields["class_token"])
    return table_size(rows, fields["patch_size"], stated, options)


def parse(contents: Any, options: Any) -> ParsedCheckpoint:
    """Parses a state dict; arguments and errors as in timm.parse."""
    config = contents.config
    arrays, dropped = in_timm(contents.arrays, _ALIASES, _DROPPED)
    layers = {"apart": "mlp.fc1_g.weight", "separate": "attn.q_proj.weight", "pair": "attn.q_bias"}
    spelled = {flag: f"blocks.0.{name}" in arrays for flag, name in layers.items()}
    is_original = any(name.endswith("storage_tokens") for name in contents.arrays)
    spelled["masked"] = is_original and "blocks.0.attn.qkv.bias" in arrays
    shown, kind = Shown(EVA_NAMES, arrays), _kind(arrays)
    fields, classes, channels = _fields(shown, kind, config, options), shown.classes, shown.channels
    fields |= timm_config.normalisation(config, channels, options)
    fields["key_bias"] = (fields["key_bias"] and not spelled["masked"]) or not fields["qkv_bias"]
    size = _image_size(arrays, fields, config, options)
    _check(config, kind, timm_config.stated_rows(config, fields, size, classes, channels), fields["registers"])
    return ParsedCheckpoint(
        "ViT",
        fields,
        size,
        EVA_NAMES.map(fields, classes=classes, **spelled),
        arrays,
        classes,
        channels,
        class_names=timm_config.label_names(config, classes),
        dropped=dropped,
        resample="timm",
        preprocessing=timm_config.preprocessing(config),
    )


def _architecture(spec):
    """The timm function that builds the Eva when given all sizes."""
    if spec.rope is not None:
        return "eva02_tiny_patch14_224" if spec.rope == "rope2d_cells" else "vit_pe_core_base_patch16_224"
    return "vit_small_patch16_dinov3_qkvb" if spec.qkv_bias else "vit_small_patch16_dinov3"


def to_config(model: Any) -> dict[str, Any]:
    """timm's config.json."""
    spec, dinov3 = model.spec, model.spec.positions == "rope2d"
    arguments = {
        "swiglu_mlp": spec.mlp_form == "swiglu",
        "swiglu_align_to": 1 if dinov3 else 0,
        "init_values": spec.layer_scale,
        "num_reg_tokens": spec.registers,
        "use_fc_norm": spec.fc_norm,
    }
    if not dinov3:
        normed = spec.final_norm and not spec.fc_norm
        arguments |= {"ref_feat_shape": [spec.rope_grid] * 2, "use_post_transformer_norm": normed}
        arguments |= {"scale_mlp": spec.hidden_norm, "qkv_fused": not spec.hidden_norm}
    if spec.pool == "map":
        arguments |= {"attn_pool_num_heads": spec.pool_heads or spec.heads}
        arguments["attn_pool_mlp_ratio"] = (spec.mlp_dim + 0.5) / spec.width
    if spec.rope_rescale > 1:
        arguments["rope_rescale_coords"] = spec.rope_rescale
    return timm_config.of_vit(model, _architecture(spec), arguments)


def write(model: Any, weights: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """(arrays, {config file: content}) of a model; ValueError for one that the format cannot express."""
    spec, structure = model.spec, find_structure(model.spec)
    CAPABILITIES[structure].check(model)
    # The gate and values of SwiGLU are apart; query, key and value; or the biases of query and value alone.
    apart = spec.mlp_form == "swiglu" if structure == "dinov3" else spec.hidden_norm
    pair = spec.qkv_bias and not spec.key_bias and not spec.hidden_norm
    entries = EVA_NAMES.map(vars(spec), classes=model.classes, apart=apart, separate=spec.hidden_norm, pair=pair)
    return pack(entries, weights), {"config.json": to_config(model)}
