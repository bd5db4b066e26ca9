"""Hugging Face's LW-DETR and RF-DETR: a ViT with windows, a projector and a deformable decoder.

Blocks after the last one that the projector reads compute nothing, and are left out.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_vit.checkpoints.formats import config_json, huggingface, huggingface_names
from keras_vit.checkpoints.formats.capabilities import ANY, Capabilities, refuse
from keras_vit.checkpoints.formats.huggingface_config import (
    dinov2_mlp_ratio,
    epsilon,
    labels,
    mlp_activation,
    normalisation,
    preprocessing,
)
from keras_vit.checkpoints.formats.lw_detr_names import (
    ROBOFLOW,
    TRANSFORMERS,
    decoder_map,
    projector_map,
    stack_groups,
    unstack_groups,
)
from keras_vit.checkpoints.formats.name_map import (
    Entry,
    NameMap,
    batch_norm_counters,
    biases_without_key,
    conv,
    pack,
    positions,
    same,
)
from keras_vit.checkpoints.formats.parsed import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Dense,
    ParsedCheckpoint,
    check_agreement,
    grid,
    need,
    pixels,
    setting,
    stated_pair,
)
from keras_vit.checkpoints.resample import resample_positions
from keras_vit.layers.embedding.patches import grid_size, pair

LW, RF = "lw_detr", "rf_detr"  # model_type, and our heads
_SPELLINGS = {LW: TRANSFORMERS, RF: ROBOFLOW}
_CLASSES = {LW: "LwDetrForObjectDetection", RF: "RfDetrForObjectDetection"}
_NAMES = {
    LW: huggingface_names.Names(
        "model.backbone.backbone.",
        norms=("layernorm_before", "layernorm_after"),
        mlp=("intermediate.fc1", "intermediate.fc2"),
        attention={**huggingface_names.IN_FILES["dinov2"].attention, "out": "attention.output"},
        patch="embeddings.projection",
    ),
    RF: huggingface_names.Names("backbone.0.encoder.encoder."),
}
_RESAMPLE = {LW: "bicubic", RF: "timm"}
# Settings with other values that the models here do not support.
_FIXED = {
    "activation_function": "silu",
    "decoder_activation_function": "relu",
    "hidden_expansion": 0.5,
    "attention_bias": True,
    "batch_norm_eps": 1e-5,
}
_FIXED_BACKBONE = {"apply_layernorm": True, "use_swiglu_ffn": False, "use_absolute_position_embeddings": True}


def _table(kind):
    return f"{_NAMES[kind].prefix}embeddings.position_embeddings"


def _without_row(ours: str) -> Entry:
    """A position table, in the file with a first row for a class token that the model does not have."""

    def packed(a):
        return np.concatenate([np.zeros_like(a[:, :1]), a], axis=1)

    return Entry((ours,), packed, lambda a, shapes: [a[:, 1:]])


def _lw_encoder(spec: Mapping) -> NameMap:
    names = _NAMES[LW]
    patch = f"{names.prefix}{names.patch}"
    entries = {f"{patch}.weight": conv("patch_encoder/kernel"), f"{patch}.bias": same("patch_encoder/bias")}
    entries[_table(LW)] = _without_row("position_embedding/embedding")
    for i in range(spec["depth"]):
        theirs, ours = f"{names.prefix}{names.block}.{i}.", f"block_{i:02d}"
        entries |= huggingface_names.block_map(theirs, ours, names, {**spec, "layer_scale": None})
        attention = f"{theirs}{names.attention['key']}"
        del entries[f"{attention}.bias"]
        entries[f"{theirs}{names.attention['value']}.bias"] = biases_without_key(f"{ours}/attention")
        entries[f"{theirs}gamma_1"] = same(f"{ours}/attention_scale/gamma")
        entries[f"{theirs}gamma_2"] = same(f"{ours}/mlp_scale/gamma")
    return entries


def _encoder_map(kind: str, spec: Mapping) -> NameMap:
    """{name: Entry} of the encoder; `spec` has ViTSpec's fields."""
    if kind == LW:
        return _lw_encoder(spec)
    entries = huggingface_names.name_map(spec, None, RF, _NAMES)
    return {**entries, _table(RF): positions("position_embedding/embedding", 0)}


