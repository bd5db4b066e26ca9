"""Hugging Face's LW-DETR and RF-DETR: a ViT with windows, a projector and a deformable decoder, with masks or without.

Blocks after the last one that the projector reads compute nothing, and are left out.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_vit.checkpoints.formats import huggingface, huggingface_config
from keras_vit.checkpoints.formats.capabilities import Capabilities, any_of, refuse
from keras_vit.checkpoints.formats.huggingface_config import dinov2_mlp_ratio
from keras_vit.checkpoints.formats.lw_detr_names import MASKS, WORDS, decoder_map, mask_map, projector_map
from keras_vit.checkpoints.formats.name_map import NameMap, batch_norm_counters, pack
from keras_vit.checkpoints.formats.parsed import Dense, ParsedCheckpoint, grid, pixels
from keras_vit.checkpoints.formats.settings import (
    Settings,
    check_agreement,
    check_implemented,
    model_facts,
    setting,
    stated_pair,
)
from keras_vit.checkpoints.formats.shown import Shown, depth, need
from keras_vit.checkpoints.resample import resample_positions
from keras_vit.instances.heads.query_masks import QueryMaskDecoder, RFDETRSeg
from keras_vit.layers.embedding.patches import grid_size, pair

LW, RF = "lw_detr", "rf_detr"  # model_type, and our heads
_CLASSES = {LW: "LwDetrForObjectDetection", RF: "RfDetrForObjectDetection"}
_WITH_MASKS = "RfDetrForInstanceSegmentation"
_SPELLED = {
    LW: huggingface.IN_FILES["vit"].but(
        "model.backbone.backbone.",
        ("keyless",),
        fc1="intermediate.fc1",
        fc2="intermediate.fc2",
        out="attention.output",
        scale1="gamma_1",
        scale2="gamma_2",
        patch="embeddings.projection",
    ),
    RF: huggingface.IN_FILES["dinov2"].but("backbone.0.encoder.encoder."),
}
_RESAMPLE = {LW: "bicubic", RF: "timm"}
# Settings with other values that the models here do not support.
_FIXED = {
    "activation_function": "silu",
    "decoder_activation_function": "relu",
    "segmentation_head_activation_function": "gelu",
    "hidden_expansion": 0.5,
    "attention_bias": True,
    "batch_norm_eps": 1e-5,
    "backbone_config.apply_layernorm": True,
    "backbone_config.use_swiglu_ffn": False,
    "backbone_config.use_absolute_position_embeddings": True,
}
_BACKBONE = Settings(
    """
    hidden_size          width       int
    num_hidden_layers    depth       int
    num_attention_heads  heads       int
    mlp_ratio            ratio       int
    hidden_act           act         text
    layer_norm_eps       epsilon     number
    image_size           image_size  pair
    patch_size           patch_size  pair
    num_channels         channels    int
    qkv_bias             qkv_bias    bool
    out_indices          stages      numbers
    """
)
_CONFIG = Settings(
    """
    c2f_num_blocks                 blocks     int
    d_model                        width      int
    num_queries                    queries    int
    group_detr                     groups     int
    decoder_layers                 layers     int
    decoder_self_attention_heads   heads      int
    decoder_cross_attention_heads  map_heads  int
    decoder_n_points               points     int
    decoder_ffn_dim                mlp_dim    int
    dropout                        dropout    number
    """
)


def _table(kind):
    return f"{_SPELLED[kind].root}embeddings.position_embeddings"


def _encoder_map(kind: str, spec: Mapping[str, Any]) -> NameMap:
    """{name: Entry} of the encoder; LW-DETR's table has a first row for a class token that the model does not have."""
    return _SPELLED[kind].map({**spec, "missing_rows": -1 if kind == LW else 0})


def _head_map(kind: str, width: int, taps: int, options: Mapping[str, Any]) -> NameMap:
    """{name: Entry} of neck and head."""
    projector = (options["scales"], taps, options["blocks"], options["norm"] == "batch", width > 512)
    entries = projector_map(WORDS[kind], *projector) | decoder_map(WORDS[kind], options["layers"], options["groups"])
    return entries | mask_map(options["layers"]) if "mask_stride" in options else entries


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


