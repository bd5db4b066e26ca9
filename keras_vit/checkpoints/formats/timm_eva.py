"""timm's Eva: DINOv3's structure (EUPE and LingBot-Vision, too) and EVA-02. DINOv3's original names are read, too.

Rotary positions take no array, so files of DINOv3 fit every image size; heads 64 wide are the published models',
except 7B's. Arrays are joined to the names of name_map: query, key and value, and SwiGLU's gate and values.
"""

import dataclasses
import re
from collections.abc import Mapping

import numpy as np

from keras_vit.checkpoints.formats.capabilities import ANY, Capabilities
from keras_vit.checkpoints.formats.gates import join_gates, split_gates
from keras_vit.checkpoints.formats.name_map import (
    Entry,
    NameMap,
    conv,
    positions,
    same,
    stacked_linear,
    torch_dense,
    torch_norm,
)
from keras_vit.checkpoints.formats.parsed import (
    ParsedCheckpoint,
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
    label_names,
    normalisation,
    pool,
    preprocessing,
    section,
    stated_rows,
)
from keras_vit.layers.embedding.patches import pair

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
# {argument of timm's Eva: its value}: other values compute something else from the same arrays.
_ALWAYS = {"use_rot_pos_emb": True, "attn_type": "eva", "use_post_norm": False, "rope_grid_offset": 0}
_ARGUMENTS = {
    "dinov3": {**_ALWAYS, "rope_type": "dinov3", "rope_rotate_half": True, "use_abs_pos_emb": False}
    | {"rope_temperature": 100},
    "eva02": {**_ALWAYS, "rope_type": "cat", "rope_rotate_half": False, "use_abs_pos_emb": True}
    | {"rope_temperature": 10000, "rope_grid_indexing": "ij", "no_embed_class": False},
}
_FIELDS = {
    "dinov3": {"positions": "rope2d", "epsilon": 1e-5},
    "eva02": {"positions": "learned", "rope": "rope2d_cells", "epsilon": 1e-6},
}
HEAD_WIDTHS = {4096: 128}  # {width: width of a head} of the published models, otherwise 64
IMAGE_SIZE = 256  # of timm's files without a config.json


def structure_of(spec) -> str | None:
    """The row of CAPABILITIES for a spec; None if timm builds its model from another class."""
    if spec.positions == "rope2d":
        return "dinov3"
    return "eva02" if spec.rope == "rope2d_cells" else None