def _head_map(kind: str, width: int, taps: int, options: Mapping) -> NameMap:
    """{name as `stack_groups` makes it: Entry} of neck and head."""
    projector = (options["scales"], taps, options["blocks"], options["norm"] == "batch", width > 512)
    return projector_map(_SPELLINGS[kind], *projector) | decoder_map(_SPELLINGS[kind], options["layers"])


def _numbers(config, name):
    """A list of numbers of blocks in config.json; ValueError if it is missing."""
    values = setting(config, name, list)
    if values is None or not all(type(i) is int and i >= 0 for i in values):
        raise ValueError(f"config.json should have {name}, a list of numbers of blocks, in backbone_config.")
    return values


def _outside(kind, backbone):
    """(taps, windows per side, which of the blocks up to the last tap attend to all)."""
    stages = _numbers(backbone, "out_indices")  # 0 is what enters the first block
    if not stages or stages != sorted(set(stages)) or not stages[0]:
        raise ValueError(
            f"out_indices in config.json should name outputs of blocks, from 1 up, in order, got {stages}."
        )
    side = count = setting(backbone, "num_windows", int) or 1
    if kind == LW:
        side = math.isqrt(count)
        check_agreement([("num_windows", count, side**2)])
        local = set(_numbers(backbone, "window_block_indices"))
    else:  # transformers derives it in the same way
        local = set(range(stages[-1] + 1)) - set(stages)
    everywhere = [i for i in range(stages[-1]) if i not in local] if side > 1 else []
    return tuple(i - 1 for i in stages), side, tuple(everywhere)


def _check_settings(kind, config, backbone):
    """Refuses settings of other models than are implemented: ValueError with each."""
    rows = [("model_type", setting(config, "model_type", str), kind)]
    rows += [(name, config.get(name), value) for name, value in _FIXED.items()]
    rows += [(name, backbone.get(name), value) for name, value in _FIXED_BACKBONE.items()]
    wrong = [f"{name}={stated!r} ({value!r})" for name, stated, value in rows if stated not in (None, value)]
    if wrong:
        raise ValueError(f"config.json has settings that are not implemented: {', '.join(wrong)}.")


def _option(config, name, array):
    """An integer of config.json, which `array` must agree with unless it is None."""
    stated = setting(config, name, int)
    check_agreement([(name, stated, array if array is not None else stated)])
    if stated is None and array is None:
        raise ValueError(f"config.json should have {name}, an integer.")
    return stated if array is None else array


