"""Hugging Face's DPT, for classes and for depth, and Depth Anything: a ViT or DINOv2, and the layers after its blocks.

One table, `head_map`, serves reading and writing; the encoder's names are those of formats/huggingface.py behind
another prefix.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_vit.checkpoints.formats import config_json, huggingface, huggingface_names
from keras_vit.checkpoints.formats.capabilities import refuse
from keras_vit.checkpoints.formats.huggingface_config import check_whole, labels
from keras_vit.checkpoints.formats.name_map import (
    NameMap,
    batch_norm_counters,
    pack,
    torch_batch_norm,
    torch_conv,
    torch_dense,
    torch_enlargement,
    torch_pointwise,
)
from keras_vit.checkpoints.formats.parsed import Dense, ParsedCheckpoint, check_agreement, colors_in, need, setting
from keras_vit.depth.depth_model import DepthHead
from keras_vit.models.headed import HeadedModel
from keras_vit.segmentation.heads.dpt import DPTHead

DPT, DEPTH_ANYTHING = "dpt", "depth_anything"  # model_type of config.json
_PREFIXES = {"dpt.": "vit", "backbone.": "dinov2"}  # {prefix of the encoder: its type in formats/huggingface.py}
_FACTORS = [4, 2, 1, 0.5]
_TAPS = (2, 5, 8, 11)  # of DPTConfig
_FUSION = "neck.fusion_stage.layers."
_IDLE = f"{_FUSION}0.residual_layer1."  # in every file, and read by no code: the deepest map has no deeper one
_COLORS = "id2color"  # in config.json, which other readers ignore


def _residual(theirs: str, ours: str, options: Mapping[str, Any]) -> NameMap:
    entries: NameMap = {}
    for i in range(2):
        entries |= torch_conv(f"{theirs}convolution{i + 1}", f"{ours}/conv_{i}", options["residual_bias"])
        if options["residual_norm"]:
            entries |= torch_batch_norm(f"{theirs}batch_norm{i + 1}", f"{ours}/norm_{i}")
    return entries


def _neck_map(options: Mapping[str, Any]) -> NameMap:
    stage = "neck.reassemble_stage"
    entries: NameMap = {}
    for i in range(4):
        if options["readout"] == "project":
            entries |= torch_dense(f"{stage}.readout_projects.{i}.0", f"neck/readout_{i}")
        entries |= torch_conv(f"{stage}.layers.{i}.projection", f"neck/projection_{i}")
        entries |= torch_conv(f"neck.convs.{i}", f"neck/conv_{i}", bias=False)
        fusion, ours = f"{_FUSION}{i}.", f"neck/fusion_{i}"
        entries |= torch_conv(f"{fusion}projection", f"{ours}/projection")
        for unit in (2,) if i == 0 else (1, 2):
            entries |= _residual(f"{fusion}residual_layer{unit}.", f"{ours}/residual_{unit}", options)
    for i in (0, 1):
        entries |= torch_enlargement(f"{stage}.layers.{i}.resize", f"neck/resize_{i}")
    return entries | torch_conv(f"{stage}.layers.3.resize", "neck/resize_3")


def _class_head_map(theirs: str, block: str, classifier: str) -> NameMap:
    return {
        **torch_conv(f"{theirs}.0", f"{block}/conv", bias=False),
        **torch_batch_norm(f"{theirs}.1", f"{block}/norm"),
        **torch_pointwise(f"{theirs}.4", f"{classifier}/linear"),
    }


def head_map(options: Mapping[str, Any], auxiliary: bool) -> NameMap:
    """{name: Entry} of neck, head and auxiliary head; `options` are those of the head "dpt"."""
    entries = _neck_map(options)
    if not options.get("depth"):
        entries |= _class_head_map("head.head", "head/conv", "head/classifier")
        if auxiliary:
            entries |= _class_head_map("auxiliary_head.head", "auxiliary_0/conv_0", "auxiliary_0/classifier")
        return entries
    names = (
        ("head.conv1", "head.conv2", "head.conv3") if options["exact_sizes"] else [f"head.head.{i}" for i in (0, 2, 4)]
    )
    if options["depth_projection"]:
        entries |= torch_conv("head.projection", "head/projection")
    for i in (0, 1):
        entries |= torch_conv(names[i], f"head/conv_{i}")
    return entries | torch_pointwise(names[2], "head/linear")


def _encoder_map(name_map: NameMap, prefix: str) -> NameMap:
    """An encoder's entries behind the prefix that it has in a dense model."""
    theirs = huggingface_names.IN_FILES[_PREFIXES[prefix]].prefix
    return {prefix + name.removeprefix(theirs): entry for name, entry in name_map.items()}


