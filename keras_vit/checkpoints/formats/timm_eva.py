"""timm's Eva: DINOv3's structure (EUPE and LingBot-Vision, too), EVA-02 and Perception Encoder. DINOv3's original names
are read, too.

Rotary positions take no array, so files of DINOv3 fit every image size; heads 64 wide are the published models',
 except the largest. Arrays are joined to the names of name_map: query, key and value, and SwiGLU's gate and values.
"""

import re
from collections.abc import Mapping

import numpy as np

from keras_vit.checkpoints.formats.capabilities import ANY, Capabilities
from keras_vit.checkpoints.formats.gates import join_gates, split_gates
from keras_vit.checkpoints.formats.parsed import (
    ParsedCheckpoint,
    any_size,
    check_agreement,
    depth,
    grid,
    hint_grid,
    known_heads,
    need,
    pixels,
    renamed,
    setting,
    stated_pair,
)
from keras_vit.checkpoints.formats.timm_config import (
    input_size,
    is_named,
    label_names,
    normalisation,
    pool,
    preprocessing,
    section,
    stated_rows,
)
from keras_vit.checkpoints.formats.timm_names import EVA_SCALES, name_map

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
_GATES = (".mlp.fc1_g.", ".mlp.fc1_x.", ".mlp.fc1.")
_ARCHITECTURES = {"dinov3": re.compile(r"dinov3|lingbot"), "eva02": re.compile(r"^eva02_(?!.*_clip_)")}
_ARCHITECTURES["pe"] = re.compile(r"^vit_pe_")
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


def find_structure(spec) -> str | None:
    """The row of CAPABILITIES for a spec; None if timm builds its model from another class."""
    if spec.positions == "rope2d":
        return "dinov3"
    return {"rope2d_cells": "eva02", "rope2d_cells1": "pe"}.get(spec.rope)


def _structure(model):
    spec = model.spec
    if find_structure(spec) == "pe":
        return _perception_encoder(spec)
    if spec.qkv_bias and spec.key_bias:
        return "key_bias=True (these have biases of query and value alone, or none)"
    if find_structure(spec) == "dinov3" and spec.layer_scale is None:
        return 'layer_scale=None with positions="rope2d" (DINOv3 has LayerScale)'
    if find_structure(spec) == "eva02" and not spec.qkv_bias:
        return 'qkv_bias=False with rope="rope2d_cells" (EVA-02 has biases of query and value)'
    return None


def _perception_encoder(spec):
    if not (spec.qkv_bias and spec.key_bias and spec.pre_norm):
        return 'qkv_bias, key_bias or pre_norm=False with rope="rope2d_cells1" (a Perception Encoder has all three)'
    if (spec.pool == "map") != spec.final_norm:
        return f"final_norm={spec.final_norm} with pool={spec.pool!r} (a MAP pool needs the last norm, others none)"
    return None


_COMMON = {
    **dict.fromkeys(("patch_size", "depth", "width", "mlp_dim", "heads"), ANY),
    "pool": ("token", "gap"),
    "fc_norm": (True, False),
    "qkv_bias": (True, False),
    "key_bias": (True, False),
    # In config.json:
    "mean": ANY,
    "std": ANY,
    # Convention, not in the files; this package's metadata override it.
    "epsilon": ANY,
}
_OF_DINOV3 = {"positions": ("rope2d",), "mlp_form": ("plain", "swiglu"), "class_token": (True, False)}
_OF_DINOV3 |= {"registers": ANY, "layer_scale": ANY}
_OF_EVA02 = {"positions": ("learned",), "rope": ("rope2d_cells",), "rope_grid": ANY, "mlp_form": ("swiglu",)}
_OF_EVA02 |= {"class_token": (True,), "hidden_norm": (True, False)}
_OF_PE = {"positions": ("learned",), "rope": ("rope2d_cells1",), "rope_grid": ANY, "class_token": (True, False)}
_OF_PE |= {"pool": ("map", "gap", "token"), "pool_heads": ANY, "pre_norm": (True,), "final_norm": (True, False)}
_OF_PE |= {"fc_norm": (False,), "layer_scale": ANY}
CAPABILITIES = {
    name: Capabilities(
        "timm", {**_COMMON, **own}, rules=(_structure,), conventions={"epsilon": _FIELDS[name]["epsilon"]}
    )
    for name, own in (("dinov3", _OF_DINOV3), ("eva02", _OF_EVA02), ("pe", _OF_PE))
}


