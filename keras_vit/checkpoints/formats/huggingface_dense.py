"""Hugging Face's DPT, for classes and for depth, and Depth Anything: a ViT or DINOv2, and the layers after its blocks.

The encoder's names are those of formats/huggingface.py behind another prefix.
"""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from keras_vit.checkpoints.formats import huggingface, huggingface_config
from keras_vit.checkpoints.formats.capabilities import refuse
from keras_vit.checkpoints.formats.name_map import NameMap, Names, batch_norm_counters, pack
from keras_vit.checkpoints.formats.parsed import Dense, ParsedCheckpoint, colors_in
from keras_vit.checkpoints.formats.settings import check_agreement, check_implemented, four_blocks, section, setting
from keras_vit.checkpoints.formats.shown import need
from keras_vit.depth.depth_model import DepthHead
from keras_vit.models.headed import HeadedModel
from keras_vit.segmentation.heads.dpt import DPTHead

DPT, DEPTH_ANYTHING = "dpt", "depth_anything"  # model_type of config.json
_PREFIXES = {"dpt.": "vit", "backbone.": "dinov2"}  # {prefix of the encoder: its type in formats/huggingface.py}
_SPELLED = {prefix: huggingface.IN_FILES[kind].but(prefix) for prefix, kind in _PREFIXES.items()}
_FACTORS = [4, 2, 1, 0.5]
_TAPS = (2, 5, 8, 11)  # of DPTConfig
_STAGE, _FUSION = "neck.reassemble_stage.", "neck.fusion_stage.layers."
_IDLE = f"{_FUSION}0.residual_layer1."  # in every file, and read by no code: the deepest map has no deeper one
_COLORS = "id2color"  # in config.json, which other readers ignore
_NECK = Names(
    """
    neck.reassemble_stage.readout_projects.<0,1,2,3>.0       neck/readout_<0,1,2,3>     dense        if readout=project
    neck.reassemble_stage.layers.<0,1,2,3>.projection        neck/projection_<0,1,2,3>  convolution
    neck.convs.<0,1,2,3>                                     neck/conv_<0,1,2,3>        kernel
    neck.fusion_stage.layers.<0,1,2,3>.projection            neck/fusion_<0,1,2,3>/projection  convolution
    neck.reassemble_stage.layers.<0,1>.resize                neck/resize_<0,1>          enlarging
    neck.reassemble_stage.layers.3.resize                    neck/resize_3              convolution
    """
)
_RESIDUAL = Names(
    """
    {theirs}convolution<1,2>  {ours}/conv_<0,1>  kernel
    {theirs}convolution<1,2>  {ours}/conv_<0,1>  bias        if residual_bias
    {theirs}batch_norm<1,2>   {ours}/norm_<0,1>  batch_norm  if residual_norm
    """
)
_CLASSES = Names(
    """
    {theirs}.head.0  {ours}/{conv}/conv         kernel
    {theirs}.head.1  {ours}/{conv}/norm         batch_norm
    {theirs}.head.4  {ours}/classifier/linear   pixelwise
    """
)
_DEPTH = Names(
    """
    head.projection   head/projection   convolution  if depth_projection
    head.conv<1,2>    head/conv_<0,1>   convolution  if exact_sizes
    head.conv3        head/linear       pixelwise    if exact_sizes
    head.head.<0,2>   head/conv_<0,1>   convolution  if not exact_sizes
    head.head.4       head/linear       pixelwise    if not exact_sizes
    """
)


def _head_map(options: Mapping[str, Any], auxiliary: bool) -> NameMap:
    """{name: Entry} of neck, head and auxiliary head; `options` are those of the head "dpt"."""
    entries = _NECK.map(options)
    for i, unit in ((i, unit) for i in range(4) for unit in (1, 2) if i or unit == 2):
        place = {"theirs": f"{_FUSION}{i}.residual_layer{unit}.", "ours": f"neck/fusion_{i}/residual_{unit}"}
        entries |= _RESIDUAL.spelled(**place).map(options)
    if options.get("depth"):
        return entries | _DEPTH.map(options)
    entries |= _CLASSES.spelled(theirs="head", ours="head", conv="conv").map()
    others = _CLASSES.spelled(theirs="auxiliary_head", ours="auxiliary_0", conv="conv_0").map()
    return entries | others if auxiliary else entries


