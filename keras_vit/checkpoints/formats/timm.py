"""State dicts in timm's names: timm, and the original repositories that share them (DeiT I and III, DINO, DINOv2)."""

import re

from keras_vit.checkpoints.formats.capabilities import ANY, Capabilities
from keras_vit.checkpoints.formats.parsed import (
    ParsedCheckpoint,
    check_agreement,
    depth,
    grid,
    heads,
    hint_grid,
    is_grid,
    need,
    pixels,
    renamed,
    setting,
)
from keras_vit.checkpoints.formats.recognise import TIMM_ROOTS
from keras_vit.checkpoints.formats.timm_config import (
    ACTIVATIONS,
    activation,
    check_architecture,
    input_size,
    is_named,
    label_names,
    look_alikes,
    normalisation,
    pool,
    preprocessing,
    section,
    stated_rows,
)
from keras_vit.checkpoints.formats.timm_names import name_map
from keras_vit.models.spec import token_stride

# Names in the original repositories, and timm's.
_ALIASES = [
    (r"^register_tokens$", "reg_token"),  # DINOv2
    (r"\.mlp\.w12\.", ".mlp.fc1."),
    (r"\.mlp\.w3\.", ".mlp.fc2."),
    (r"^blocks\.\d+\.(\d+)\.", r"blocks.\1."),  # DINOv2 in chunks
    (r"\.gamma_([12])$", r".ls\1.gamma"),  # DeiT III
    (r"^pre_logits\.fc\.", "pre_logits."),
]
_DROPPED = re.compile(r"^mask_token$|^rasa_head\.")  # the second: Franca's predictor of positions
# What timm's architectures compute.
CONVENTIONS = {"epsilon": 1e-6}
TEST_HEAD_WIDTH = 32  # of timm's test_vit
# {pattern of timm's architectures: heads} where others of the width have another number.
_UNUSUAL_HEADS = {r"^vit_base_patch16_gap_224$": 16, r"giantopt": 16, r"^vit_small_resnet(26d|50d_s16)_224$": 8}
# timm's architecture of a hybrid's stem.
HYBRIDS = {
    (): "vit_tiny_r_s16_p8_224",
    (2, 2, 2, 2): "vit_small_r26_s32_224",
    (3, 4, 9): "vit_base_r50_s16_224",
    (3, 4, 6, 3): "vit_large_r50_s32_224",
}


def _one_architecture(model):
    spec = model.spec
    special = {
        f"stem={spec.stem}": spec.stem is not None,
        "distillation_token=True": spec.distillation_token,
        'mlp_form="swiglu"': spec.mlp_form == "swiglu",
    }
    present = [text for text, is_present in special.items() if is_present]
    return None if len(present) < 2 else f"{' with '.join(present)} (timm has a separate architecture for each)"


def _patch_size_of_hybrids(model):
    spec = model.spec
    expected = 1 if spec.stem else 8
    if spec.stem is not None and spec.patch_size != (expected, expected):
        return f"patch_size={spec.patch_size} with stem={spec.stem} (timm's has {expected})"
    return None


def _no_registers_with_distillation(model):
    if model.spec.distillation_token and model.spec.registers:
        return (
            f"registers={model.spec.registers} with distillation_token=True (timm's distilled models ignore registers)"
        )
    return None


CAPABILITIES = Capabilities(
    "timm",
    {
        "patch_size": ANY,
        "depth": ANY,
        "width": ANY,
        "mlp_dim": ANY,
        "heads": ANY,
        "class_token": (True, False),
        "distillation_token": (True, False),
        "registers": ANY,
        "positions": ("learned",),
        "pool": ("token", "gap", "map"),
        "fc_norm": (True, False),
        "qkv_bias": (True, False),
        "qk_norm": (True, False),
        "layer_scale": ANY,
        "mlp_form": ("plain", "swiglu"),
        "stem": (None, *HYBRIDS),
        "stem_width": (64,),
        # In config.json:
        "mlp_activation": tuple(dict.fromkeys(ACTIVATIONS.values())),
        "mean": ANY,
        "std": ANY,
        # Convention, not in the files; this package's metadata override it.
        "epsilon": ANY,
    },
    rules=(_one_architecture, _patch_size_of_hybrids, _no_registers_with_distillation),
    conventions=CONVENTIONS,
)