def _normalise(arrays):
    """(the arrays in name_map's names without a prefix, the names left out)."""
    proj = min((name for name in arrays if name.endswith("patch_embed.proj.weight")), key=len)
    prefix = proj.removesuffix("patch_embed.proj.weight")
    kept = {n: a for n, a in arrays.items() if n.startswith(prefix) and not _DROPPED.search(n.removeprefix(prefix))}

    def new_name(name):
        name = name.removeprefix(prefix)
        for pattern, new in _ALIASES:
            name = re.sub(pattern, new, name)
        return name

    is_original = f"{prefix}storage_tokens" in arrays
    named = renamed(kept, new_name)
    named = _without_key_biases(named) if is_original else named
    return join_gates(_joined(named), *_GATES), [name for name in arrays if name not in kept]


def _joined(arrays):
    """The arrays with separate layers of query, key and value as one."""
    found = {}
    for name, array in arrays.items():
        if name.endswith(".attn.q_proj.weight"):
            others = (need(arrays, name.replace("q_proj", part), 2) for part in ("k_proj", "v_proj"))
            found[name.replace("q_proj", "qkv")] = np.concatenate([array, *others])
        elif not name.endswith((".attn.k_proj.weight", ".attn.v_proj.weight")):
            found[re.sub(r"\.([qv])_proj\.bias$", r".\1_bias", name)] = array
    return found


def _separate(arrays):
    """The inverse of `_joined`."""
    found = {}
    for name, array in arrays.items():
        if name.endswith(".attn.qkv.weight"):
            for part, layer in zip("qkv", np.split(array, 3)):
                found[name.replace("qkv", f"{part}_proj")] = np.ascontiguousarray(layer)
        else:
            found[re.sub(r"\.([qv])_bias$", r".\1_proj.bias", name)] = array
    return found


def _without_key_biases(arrays):
    """DINOv3's own arrays with the biases of query and value apart; the key's is masked there, so it has no effect."""
    found = {}
    for name, array in arrays.items():
        if name.endswith(".attn.qkv.bias"):
            query, _, value = np.split(array, 3)
            found[name.replace("qkv.bias", "q_bias")], found[name.replace("qkv.bias", "v_bias")] = query, value
        else:
            found[name] = array
    return found