def _check_supported(config: Mapping[str, Any], kind: str) -> None:
    """ValueError for a model that is not one of these, or a setting that is not implemented, by name."""
    stated = setting(config, "model_type", str)
    if stated not in (None, DPT, DEPTH_ANYTHING):
        raise ValueError(
            f"config.json has model_type={stated!r}, which is not implemented for dense predictions. Implemented:"
            f" {DPT}, {DEPTH_ANYTHING}."
        )
    check_agreement([("model_type", stated, kind)])
    fixed = {"is_hybrid": (False,), "head_in_index": (-1, 3), "reassemble_factors": (_FACTORS,)}
    for name, valid in fixed.items():
        value = config.get(name)
        if value is not None and value not in valid:
            raise ValueError(f"config.json has {name}={value!r}, which is not implemented. Implemented: {valid[0]!r}.")


def _taps(config: Mapping[str, Any], depth: int) -> tuple[int, ...] | None:
    """The four blocks that are read, from 0; None where nothing says so. ValueError for others than four blocks."""
    if not config:
        return None
    backbone = setting(config, "backbone_config", dict)
    if backbone is None:
        numbers = setting(config, "backbone_out_indices", list)
        numbers = _TAPS if numbers is None else numbers
    else:  # stage 0 is what enters the first block
        stages = setting(backbone, "out_indices", list)
        if stages is None:
            named = setting(backbone, "out_features", list) or []
            stages = [
                int(match[1]) for match in (re.fullmatch(r"stage(\d{1,6})", str(name)) for name in named) if match
            ]
        numbers = [i - 1 if type(i) is int else i for i in stages]
    if not all(type(i) is int and 0 <= i < depth for i in numbers) or len({*numbers}) != 4 or len(numbers) != 4:
        raise ValueError(
            f"The config should name four of the {depth} blocks, in backbone_out_indices, from 0, or in the backbone's"
            f" out_indices, from 1; it names, from 0, {list(numbers)[:50]}."
        )
    return tuple(sorted(numbers))


def _number(config, name, default):
    value = setting(config, name, int, float)
    return default if value is None else value


def _depth_options(config, arrays, kind):
    exact = kind == DEPTH_ANYTHING
    second = need(arrays, "head.conv2.weight" if exact else "head.head.2.weight", 4)
    stated = setting(config, "depth_estimation_type", str) if exact else None
    return {
        "depth": stated or "relative",
        "max_depth": float(_number(config, "max_depth", 1) or 1) if exact else 1.0,
        "depth_width": second.shape[0],
        "depth_projection": "head.projection.weight" in arrays,
    }