def _normalise(arrays):
    """(the arrays in timm's names without a prefix, the names left out)."""
    proj = min((name for name in arrays if name.endswith("patch_embed.proj.weight")), key=len, default=None)
    if proj is None:
        raise ValueError('The array "patch_embed.proj.weight" is missing.')
    prefix = proj.removesuffix("patch_embed.proj.weight")

    def new_name(name):
        name = name.removeprefix(prefix)
        for pattern, new in _ALIASES:
            name = re.sub(pattern, new, name)
        return name

    kept = {n: a for n, a in arrays.items() if n.startswith(prefix) and not _DROPPED.match(n.removeprefix(prefix))}
    return renamed(kept, new_name), [name for name in arrays if name not in kept]


def _fold_registers(arrays, fields, hint):
    """Adds the registers' position rows, which only some timm models have, to the registers."""
    extra = fields["registers"]
    rows = need(arrays, "pos_embed", 3).shape[1]
    token = int(fields["class_token"]) + int(fields["distillation_token"])
    if extra and not is_grid(rows, hint) and is_grid(rows - token - extra, hint):
        table = arrays["pos_embed"]
        arrays["reg_token"] = need(arrays, "reg_token", 3) + table[:, token : token + extra]
        arrays["pos_embed"] = table[:, [*range(token), *range(token + extra, rows)]]


def _grid(arrays, fields, hint, options):
    """(patch grid, number of rows missing in the file's position table)."""
    rows = need(arrays, "pos_embed", 3).shape[1]
    token = int(fields["class_token"]) + int(fields["distillation_token"])
    patches_only = is_grid(rows, hint) and (fields["registers"] or not is_grid(rows - token, hint))
    if patches_only and token and not fields["registers"] and hint is None:
        options.value("image_size", None)  # 25 rows are 5x5 patches, or the token and 4x6
    return (grid(rows, hint, options), token) if patches_only else (grid(rows - token, hint, options), 0)


def _stem(arrays):
    """The spec's fields for a hybrid's stem; {} without one."""
    if "patch_embed.backbone.conv.weight" in arrays:
        return {"stem": (), "stem_width": need(arrays, "patch_embed.backbone.conv.weight", 4).shape[0]}
    if "patch_embed.backbone.stem.conv.weight" not in arrays:
        return {}
    pairs = {
        tuple(map(int, m.groups()))
        for m in map(re.compile(r"patch_embed\.backbone\.stages\.(\d+)\.blocks\.(\d+)\.").match, arrays)
        if m
    }
    stages = tuple(sum(stage == s for s, _ in pairs) for stage in sorted({stage for stage, _ in pairs}))
    return {"stem": stages, "stem_width": need(arrays, "patch_embed.backbone.stem.conv.weight", 4).shape[0]}


def _heads(arrays, config, inner):
    """The number of heads that config.json states, its architecture, or the normalisation of one head's queries."""
    stated = setting(section(config, "model_args"), "num_heads", int)
    architecture = str(config.get("architecture"))
    if stated is None and architecture.startswith("test_vit"):
        return inner // TEST_HEAD_WIDTH
    unusual = next((k for pattern, k in _UNUSUAL_HEADS.items() if re.search(pattern, architecture)), None)
    if stated is None and unusual:
        return unusual
    norm = arrays.get("blocks.0.attn.q_norm.weight")
    shown = stated is None and norm is not None and norm.size and inner % norm.size == 0
    return inner // norm.size if shown else stated


