"""timm's Eva with DINOv3's structure: DINOv3, EUPE, LingBot-Vision. DINOv3's original names are read, too.

Rotary positions take no array, so the file fits every image size; heads 64 wide are the published models', except 7B's.
"""

import re
from collections.abc import Mapping

import numpy as np

from keras_vit.checkpoints.formats.capabilities import ANY, Capabilities
from keras_vit.checkpoints.formats.gates import join_gates, split_gates
from keras_vit.checkpoints.formats.name_map import (
    NameMap,
    conv,
    same,
    stacked_linear,
    torch_dense,
    torch_norm,
)
from keras_vit.checkpoints.formats.parsed import (
    ParsedCheckpoint,
    check_agreement,
    depth,
    known_heads,
    need,
    renamed,
    setting,
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
_ARCHITECTURES = re.compile(r"dinov3|lingbot")
# {argument of timm's Eva: DINOv3's value}: other values compute something else from the same arrays.
_ARGUMENTS = {
    **{"rope_type": "dinov3", "rope_rotate_half": True, "use_rot_pos_emb": True, "use_abs_pos_emb": False},
    **{"rope_temperature": 100, "attn_type": "eva", "use_post_norm": False, "rope_grid_offset": 0},
}
HEAD_WIDTHS = {4096: 128}  # {width: width of a head} of the published models, otherwise 64
IMAGE_SIZE = 256  # of timm's files without a config.json
CONVENTIONS = {"epsilon": 1e-5}


def _structure(model):
    spec = model.spec
    if spec.layer_scale is None:
        return 'layer_scale=None with positions="rope2d" (DINOv3 has LayerScale)'
    if spec.qkv_bias and spec.key_bias:
        return "key_bias=True (DINOv3 has biases of query and value alone, or none)"
    return None


CAPABILITIES = Capabilities(
    "timm",
    {
        **dict.fromkeys(("patch_size", "depth", "width", "mlp_dim", "heads", "registers", "layer_scale"), ANY),
        "class_token": (True, False),
        "positions": ("rope2d",),
        "pool": ("token", "gap"),
        "fc_norm": (True, False),
        "qkv_bias": (True, False),
        "key_bias": (True, False),
        "mlp_form": ("plain", "swiglu"),
        # In config.json:
        "mean": ANY,
        "std": ANY,
        # Convention, not in the files; this package's metadata override it.
        "epsilon": ANY,
    },
    rules=(_structure,),
    conventions=CONVENTIONS,
)


def _normalise(arrays):
    """(the arrays in timm's names without a prefix, SwiGLU's first layers joined; the names left out)."""
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
    return join_gates(named, *_GATES), [name for name in arrays if name not in kept]


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
    bias = "blocks.0.attn.q_bias" in arrays
    fields = {
        "patch_size": w.shape[2:],
        "depth": depth(arrays, r"blocks\.(\d+)\."),
        "width": width,
        "heads": k,
        "mlp_dim": out.shape[1],
        "mlp_form": "swiglu" if hidden.shape[0] == 2 * out.shape[1] else "plain",
        "class_token": "cls_token" in arrays,
        "registers": need(arrays, "reg_token", 3).shape[1] if "reg_token" in arrays else 0,
        "positions": "rope2d",
        "rope_rescale": setting(arguments, "rope_rescale_coords", int, float) or 1.0,
        "qkv_bias": bias,
        "key_bias": not bias,
        "layer_scale": 1e-5,
        "fc_norm": "fc_norm.weight" in arrays,
        **CONVENTIONS,
    }
    return {**fields, "pool": pool(arrays, fields, config)}


def _check(config, fields, size, classes, channels):
    """Compares config.json with the arrays, and with what DINOv3 computes; ValueError with each difference."""
    architecture, arguments = str(config.get("architecture")), section(config, "model_args")
    if config.get("architecture") is not None and not _ARCHITECTURES.search(architecture):
        raise ValueError(
            f"By config.json, the architecture is {architecture!r}, but the arrays are those of DINOv3's structure:"
            " other rotary positions are not implemented for them."
        )
    rows = [(name, setting(arguments, name, bool, int, float, str), value) for name, value in _ARGUMENTS.items()]
    registers = setting(arguments, "num_reg_tokens", int)
    check_agreement(
        [
            *stated_rows(config, fields, size, classes, channels),
            *rows,
            ("num_reg_tokens", registers, fields["registers"]),
            ("qkv_bias", setting(arguments, "qkv_bias", bool), fields["qkv_bias"]),
        ]
    )


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
    known = options.get("recorded_size") or input_size(config) or options.get("image_size") or IMAGE_SIZE
    size = pair(known, "image_size")
    classes = need(arrays, "head.weight", 2).shape[0] if "head.weight" in arrays else None
    _check(config, fields, input_size(config) or size, classes, channels)
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


def block_map(theirs: str, ours: str, spec: Mapping) -> NameMap:
    """{name: Entry} of a block."""
    attention = f"{ours}/attention/"
    qkv = (f"{attention}{name}/kernel" for name in ("query", "key", "value"))
    entries = {f"{theirs}.attn.qkv.weight": stacked_linear(*qkv)}
    if spec["qkv_bias"]:
        entries[f"{theirs}.attn.q_bias"] = same(f"{attention}query/bias")
        entries[f"{theirs}.attn.v_bias"] = same(f"{attention}value/bias")
    entries.update(torch_dense(f"{theirs}.attn.proj", f"{attention}out"))
    entries[f"{theirs}.gamma_1"] = same(f"{ours}/attention_scale/gamma")
    entries[f"{theirs}.gamma_2"] = same(f"{ours}/mlp_scale/gamma")
    for norm, name in (("norm1", "attention_norm"), ("norm2", "mlp_norm")):
        entries.update(torch_norm(f"{theirs}.{norm}", f"{ours}/{name}"))
    for layer, name in (("fc1", "hidden"), ("fc2", "out")):
        entries.update(torch_dense(f"{theirs}.mlp.{layer}", f"{ours}/mlp/{name}"))
    return entries


def name_map(spec: Mapping, classes: int | None) -> NameMap:
    """{name: Entry} of a model, SwiGLU's first layers joined; `spec` is a dict of ViTSpec's fields."""
    entries = {
        "patch_embed.proj.weight": conv("patch_encoder/kernel"),
        "patch_embed.proj.bias": same("patch_encoder/bias"),
    }
    tokens = (("class_token", "cls_token"), ("registers", "reg_token"))
    entries.update({theirs: same(f"{ours}/tokens") for ours, theirs in tokens if spec[ours]})
    for i in range(spec["depth"]):
        entries.update(block_map(f"blocks.{i}", f"block_{i:02d}", spec))
    entries.update(torch_norm("fc_norm", "fc_norm") if spec["fc_norm"] else torch_norm("norm", "encoder_norm"))
    return {**entries, **torch_dense("head", "head")} if classes is not None else entries


def file_arrays(arrays: Mapping[str, np.ndarray], spec) -> dict[str, np.ndarray]:
    """The arrays by name_map's names as timm's files hold them."""
    return split_gates(arrays, *_GATES) if spec.mlp_form == "swiglu" else dict(arrays)