def _options(config, arrays, kind, depth, is_backbone):
    """The options of the head "dpt": shapes and parts by the arrays, the rest by config.json."""
    stage, unit = "neck.reassemble_stage", f"{_FUSION}0.residual_layer2."
    projected = f"{stage}.readout_projects.0.0.weight" in arrays
    stated = (setting(config, "readout_type", str) or "project") if kind == DPT and config else None
    readout = "project" if projected else "ignore" if stated in (None, "project") else stated
    check_agreement([("readout_type", stated, readout)])
    backbone = setting(config, "backbone_config", dict) or {}
    normed = setting(backbone, "apply_layernorm", bool)
    options = {
        "widths": tuple(need(arrays, f"{stage}.layers.{i}.projection.weight", 4).shape[0] for i in range(4)),
        "width": need(arrays, "neck.convs.0.weight", 4).shape[0],
        "readout": readout,
        "residual_norm": "batch" if f"{unit}batch_norm1.weight" in arrays else None,
        "residual_bias": f"{unit}convolution1.bias" in arrays,
        "exact_sizes": kind == DEPTH_ANYTHING,
        "normalised": is_backbone and normed is not False,
    }
    taps = _taps(config, depth)
    options |= {} if taps is None else {"taps": taps}
    if "head.head.1.running_mean" in arrays:
        return {**options, "dropout": float(_number(config, "semantic_classifier_dropout", 0.1))}
    return {**options, **_depth_options(config, arrays, kind)}


def _colors(config, classes):
    """The colours of the classes that `to_config` wrote, or None."""
    stated = setting(config, _COLORS, dict) or {}
    return colors_in([stated.get(str(i)) for i in range(classes)], classes)


def _dense(config, arrays, kind, depth, is_backbone):
    options = _options(config, arrays, kind, depth, is_backbone)
    is_depth = "depth" in options
    classes = 1 if is_depth else need(arrays, "head.head.4.weight", 4).shape[0]
    has_auxiliary = "auxiliary_head.head.0.weight" in arrays
    auxiliary = float(_number(config, "auxiliary_loss_weight", 0.4)) if has_auxiliary else 0.0
    kept = {name: a for name, a in arrays.items() if not name.startswith(_IDLE)}
    if not auxiliary:
        kept = {name: a for name, a in kept.items() if not name.startswith("auxiliary_head.")}
    names = None if is_depth else labels(config, classes)
    stated = None if is_depth else setting(config, "id2label", dict)
    check_agreement([("the number of labels in id2label", None if stated is None else len(stated), classes)])
    colors = None if is_depth else _colors(config, classes)
    return Dense(options, classes, names, colors, auxiliary, head_map(options, auxiliary > 0), kept)


def parse(contents, options: dict) -> ParsedCheckpoint:
    """Parses a folder or file with names that `matches` accepts; arguments and errors as in timm.parse."""
    outer, arrays = contents.config, contents.arrays
    kind = DEPTH_ANYTHING if "head.conv1.weight" in arrays else DPT
    check_whole(outer, "the blocks that its head reads (out_indices) and the kind of depth")
    _check_supported(outer, kind)
    prefix = next((p for p in _PREFIXES if f"{p}embeddings.patch_embeddings.projection.weight" in arrays), None)
    if prefix is None:
        raise ValueError(
            f"The arrays lack the patch embedding of a plain ViT, {' or '.join(_PREFIXES)}embeddings.patch_embeddings:"
            " DPT on hybrids, BEiT or Swin is not implemented."
        )
    is_backbone = prefix == "backbone."
    config = outer if is_backbone or not outer else {**outer, "model_type": _PREFIXES[prefix], "architectures": None}
    theirs = {name: a for name, a in arrays.items() if name.startswith(prefix)}
    encoder = huggingface.parse(dataclasses.replace(contents, arrays=theirs, config=config), options)
    others = {name: a for name, a in arrays.items() if name not in theirs}
    dense = _dense(outer, others, kind, encoder.fields["depth"], is_backbone)
    if dense.options["readout"] == "project" and encoder.fields["mlp_activation"] != "gelu":
        raise ValueError('config.json has readout_type="project" with another hidden_act than "gelu": not implemented.')
    spelled = huggingface_names.IN_FILES[_PREFIXES[prefix]].prefix
    return dataclasses.replace(
        encoder,
        name_map=_encoder_map(encoder.name_map, prefix),
        arrays={prefix + name.removeprefix(spelled): a for name, a in encoder.arrays.items()},
        resample="bicubic" if is_backbone else "bilinear",
        class_names=None,
        dense=dense,
    )