def _structure(model):
    spec = model.spec
    if spec.qkv_bias and spec.key_bias:
        return "key_bias=True (these have biases of query and value alone, or none)"
    if structure_of(spec) == "dinov3" and spec.layer_scale is None:
        return 'layer_scale=None with positions="rope2d" (DINOv3 has LayerScale)'
    if structure_of(spec) == "eva02" and not spec.qkv_bias:
        return 'qkv_bias=False with rope="rope2d_cells" (EVA-02 has biases of query and value)'
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
CAPABILITIES = {
    name: Capabilities(
        "timm", {**_COMMON, **own}, rules=(_structure,), conventions={"epsilon": _FIELDS[name]["epsilon"]}
    )
    for name, own in (("dinov3", _OF_DINOV3), ("eva02", _OF_EVA02))
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
    k = known_heads(options, setting(arguments, "num_heads", int)) or max(width // HEAD_WIDTHS.get(width, 64), 1)
    if width % k:
        raise ValueError(f"A width of {width} does not divide into {k} heads: pass heads=...")
    bias, structure = "blocks.0.attn.q_bias" in arrays, _FIELDS[_kind(arrays)]
    fields = {
        "patch_size": w.shape[2:],
        "depth": depth(arrays, r"blocks\.(\d+)\."),
        "width": width,
        "heads": k,
        "mlp_dim": out.shape[1],
        "mlp_form": "swiglu" if hidden.shape[0] == 2 * out.shape[1] else "plain",
        "class_token": "cls_token" in arrays,
        "registers": need(arrays, "reg_token", 3).shape[1] if "reg_token" in arrays else 0,
        **structure,
        "rope_rescale": setting(arguments, "rope_rescale_coords", int, float) or 1.0,
        "hidden_norm": "blocks.0.mlp.norm.weight" in arrays,
        "qkv_bias": bias,
        "key_bias": not bias,
        "layer_scale": 1e-5 if "blocks.0.gamma_1" in arrays else None,
        "fc_norm": "fc_norm.weight" in arrays,
    }
    if "rope" in structure:
        fields["rope_grid"] = (stated_pair(arguments, "ref_feat_shape") or (16, 16))[0]
    return {**fields, "pool": pool(arrays, fields, config)}


def _kind(arrays):
    """The structure by the arrays: EVA-02 has a table of positions."""
    return "eva02" if "pos_embed" in arrays else "dinov3"


def _check(config, kind, fields, size, classes, channels):
    """Compares config.json with the arrays, and with this package; ValueError with each difference."""
    architecture, arguments = str(config.get("architecture")), section(config, "model_args")
    if config.get("architecture") is not None and not _ARCHITECTURES[kind].search(architecture):
        name = {"dinov3": "DINOv3", "eva02": "EVA-02"}[kind]
        raise ValueError(
            f"By config.json, the architecture is {architecture!r}, but the arrays are those of {name}: other rotary"
            " positions are not implemented for them."
        )
    given = _ARGUMENTS[kind].items()
    rows = [(name, setting(arguments, name, bool, int, float, str), value) for name, value in given]
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
        return pair(options.get("recorded_size") or stated or options.get("image_size") or IMAGE_SIZE, "image_size")
    hint = hint_grid(options, fields["patch_size"], None if stated is None else list(stated))
    rows = need(arrays, "pos_embed", 3).shape[1] - int(fields["class_token"])
    return pixels(grid(rows, hint), fields["patch_size"])


def parse(contents, options: dict) -> ParsedCheckpoint:
    """Parses a state dict; arguments and errors as in timm.parse."""
    config = contents.config
    assumptions: list[str] = []
    arrays, dropped = _normalise(contents.arrays)
    fields = _fields(arrays, config, options)
    channels = need(arrays, "patch_embed.proj.weight", 4).shape[1]
    if not config:
        assumed = [f"{name}={fields[name]!r}" for name in ("heads", "pool") if options.get(name) is None]
        assumptions += [f"No config.json: assuming {', '.join(assumed)}; pass those that differ."] if assumed else []
    fields.update(normalisation(config, channels, options, assumptions))
    size = _image_size(arrays, fields, config, options)
    classes = need(arrays, "head.weight", 2).shape[0] if "head.weight" in arrays else None
    _check(config, _kind(arrays), fields, size, classes, channels)
    return ParsedCheckpoint(
        "ViT",
        fields,
        size,
        name_map(fields, classes),
        arrays,
        classes,
        channels,
        label_names(config, classes),
        dropped,
        assumptions,
        "timm",
        preprocessing(config),
    )


def in_pairs(entry: Entry, heads: int | None, count: int) -> Entry:
    """An entry where the file rotates values 2 i and 2 i + 1 of a head together, and ours i and i + c/2.

    Args:
        entry: of layers (..., k*c).
        heads: k; None for the same order in both.
        count: how many of its first arrays, queries and keys, have that order.
    """
    if heads is None:
        return entry

    def moved(array, split):
        parts = array.reshape(*array.shape[:-1], heads, *split)  # (..., k, 2, c/2) or (..., k, c/2, 2)
        return parts.swapaxes(-1, -2).reshape(array.shape)

    def pack(*arrays):
        return entry.pack(*(moved(a, (2, -1)) if i < count else a for i, a in enumerate(arrays)))

    def unpack(array, shapes):
        return [moved(a, (-1, 2)) if i < count else a for i, a in enumerate(entry.unpack(array, shapes))]

    return dataclasses.replace(entry, pack=pack, unpack=unpack)


def block_map(theirs: str, ours: str, spec: Mapping) -> NameMap:
    """{name: Entry} of a block."""
    attention, heads = f"{ours}/attention/", spec["heads"] if spec.get("rope") else None
    qkv = (f"{attention}{name}/kernel" for name in ("query", "key", "value"))
    entries = {f"{theirs}.attn.qkv.weight": in_pairs(stacked_linear(*qkv), heads, 2)}
    if spec["qkv_bias"]:
        entries[f"{theirs}.attn.q_bias"] = in_pairs(same(f"{attention}query/bias"), heads, 1)
        entries[f"{theirs}.attn.v_bias"] = same(f"{attention}value/bias")
    entries.update(torch_dense(f"{theirs}.attn.proj", f"{attention}out"))
    if spec["layer_scale"] is not None:
        entries[f"{theirs}.gamma_1"] = same(f"{ours}/attention_scale/gamma")
        entries[f"{theirs}.gamma_2"] = same(f"{ours}/mlp_scale/gamma")
    if spec["hidden_norm"]:
        entries.update(torch_norm(f"{theirs}.mlp.norm", f"{ours}/mlp/norm"))
    for norm, name in (("norm1", "attention_norm"), ("norm2", "mlp_norm")):
        entries.update(torch_norm(f"{theirs}.{norm}", f"{ours}/{name}"))
    for layer, name in (("fc1", "hidden"), ("fc2", "out")):
        entries.update(torch_dense(f"{theirs}.mlp.{layer}", f"{ours}/mlp/{name}"))
    return entries


def name_map(spec: Mapping, classes: int | None) -> NameMap:
    """{name: Entry} of a model, its arrays joined; `spec` is a dict of ViTSpec's fields."""
    entries = {
        "patch_embed.proj.weight": conv("patch_encoder/kernel"),
        "patch_embed.proj.bias": same("patch_encoder/bias"),
    }
    tokens = (("class_token", "cls_token"), ("registers", "reg_token"))
    entries.update({theirs: same(f"{ours}/tokens") for ours, theirs in tokens if spec[ours]})
    if spec["positions"] == "learned":
        entries["pos_embed"] = positions("position_embedding/embedding", 0)
    for i in range(spec["depth"]):
        entries.update(block_map(f"blocks.{i}", f"block_{i:02d}", spec))
    entries.update(torch_norm("fc_norm", "fc_norm") if spec["fc_norm"] else torch_norm("norm", "encoder_norm"))
    return {**entries, **torch_dense("head", "head")} if classes is not None else entries


def file_arrays(arrays: Mapping[str, np.ndarray], spec) -> dict[str, np.ndarray]:
    """The arrays by name_map's names as in timm's files; EVA-02's are apart where the MLP normalises."""
    apart = spec.mlp_form == "swiglu" if structure_of(spec) == "dinov3" else spec.hidden_norm
    found = split_gates(arrays, *_GATES) if apart else dict(arrays)
    return _separate(found) if spec.hidden_norm else found