def _fields(arrays, config, options):
    """The fields of the spec, without the normalisation."""
    arguments = section(config, "model_args")
    w, out = need(arrays, "patch_embed.proj.weight", 4), need(arrays, "blocks.0.mlp.fc2.weight", 2)
    hidden, width = need(arrays, "blocks.0.mlp.fc1.weight", 2), w.shape[0]
    kind = _kind(arrays)
    size = (_PE_HEAD_WIDTHS if kind == "pe" else HEAD_WIDTHS).get(width, 64)
    certain, usual = is_named(config), max(width // size, 1)
    stated = setting(arguments, "num_heads", int)
    k = known_heads(options, stated, usual if width % usual == 0 else 1, certain)
    if width % k:
        raise ValueError(f"A width of {width} does not divide into {k} heads: pass heads=...")
    key_bias = kind == "pe" and "blocks.0.attn.qkv.bias" in arrays
    bias = key_bias or "blocks.0.attn.q_bias" in arrays
    fields = {
        "patch_size": w.shape[2:],
        "depth": depth(arrays, r"blocks\.(\d+)\."),
        "width": width,
        "heads": k,
        "mlp_dim": out.shape[1],
        "mlp_form": "swiglu" if hidden.shape[0] == 2 * out.shape[1] else "plain",
        "class_token": "cls_token" in arrays,
        "registers": need(arrays, "reg_token", 3).shape[1] if "reg_token" in arrays else 0,
        **_FIELDS[kind],
        "epsilon": options.value("epsilon", _FIELDS[kind]["epsilon"], certain=certain),
        "rope_rescale": setting(arguments, "rope_rescale_coords", int, float) or 1.0,
        "hidden_norm": "blocks.0.mlp.norm.weight" in arrays,
        "qkv_bias": bias,
        "key_bias": key_bias or not bias,
        "qk_norm": False,
        "layer_scale": 1e-5 if "blocks.0.gamma_1" in arrays else None,
        "fc_norm": "fc_norm.weight" in arrays,
        "final_norm": not {"norm.weight", "fc_norm.weight"}.isdisjoint(arrays),
    }
    if fields["mlp_form"] == "plain":
        fields["mlp_activation"] = options.value("mlp_activation", "gelu", certain=certain)
    fields["pool"] = pool(arrays, fields, config, options)
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


def _kind(arrays):
    """The structure by the arrays: DINOv3 has no table of positions, and only Perception Encoder the first norm."""
    if "norm_pre.weight" in arrays:
        return "pe"
    return "eva02" if "pos_embed" in arrays else "dinov3"


def _check(config, kind, fields, size, classes, channels):
    """Compares config.json with the arrays, and with this package; ValueError with each difference."""
    architecture, arguments = str(config.get("architecture")), section(config, "model_args")
    if config.get("architecture") is not None and not _ARCHITECTURES[kind].search(architecture):
        raise ValueError(
            f"By config.json, the architecture is {architecture!r}, but the arrays are those of {_TITLES[kind]}:"
            " other rotary positions are not implemented for them."
        )
    expected = _ARGUMENTS[kind].items()
    rows = [(name, setting(arguments, name, bool, int, float, str), value) for name, value in expected]
    registers = setting(arguments, "num_reg_tokens", int)
    check_agreement(
        [
            *stated_rows(config, fields, size, classes, channels),
            *rows,
            ("num_reg_tokens", registers, fields["registers"]),
            ("qkv_bias", setting(arguments, "qkv_bias", bool), fields["qkv_bias"]),
        ]
    )


def _image_size(arrays, fields, config, options):
    """(height, width) of the checkpoint's images: by its table of positions, or else as stated."""
    stated = input_size(config)
    if "pos_embed" not in arrays:
        return any_size(stated, options, IMAGE_SIZE, is_named(config))
    hint = hint_grid(options, fields["patch_size"], None if stated is None else list(stated))
    rows = need(arrays, "pos_embed", 3).shape[1] - int(fields["class_token"])
    return pixels(grid(rows, hint, options), fields["patch_size"])


def parse(contents, options: dict) -> ParsedCheckpoint:
    """Parses a state dict; arguments and errors as in timm.parse."""
    config = contents.config
    arrays, dropped = _normalise(contents.arrays)
    fields = _fields(arrays, config, options)
    channels = need(arrays, "patch_embed.proj.weight", 4).shape[1]
    fields.update(normalisation(config, channels, options))
    size = _image_size(arrays, fields, config, options)
    classes = need(arrays, "head.weight", 2).shape[0] if "head.weight" in arrays else None
    _check(config, _kind(arrays), fields, size, classes, channels)
    return ParsedCheckpoint(
        "ViT",
        fields,
        size,
        name_map(fields, classes, scales=EVA_SCALES),
        arrays,
        classes,
        channels,
        label_names(config, classes),
        dropped,
        resample="timm",
        preprocessing=preprocessing(config),
    )


def file_arrays(arrays: Mapping[str, np.ndarray], spec) -> dict[str, np.ndarray]:
    """The arrays by name_map's names as in timm's files; EVA-02's are apart where the MLP normalises."""
    apart = spec.mlp_form == "swiglu" if find_structure(spec) == "dinov3" else spec.hidden_norm
    found = split_gates(arrays, *_GATES) if apart else dict(arrays)
    return _separate(found) if spec.hidden_norm else found