def _fields(arrays, config, options):
    """The fields of the spec, without normalisation and positions."""
    w = need(arrays, "patch_embed.proj.weight", 4)
    width = w.shape[0]
    hidden, out = need(arrays, "blocks.0.mlp.fc1.weight", 2), need(arrays, "blocks.0.mlp.fc2.weight", 2)
    inner = need(arrays, "blocks.0.attn.qkv.weight", 2).shape[0] // 3
    certain = is_named(config)
    k, head_dim = heads(width, options, _heads(arrays, config, inner), inner, certain)
    swiglu = hidden.shape[0] == 2 * out.shape[1]
    fields = {
        "patch_size": w.shape[2:],
        "depth": depth(arrays, r"blocks\.(\d+)\."),
        "width": width,
        "heads": k,
        "head_dim": head_dim,
        "mlp_dim": out.shape[1],
        "mlp_form": "swiglu" if swiglu else "plain",
        "class_token": "cls_token" in arrays,
        "distillation_token": "dist_token" in arrays,
        "registers": need(arrays, "reg_token", 3).shape[1] if "reg_token" in arrays else 0,
        "qkv_bias": "blocks.0.attn.qkv.bias" in arrays,
        "qk_norm": "blocks.0.attn.q_norm.weight" in arrays,
        "layer_scale": 1e-5 if "blocks.0.ls1.gamma" in arrays else None,
        "patch_norm": "patch_embed.pixel_norm.weight" in arrays,
        "fc_norm": "fc_norm.weight" in arrays,
        "final_norm": not {"norm.weight", "fc_norm.weight"}.isdisjoint(arrays),
        "pre_logits": need(arrays, "pre_logits.weight", 2).shape[0] if "pre_logits.weight" in arrays else None,
        "mlp_activation": "gelu" if swiglu else activation(config, options),
        "norm_first": options.value("norm_first", True, certain=certain),
        "epsilon": options.value("epsilon", CONVENTIONS["epsilon"], certain=certain),
        **_stem(arrays),
    }
    return {**fields, "pool": pool(arrays, fields, config, options)}


def parse(contents, options: dict) -> ParsedCheckpoint:
    """Parses a state dict with names that `matches` accepts.

    Args:
        contents: from files.read, with timm's config.json if there is one.
        options: an Options of arguments of `load`, for values that the file does not state.

    Raises:
        ValueError: if the file is not in this format after all.
    """
    config = contents.config
    check_architecture(config)
    assumptions = list(look_alikes(contents.arrays, config))
    arrays, dropped = _normalise(dict(contents.arrays))
    fields = _fields(arrays, config, options)
    root = need(arrays, next(name for name in TIMM_ROOTS[::-1] if name in arrays), 4)
    channels = root.shape[1]
    fields.update(normalisation(config, channels, options))
    stride = token_stride(fields["patch_size"], fields.get("stem"))
    stated = input_size(config)
    hint = hint_grid(options, stride, None if stated is None else list(stated))
    _fold_registers(arrays, fields, hint)
    shape, missing_rows = _grid(arrays, fields, hint, options)
    classes = need(arrays, "head.weight", 2).shape[0] if "head.weight" in arrays else None
    fits = stated is not None and tuple(s // t for s, t in zip(stated, stride)) == shape
    arguments = section(config, "model_args")
    check_agreement(
        [
            *stated_rows(config, fields, stated if fits else pixels(shape, stride), classes, channels),
            ("reg_tokens", setting(arguments, "reg_tokens", int), fields["registers"]),
            ("qkv_bias", setting(arguments, "qkv_bias", bool), fields["qkv_bias"]),
        ]
    )
    return ParsedCheckpoint(
        "ViT",
        fields,
        pixels(shape, stride),
        name_map(fields, classes, missing_rows),
        arrays,
        classes,
        channels,
        label_names(config, classes),
        dropped,
        assumptions,
        "timm",
        preprocessing(config),
    )