def _head_options(model: HeadedModel) -> dict[str, Any]:
    """The options of a model's head "dpt", as `head_map` takes them."""
    neck, head = model.decoder.neck, model.head
    unit = neck.fusions[0].unit
    options = {"readout": neck.readout, "residual_norm": unit.norm, "residual_bias": unit.bias}
    options["exact_sizes"] = neck.exact_sizes
    if isinstance(head, DepthHead):
        options |= {"depth": head.depth, "depth_projection": head.projection}
    return options


def _prefix(model):
    return "backbone." if huggingface.model_type(model.spec) == "dinov2" else "dpt."


def _class_problems(model, options):
    yield model.head.norm != "batch", f'norm="{model.head.norm}" (it has batch normalisation)'
    yield options["residual_norm"] == "group", 'residual_norm="group" (batch normalisation or None)'
    yield options["exact_sizes"], "exact_sizes=True for classes (for depth alone)"
    yield _prefix(model) != "dpt.", "classes on a DINOv2 (a plain ViT; with a DINOv2 it has depth alone)"


def _depth_problems(model, options):
    neck, head = model.decoder.neck, model.head
    if options["exact_sizes"]:
        yield _prefix(model) != "backbone.", "exact_sizes=True on a plain ViT (Depth Anything stands on a DINOv2)"
        yield options["readout"] != "ignore", f'readout="{options["readout"]}" in a Depth Anything ("ignore")'
        yield options["residual_norm"] is not None, "a Depth Anything with residual_norm (None)"
        yield not options["residual_bias"], "a Depth Anything with residual_bias=False"
        yield head.projection, "depth_projection=True in a Depth Anything"
        yield head.max_depth != int(head.max_depth), f"max_depth={head.max_depth} (a whole number)"
        return
    yield options["residual_norm"] == "group", 'residual_norm="group" (batch normalisation or None)'
    yield (head.depth, head.max_depth) != ("relative", 1), "metric depth or a max_depth without exact_sizes"
    yield head.width != 32, f"depth_width={head.width} (32 without exact_sizes)"
    yield head.projection and neck.width != 256, f"depth_projection=True with width={neck.width} (256)"


def check(model: HeadedModel) -> None:
    """ValueError, with each reason, for a model that none of the three classes of transformers expresses."""
    if model.head_name != "dpt":
        raise ValueError(
            f'The format "huggingface" cannot express a dense model with the head "{model.head_name}", only with'
            ' "dpt" or "eomt", or "upernet" on a BEiT. format="keras" saves every model.'
        )
    huggingface.CAPABILITIES.check(model.get_encoder())
    options, decoder = _head_options(model), model.decoder
    kind, (h, w) = huggingface.model_type(model.spec), model.image_size
    is_depth = isinstance(model.head, DepthHead)
    problems = [
        (kind not in _PREFIXES.values(), f"an encoder of the type {kind} (a plain ViT or a DINOv2)"),
        (h != w, f"images that are not square, image_size={(h, w)}: load the copy with image_size=... instead"),
        (list(decoder.taps) != sorted(set(decoder.taps)), f"taps={decoder.taps} (in rising order)"),
        (_prefix(model) == "dpt." and decoder.normalised, "normalised=True on a plain ViT"),
        (
            options["readout"] == "project" and model.spec.mlp_activation != "gelu",
            f'readout="project" with mlp_activation="{model.spec.mlp_activation}" ("gelu")',
        ),
        *(_depth_problems(model, options) if is_depth else _class_problems(model, options)),
    ]
    refuse("huggingface", "model", problems)


def name_map(model: HeadedModel) -> NameMap:
    """{name: Entry} of a model that `check` accepts."""
    prefix, spec = _prefix(model), dataclasses.asdict(model.spec)
    encoder = huggingface_names.name_map(spec, None, _PREFIXES[prefix])
    return _encoder_map(encoder, prefix) | head_map(_head_options(model), bool(model.decoder.auxiliary))