def _head_options(kind, config, arrays, taps):
    """The options of the head, by config.json and the stacked arrays."""
    spelling = _SPELLINGS[kind]
    features = need(arrays, f"{spelling.queries[0]}.weight", 2)
    groups = len(need(arrays, f"{spelling.root}enc_output.weight", 3))
    steps = re.compile(re.escape(spelling.projector.format(0) + spelling.mixer) + r"(?:m|bottlenecks)\.(\d+)\.")
    scales = setting(config, "projector_scale_factors", list) if kind == LW else [1.0]
    layer = f"{spelling.root}decoder.layers.0."
    return {
        "taps": taps,
        "scales": tuple(map(float, scales or ())),
        "width": features.shape[1],
        "blocks": len({match[1] for match in map(steps.match, arrays) if match}),
        "queries": _option(config, "num_queries", len(features) // groups),
        "groups": _option(config, "group_detr", groups),
        "layers": _option(config, "decoder_layers", None),
        "heads": _option(config, "decoder_self_attention_heads", None),
        "map_heads": _option(config, "decoder_cross_attention_heads", None),
        "points": _option(config, "decoder_n_points", None),
        "mlp_dim": _option(config, "decoder_ffn_dim", len(need(arrays, f"{layer}{spelling.mlp[0]}.weight", 2))),
        "dropout": float(setting(config, "dropout", float, int) or 0.0),
        "norm": "batch" if kind == LW else "layer",
        "normalised": kind == RF,
    }


def _fields(kind, arrays, backbone, options, depth, windows, everywhere):
    """The fields of the spec, without the normalisation of images."""
    fields = huggingface.read_fields(arrays, _NAMES[kind], RF, backbone, options)
    fields |= {"layer_scale": 1.0, "windows": windows, "global_blocks": everywhere}
    fields["mlp_activation"] = mlp_activation(backbone, kind)
    name = "layerscale_value" if kind == RF else "cae_init_values"
    if stated := setting(backbone, name, float, int):
        fields["layer_scale"] = float(stated)
    if kind == LW:
        fields |= {"qkv_bias": True, "final_norm": False}
    rows = [
        ("hidden_size", setting(backbone, "hidden_size", int), fields["width"]),
        ("patch_size", stated_pair(backbone, "patch_size"), tuple(fields["patch_size"])),
        ("the number of blocks", depth, fields["depth"]),
    ]
    check_agreement(rows)
    return {**fields, "epsilon": epsilon(backbone, 1e-6)}


def _image_size(kind, contents, backbone, options, patch, table_grid):
    """Pixels (height, width) of the model: recorded, asked for, of the image processor, else of config or table."""
    if options.get("recorded_size") is not None:
        return pair(options["recorded_size"], "image_size")
    if options.get("image_size") is not None:
        return pair(options["image_size"], "image_size")
    size = setting(contents.preprocessor, "size", dict) or {}
    sides = tuple(setting(size, name, int) for name in ("height", "width"))
    if all(sides):
        return sides
    stated = stated_pair(backbone, "image_size") if kind == LW else None
    return stated or pixels(table_grid, patch)


def _with_table(kind, arrays, size, patch, old):
    """The arrays with the position table of an image size."""
    table, new = arrays[_table(kind)], grid_size(size, patch)
    return {**arrays, _table(kind): resample_positions(table, old, new, 1, _RESAMPLE[kind])}


def parse(contents, options: dict) -> ParsedCheckpoint:
    """Parses a folder or file with names that `matches` accepts; arguments and errors as in timm.parse."""
    config = contents.config
    backbone = setting(config, "backbone_config", dict)
    if not backbone:
        raise ValueError("LW-DETR and RF-DETR need their config.json, with a backbone_config, beside the weights.")
    kind = RF if any(name.startswith(_NAMES[RF].prefix) for name in contents.arrays) else LW
    _check_settings(kind, config, backbone)
    taps, windows, everywhere = _outside(kind, backbone)
    names, depth = _NAMES[kind], taps[-1] + 1
    block = re.compile(re.escape(f"{names.prefix}{names.block}.") + r"(\d+)\.")
    idle = [name for name in contents.arrays if (match := block.match(name)) and int(match[1]) >= depth]
    dropped = [*idle, *(name for name in contents.arrays if name.endswith("embeddings.mask_token"))]
    arrays = {name: a for name, a in contents.arrays.items() if name not in dropped}
    inside = {name: a for name, a in arrays.items() if name.startswith(names.prefix)}
    others = stack_groups({name: a for name, a in arrays.items() if name not in inside})
    fields = _fields(kind, inside, backbone, options, depth, windows, everywhere)
    channels = need(inside, f"{names.prefix}{names.patch}.weight", 4).shape[1]
    fields |= normalisation(contents.preprocessor, (IMAGENET_MEAN, IMAGENET_STD), channels, options)
    old = grid(need(inside, _table(kind), 3).shape[1] - 1)
    size = _image_size(kind, contents, backbone, options, fields["patch_size"], old)
    head = _head_options(kind, config, others, taps)
    classes = need(others, "class_embed.weight", 2).shape[0]
    entries = _head_map(kind, fields["width"], len(taps), head)
    return ParsedCheckpoint(
        "ViT",
        fields,
        size,
        _encoder_map(kind, fields),
        _with_table(kind, inside, size, fields["patch_size"], old),
        None,
        channels,
        dropped=dropped,
        resample=_RESAMPLE[kind],
        preprocessing=preprocessing(contents.preprocessor),
        dense=Dense(head, classes, labels(config, classes), None, 0.0, entries, others, head=kind),
    )


_SHARED = {
    **dict.fromkeys(("patch_size", "depth", "width", "mlp_dim", "heads", "windows", "global_blocks"), ANY),
    **dict.fromkeys(("layer_scale", "epsilon", "mean", "std"), ANY),
}
CAPABILITIES = {
    LW: Capabilities(
        "huggingface", {**_SHARED, "class_token": (False,), "final_norm": (False,), "pool": ("gap", "map")}
    ),
    RF: Capabilities("huggingface", {**_SHARED, "class_token": (True,), "pool": ("token", "gap", "token_gap", "mean")}),
}


def check(model: Any) -> None:
    """ValueError, with each reason, for a model that neither of transformers' classes expresses."""
    kind, spec, decoder = model.head_name, model.spec, model.decoder
    CAPABILITIES[kind].check(model.get_encoder())
    taps, neck = decoder.taps, decoder.neck
    everywhere = {i + 1 for i in taps} & set(range(spec.depth))
    problems = [
        (model.image_size[0] != model.image_size[1], f"image_size={model.image_size}, which transformers misreads"),
        (spec.patch_size[0] != spec.patch_size[1], f"patch_size={spec.patch_size}"),
        (spec.layer_scale is None, "a model without layer_scale"),
        (dinov2_mlp_ratio(spec) != spec.mlp_dim // spec.width, f"mlp_dim={spec.mlp_dim} (a multiple of width)"),
        (list(taps) != sorted(set(taps)) or taps[-1] != spec.depth - 1, f"taps={taps} (rising, the last block last)"),
        (neck.norm != ("batch" if kind == LW else "layer"), f'norm="{neck.norm}"'),
        (bool(decoder.normalised) != (kind == RF), f"normalised={bool(decoder.normalised)}"),
        (kind == RF and neck.scales != (1.0,), f"scales={neck.scales} (1,)"),
        (
            kind == RF and spec.windows > 1 and set(spec.global_blocks) != everywhere,
            f"global_blocks={spec.global_blocks} ({tuple(sorted(everywhere))}, those after each tap)",
        ),
    ]
    refuse("huggingface", kind, problems)


def to_arrays(model: Any, weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays of the file, of a model that `check` accepts; `weights` are those of encoder, neck and head."""
    kind, neck = model.head_name, model.decoder.neck
    options = {"scales": neck.scales, "blocks": neck.blocks, "norm": neck.norm, "layers": model.head.layers}
    spec = {name: getattr(model.spec, name) for name in model.spec.__dataclass_fields__}
    entries = _encoder_map(kind, spec) | _head_map(kind, spec["width"], len(model.decoder.taps), options)
    arrays = unstack_groups(pack(entries, weights))
    return {**arrays, **batch_norm_counters(arrays)}


def _to_backbone(model):
    """backbone_config."""
    kind, spec, stages = model.head_name, model.spec, [i + 1 for i in model.decoder.taps]
    shared = {
        "hidden_size": spec.width,
        "num_hidden_layers": spec.depth,
        "num_attention_heads": spec.heads,
        "mlp_ratio": spec.mlp_dim // spec.width,
        "hidden_act": "gelu",
        "layer_norm_eps": spec.epsilon,
        "image_size": model.image_size[0],
        "patch_size": spec.patch_size[0],
        "num_channels": model.channels,
        "qkv_bias": True,
        "out_indices": stages,
        "out_features": [f"stage{i}" for i in stages],
    }
    if kind == RF:
        own = {"num_windows": spec.windows, "layerscale_value": spec.layer_scale, "use_mask_token": False}
        return {**shared, **own, "model_type": "rf_detr_dinov2"}
    local = [i for i in range(spec.depth) if spec.windows > 1 and i not in spec.global_blocks]
    own = {"num_windows": spec.windows**2, "window_block_indices": local, "cae_init_values": spec.layer_scale}
    return {**shared, **own, "pretrain_image_size": model.image_size[0], "model_type": "lw_detr_vit"}


def to_config(model: Any) -> dict[str, Any]:
    """config.json of a model that `check` accepts."""
    kind, head, neck = model.head_name, model.head, model.decoder.neck
    return {
        "architectures": [_CLASSES[kind]],
        "model_type": kind,
        "transformers_version": "5.24.0",  # the first release with both is later than the others' names
        "backbone_config": _to_backbone(model),
        **({"projector_scale_factors": list(neck.scales)} if kind == LW else {}),
        "c2f_num_blocks": neck.blocks,
        "d_model": neck.width,
        "num_queries": head.queries,
        "group_detr": head.groups,
        "decoder_layers": head.layers,
        "decoder_self_attention_heads": head.heads,
        "decoder_cross_attention_heads": head.map_heads,
        "decoder_n_points": head.points,
        "decoder_ffn_dim": head.mlp_dim,
        "dropout": head.dropout,
        **config_json.id_labels(model),
    }


def to_preprocessor(model: Any) -> dict[str, Any]:
    """preprocessor_config.json."""
    return {**config_json.preprocessor(model), "image_processor_type": "DetrImageProcessor"}