def _head_options(kind, config, arrays, taps):
    """The options of the head, by config.json and the arrays."""
    words = WORDS[kind]
    features, layer = need(arrays, f"{words['features']}.weight", 2), f"{words['root']}decoder.layers.0."
    groups = depth(arrays, rf"{re.escape(words['root'])}enc_output\.(\d+)\.")
    mixer = words["projector"].format(0) + words["mixer"]
    steps = re.compile(re.escape(mixer) + r"(?:m|bottlenecks)\.(\d+)\.")
    scales = setting(config, "projector_scale_factors", list) if kind == LW else [1.0]
    shown = {
        "width": features.shape[1],
        "blocks": len({match[1] for match in map(steps.match, arrays) if match}),
        "queries": len(features) // groups,
        "groups": groups,
        "mlp_dim": len(need(arrays, f"{layer}{words['fc1']}.weight", 2)),
    }
    check_agreement(_CONFIG.compared(config, {name: shown[name] for name in ("queries", "groups", "mlp_dim")}))
    stated = {fact: setting(config, key, int) for key, fact, _ in _CONFIG.rows if fact not in (*shown, "dropout")}
    if unknown := [key for key, fact, _ in _CONFIG.rows if stated.get(fact, 0) is None]:
        raise ValueError(f"config.json should have {unknown[0]}, an integer.")
    with_masks = any(name.startswith(MASKS) for name in arrays)
    return {
        **shown,
        **stated,
        **(_mask_options(config, arrays) if with_masks else {}),
        "taps": taps,
        "scales": tuple(map(float, scales or ())),
        "dropout": float(setting(config, "dropout", float, int) or 0.0),
        "norm": "batch" if kind == LW else "layer",
        "normalised": kind == RF,
    }


def _mask_options(config, arrays):
    """The options of the mask branch."""
    hidden, width = need(arrays, f"{MASKS}query_features_block.layers.0.weight", 2).shape
    check_implemented({"intermediate_size": hidden}, {"intermediate_size": 4 * width})
    return {"mask_stride": setting(config, "mask_downsample_ratio", int) or 4}


def _fields(kind, shown, backbone, options, blocks, windows, everywhere):
    """The fields of the spec, without the normalisation of images."""
    fields = huggingface.read_fields(shown, RF, backbone, options)
    name = "layerscale_value" if kind == RF else "cae_init_values"
    fields |= {
        "layer_scale": float(setting(backbone, name, float, int) or 1.0),
        "windows": windows,
        "global_blocks": everywhere,
        "mlp_activation": huggingface_config.mlp_activation(backbone, kind),
        "epsilon": huggingface_config.epsilon(backbone, 1e-6),
        "qkv_bias": kind == LW or fields["qkv_bias"],
        "key_bias": kind == LW or fields["key_bias"],
        "final_norm": kind == RF,
    }
    facts = {name: fields[name] for name in ("width", "patch_size")}
    rows = [*_BACKBONE.compared(backbone, facts), ("the number of blocks", blocks, fields["depth"])]
    check_agreement(rows)
    return fields


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
    kind = RF if any(name.startswith(_SPELLED[RF].root) for name in contents.arrays) else LW
    check_implemented(config, {"model_type": kind, **_FIXED})
    taps, windows, everywhere = _outside(kind, backbone)
    spelled, blocks = _SPELLED[kind], taps[-1] + 1
    block = re.compile(re.escape(f"{spelled.root}{spelled.words['block']}.") + r"(\d+)\.")
    idle = [name for name in contents.arrays if (match := block.match(name)) and int(match[1]) >= blocks]
    dropped = [*idle, *(name for name in contents.arrays if name.endswith("embeddings.mask_token"))]
    arrays = {name: a for name, a in contents.arrays.items() if name not in dropped}
    inside = {name: a for name, a in arrays.items() if name.startswith(spelled.root)}
    others = {name: a for name, a in arrays.items() if name not in inside}
    shown = Shown(spelled.names, inside)
    fields, channels = _fields(kind, shown, backbone, options, blocks, windows, everywhere), shown.channels
    fields |= huggingface_config.normalisation(contents.preprocessor, channels, options)
    old = grid(need(inside, _table(kind), 3).shape[1] - 1)
    size = _image_size(kind, contents, backbone, options, fields["patch_size"], old)
    head = _head_options(kind, config, others, taps)
    classes = need(others, "class_embed.weight", 2).shape[0]
    names, entries = huggingface_config.labels(config, classes), _head_map(kind, fields["width"], len(taps), head)
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
        preprocessing=huggingface_config.preprocessing(contents.preprocessor),
        dense=Dense(head, classes, names, None, 0.0, entries, others, head=kind, instances="mask_stride" in head),
    )