def _idle(model: HeadedModel) -> dict[str, np.ndarray]:
    """{name: array} of what belongs to the format and is read by nothing that this model computes."""
    options, width = _head_options(model), model.decoder.neck.width
    arrays = {}
    for i in (1, 2):
        arrays[f"{_IDLE}convolution{i}.weight"] = np.zeros((width, width, 3, 3), "float32")
        if options["residual_bias"]:
            arrays[f"{_IDLE}convolution{i}.bias"] = np.zeros(width, "float32")
        if options["residual_norm"]:
            values = {"weight": 1, "bias": 0, "running_mean": 0, "running_var": 1}
            arrays |= {f"{_IDLE}batch_norm{i}.{n}": np.full(width, x, "float32") for n, x in values.items()}
    if _prefix(model) == "backbone.":
        arrays["backbone.embeddings.mask_token"] = np.zeros((1, model.spec.width), "float32")
    return arrays


def to_arrays(model: HeadedModel, weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays of the file.

    Args:
        model: that `check` accepts.
        weights: {path: array} of encoder, neck and heads.
    """
    arrays = {**pack(name_map(model), weights), **_idle(model)}
    return {**arrays, **batch_norm_counters(arrays)}


def _backbone_config(model):
    """The section for a DINOv2, and the settings of a Depth Anything around it."""
    stages = [i + 1 for i in model.decoder.taps]
    inner = {
        **config_json.huggingface(model.get_encoder()),
        "architectures": ["Dinov2Backbone"],
        "out_indices": stages,
        "out_features": [f"stage{i}" for i in stages],
        "apply_layernorm": bool(model.decoder.normalised),
        "reshape_hidden_states": False,
    }
    return {"backbone_config": inner, "reassemble_hidden_size": model.spec.width, "patch_size": inner["patch_size"]}


def to_config(model: HeadedModel) -> dict[str, Any]:
    """config.json of a model that `check` accepts."""
    neck, head, options = model.decoder.neck, model.head, _head_options(model)
    common = {
        "reassemble_factors": _FACTORS,
        "neck_hidden_sizes": list(neck.widths),
        "fusion_hidden_size": neck.width,
        "head_in_index": -1,
    }
    encoder = config_json.huggingface(model.get_encoder())
    is_backbone = _prefix(model) == "backbone."
    outer = (
        {"transformers_version": encoder["transformers_version"], **_backbone_config(model)} if is_backbone else encoder
    )
    if options["exact_sizes"]:
        own = {"head_hidden_size": head.width, "depth_estimation_type": head.depth, "max_depth": int(head.max_depth)}
        names = {"architectures": ["DepthAnythingForDepthEstimation"], "model_type": DEPTH_ANYTHING}
        return {**outer, **names, **common, **own}
    own = {
        "is_hybrid": False,
        "readout_type": neck.readout,
        "use_batch_norm_in_fusion_residual": options["residual_norm"] == "batch",
        "use_bias_in_fusion_residual": options["residual_bias"],
        "hidden_size": model.spec.width,
    }
    if not is_backbone:
        own["backbone_out_indices"] = list(model.decoder.taps)
    if isinstance(head, DPTHead):
        name = "DPTForSemanticSegmentation"
        own |= {"use_auxiliary_head": model.auxiliary > 0, "semantic_classifier_dropout": head.dropout}
        own |= {"auxiliary_loss_weight": model.auxiliary} if model.auxiliary else {}
        own |= config_json.id_labels(model)
        own |= {} if model.colors is None else {_COLORS: {str(i): list(c) for i, c in enumerate(model.colors)}}
    else:
        name, own["add_projection"] = "DPTForDepthEstimation", head.projection
    return {**outer, "architectures": [name], "model_type": DPT, **common, **own}


def to_preprocessor(model: HeadedModel) -> dict[str, Any]:
    """preprocessor_config.json, of the processor that also resizes the answers."""
    written = config_json.preprocessor(model)
    is_plain = written["image_processor_type"] == "ViTImageProcessor"
    return {**written, "image_processor_type": "DPTImageProcessor"} if is_plain else written