def _check_supported(config: Mapping[str, Any], kind: str) -> None:
    """ValueError for a model that is not one of these, or a setting that is not implemented, by name."""
    stated = setting(config, "model_type", str)
    if stated not in (None, DPT, DEPTH_ANYTHING):
        raise ValueError(
            f"config.json has model_type={stated!r}, which is not implemented for dense predictions. Implemented:"
            f" {DPT}, {DEPTH_ANYTHING}."
        )
    check_agreement([("model_type", stated, kind)])
    check_implemented(config, {"is_hybrid": False, "reassemble_factors": _FACTORS})
    if config.get("head_in_index") != 3:  # the last
        check_implemented(config, {"head_in_index": -1})


def _taps(config: Mapping[str, Any], depth: int) -> tuple[int, ...] | None:
    """The four blocks that are read, from 0; None where nothing says so. ValueError for others than four blocks."""
    if not config:
        return None
    backbone = setting(config, "backbone_config", dict)
    if backbone is None:
        config = {"backbone_out_indices": config.get("backbone_out_indices") or list(_TAPS)}
        return tuple(four_blocks(config, "backbone_out_indices", 0, depth - 1))
    if backbone.get("out_indices") is None:
        named = [re.fullmatch(r"stage(\d{1,6})", str(name)) for name in setting(backbone, "out_features", list) or ()]
        backbone = {"out_indices": [int(match[1]) for match in named if match]}
    # Stage 0 is what enters the first block.
    return tuple(i - 1 for i in four_blocks(backbone, "out_indices", 1, depth))


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
    unit = f"{_FUSION}0.residual_layer2."
    projected = f"{_STAGE}readout_projects.0.0.weight" in arrays
    stated = (setting(config, "readout_type", str) or "project") if kind == DPT and config else None
    readout = "project" if projected else "ignore" if stated in (None, "project") else stated
    check_agreement([("readout_type", stated, readout)])
    normed = setting(section(config, "backbone_config"), "apply_layernorm", bool)
    options = {
        "widths": tuple(need(arrays, f"{_STAGE}layers.{i}.projection.weight", 4).shape[0] for i in range(4)),
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
    stated = section(config, _COLORS)
    return colors_in([stated.get(str(i)) for i in range(classes)], classes)


def _dense(config, arrays, kind, depth, is_backbone):
    options = _options(config, arrays, kind, depth, is_backbone)
    has_auxiliary = "auxiliary_head.head.0.weight" in arrays
    auxiliary = float(_number(config, "auxiliary_loss_weight", 0.4)) if has_auxiliary else 0.0
    idle = (_IDLE,) if auxiliary else (_IDLE, "auxiliary_head.")
    kept = {name: a for name, a in arrays.items() if not name.startswith(idle)}
    entries = _head_map(options, auxiliary > 0)
    if options.get("depth"):
        return Dense(options, 1, None, None, auxiliary, entries, kept)
    classes = need(arrays, "head.head.4.weight", 4).shape[0]
    names = huggingface_config.labels(config, classes)
    check_agreement(huggingface_config.label_rows(config, classes)[:1])
    return Dense(options, classes, names, _colors(config, classes), auxiliary, entries, kept)


def parse(contents: Any, options: Any) -> ParsedCheckpoint:
    """Parses a folder or file with these names; arguments and errors as in timm.parse."""
    outer, arrays = contents.config, contents.arrays
    kind = DEPTH_ANYTHING if "head.conv1.weight" in arrays else DPT
    huggingface_config.check_whole(outer, "the blocks that its head reads (out_indices) and the kind of depth")
    _check_supported(outer, kind)
    prefix = next((p for p, spelled in _SPELLED.items() if p + spelled.patch in arrays), None)
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
    usual = huggingface.IN_FILES[_PREFIXES[prefix]].root
    return dataclasses.replace(
        encoder,
        name_map=_SPELLED[prefix].map(encoder.fields),
        arrays={prefix + name.removeprefix(usual): a for name, a in encoder.arrays.items()},
        resample="bicubic" if is_backbone else "bilinear",
        class_names=None,
        dense=dense,
    )


def _head_options(model: HeadedModel) -> dict[str, Any]:
    """The options of a model's head "dpt", as `_head_map` takes them."""
    neck, head = model.decoder.neck, model.head
    unit = neck.fusions[0].unit
    options = {"readout": neck.readout, "residual_norm": unit.norm, "residual_bias": unit.bias}
    options["exact_sizes"] = neck.exact_sizes
    if isinstance(head, DepthHead):
        options |= {"depth": head.depth, "depth_projection": head.projection}
    return options


def _prefix(model):
    return "backbone." if huggingface.model_type(model.spec) == "dinov2" else "dpt."


def _problems(model: HeadedModel, options: Mapping[str, Any]) -> Iterator[tuple[bool, str]]:
    """(whether it applies, text) of what these classes of transformers do not have."""
    decoder, (h, w), plain = model.decoder, model.image_size, _prefix(model) == "dpt."
    kind, activation, readout = huggingface.model_type(model.spec), model.spec.mlp_activation, options["readout"]
    yield kind not in _PREFIXES.values(), f"an encoder of the type {kind} (a plain ViT or a DINOv2)"
    yield h != w, f"images that are not square, image_size={(h, w)}: load the copy with image_size=... instead"
    yield list(decoder.taps) != sorted(set(decoder.taps)), f"taps={decoder.taps} (in rising order)"
    yield plain and decoder.normalised, "normalised=True on a plain ViT"
    projected = readout == "project" and activation != "gelu"
    yield projected, f'readout="project" with mlp_activation="{activation}" ("gelu")'
    neck, head, exact = decoder.neck, model.head, options["exact_sizes"]
    if not exact or not isinstance(head, DepthHead):
        yield options["residual_norm"] == "group", 'residual_norm="group" (batch normalisation or None)'
    if not isinstance(head, DepthHead):
        yield head.norm != "batch", f'norm="{head.norm}" (it has batch normalisation)'
        yield exact, "exact_sizes=True for classes (for depth alone)"
        yield not plain, "classes on a DINOv2 (a plain ViT; with a DINOv2 it has depth alone)"
    elif exact:
        yield plain, "exact_sizes=True on a plain ViT (Depth Anything stands on a DINOv2)"
        yield readout != "ignore", f'readout="{readout}" in a Depth Anything ("ignore")'
        yield options["residual_norm"] is not None, "a Depth Anything with residual_norm (None)"
        yield not options["residual_bias"], "a Depth Anything with residual_bias=False"
        yield head.projection, "depth_projection=True in a Depth Anything"
        yield head.max_depth != int(head.max_depth), f"max_depth={head.max_depth} (a whole number)"
    else:
        yield (head.depth, head.max_depth) != ("relative", 1), "metric depth or a max_depth without exact_sizes"
        yield head.width != 32, f"depth_width={head.width} (32 without exact_sizes)"
        yield head.projection and neck.width != 256, f"depth_projection=True with width={neck.width} (256)"


def check(model: HeadedModel) -> None:
    """ValueError, with each reason, for a model that none of the three classes of transformers expresses."""
    huggingface.CAPABILITIES.check(model.get_encoder())
    refuse("huggingface", "model", _problems(model, _head_options(model)))


def name_map(model: HeadedModel) -> NameMap:
    """{name: Entry} of a model that `check` accepts."""
    return _SPELLED[_prefix(model)].map(vars(model.spec)) | _head_map(
        _head_options(model), bool(model.decoder.auxiliary)
    )


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


def write(model: Any, weights: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """(arrays, {config file: content}) of a model; ValueError for one that the format cannot express."""
    check(model)
    files = huggingface_config.files(model, to_config(model))
    processor = files["preprocessor_config.json"]
    if processor["image_processor_type"] == "ViTImageProcessor":
        processor["image_processor_type"] = "DPTImageProcessor"  # which also resizes the answers
    return batch_norm_counters({**pack(name_map(model), weights), **_idle(model)}), files


def _backbone_config(model, encoder):
    """The section for a DINOv2, and the settings of a Depth Anything around it."""
    stages = [i + 1 for i in model.decoder.taps]
    inner = {
        **encoder,
        "architectures": ["Dinov2Backbone"],
        "out_indices": stages,
        "out_features": [f"stage{i}" for i in stages],
        "apply_layernorm": bool(model.decoder.normalised),
        "reshape_hidden_states": False,
    }
    own = {"backbone_config": inner, "reassemble_hidden_size": model.spec.width, "patch_size": inner["patch_size"]}
    return {"transformers_version": encoder["transformers_version"], **own}


def to_config(model: HeadedModel) -> dict[str, Any]:
    """config.json of a model that `check` accepts."""
    neck, head, options = model.decoder.neck, model.head, _head_options(model)
    common = {
        "reassemble_factors": _FACTORS,
        "neck_hidden_sizes": list(neck.widths),
        "fusion_hidden_size": neck.width,
        "head_in_index": -1,
    }
    encoder, is_backbone = huggingface.to_config(model.get_encoder()), _prefix(model) == "backbone."
    outer = _backbone_config(model, encoder) if is_backbone else encoder
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
        own |= huggingface_config.to_labels(model)
        own |= {} if model.colors is None else {_COLORS: {str(i): list(c) for i, c in enumerate(model.colors)}}
    else:
        name, own["add_projection"] = "DPTForDepthEstimation", head.projection
    return {**outer, "architectures": [name], "model_type": DPT, **common, **own}