_SHARED = any_of("patch_size depth width mlp_dim heads windows global_blocks layer_scale epsilon mean std")
_OWN = {
    LW: {"class_token": (False,), "final_norm": (False,), "pool": ("gap", "map")},
    RF: {"class_token": (True,), "pool": ("token", "gap", "token_gap", "mean")},
}
CAPABILITIES = {kind: Capabilities("huggingface", {**_SHARED, **own}) for kind, own in _OWN.items()}


def _has_masks(model):
    return isinstance(model.head, QueryMaskDecoder)


def _mask_stride(model):
    return RFDETRSeg(**model.head_options).mask_stride


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


def write(model: Any, weights: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """(arrays, {config file: content}) of a model; ValueError for one that the format cannot express."""
    check(model)
    kind, neck = model.head_name, model.decoder.neck
    options = {"scales": neck.scales, "blocks": neck.blocks, "norm": neck.norm, "layers": model.head.layers}
    options |= {"groups": model.head.groups, **({"mask_stride": _mask_stride(model)} if _has_masks(model) else {})}
    spec, taps = vars(model.spec), model.decoder.taps
    entries = _encoder_map(kind, spec) | _head_map(kind, spec["width"], len(taps), options)
    files = huggingface_config.files(model, to_config(model), "DetrImageProcessor")
    return batch_norm_counters(pack(entries, weights)), files


def _to_backbone(model):
    """backbone_config."""
    kind, spec, stages = model.head_name, model.spec, [i + 1 for i in model.decoder.taps]
    facts = model_facts(model, ratio=spec.mlp_dim // spec.width, act="gelu", stages=stages)
    shared = {**_BACKBONE.written(facts), "out_features": [f"stage{i}" for i in stages]}
    if kind == RF:
        own = {"num_windows": spec.windows, "layerscale_value": spec.layer_scale, "use_mask_token": False}
        return {**shared, **own, "model_type": "rf_detr_dinov2"}
    local = [i for i in range(spec.depth) if spec.windows > 1 and i not in spec.global_blocks]
    own = {"num_windows": spec.windows**2, "window_block_indices": local, "cae_init_values": spec.layer_scale}
    return {**shared, **own, "pretrain_image_size": model.image_size[0], "model_type": "lw_detr_vit"}


def to_config(model: Any) -> dict[str, Any]:
    """config.json of a model that `check` accepts."""
    kind, head, neck = model.head_name, model.head, model.decoder.neck
    facts = {fact: getattr(head, fact) for _, fact, _ in _CONFIG.rows if fact not in ("blocks", "width")}
    return {
        "architectures": [_WITH_MASKS if _has_masks(model) else _CLASSES[kind]],
        "model_type": kind,
        "transformers_version": "5.24.0",  # the first release with both is later than the others' names
        "backbone_config": _to_backbone(model),
        **({"projector_scale_factors": list(neck.scales)} if kind == LW else {}),
        **_CONFIG.written({**facts, "blocks": neck.blocks, "width": neck.width}),
        **(_masks_to_config(model) if _has_masks(model) else {}),
        **huggingface_config.to_labels(model),
    }


def _masks_to_config(model):
    return {"mask_downsample_ratio": _mask_stride(model), "intermediate_size": 4 * model.decoder.neck.width}
