"""mmsegmentation's heads on a VisionTransformer: SETR's three, and UPerNet with one of two necks.

`head_map` serves reading and writing; `read_options` and `describe` translate its config into our options and back.
"""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_vit.checkpoints.formats import mmsegmentation_config
from keras_vit.checkpoints.formats.name_map import NameMap, Names
from keras_vit.checkpoints.formats.settings import check_implemented, section, setting
from keras_vit.checkpoints.formats.shown import need
from keras_vit.segmentation.heads.setr import UpsamplingHead
from keras_vit.segmentation.heads.upernet import BilinearPyramidNeck
from keras_vit.segmentation.segmentation_model import SegmentationModel

AUXILIARY = {"setr_naive": 3, "setr_pup": 3, "setr_mla": 4, "upernet": 1}  # {head: number of its auxiliary heads}
_SCALES = [4, 2, 1, 0.5]
_UP_SCALE = {"setr_naive": 4, "setr_pup": 2, "setr_mla": 4}
_BINS = (1, 2, 3, 6)
_PYRAMIDS = {"bilinear": "neck.lateral_convs.0.conv.weight", "transposed": "neck.upsample_4x.0.weight"}
_CLASSIFIER = Names("{theirs}.conv_seg {ours}/classifier/linear pixelwise")
_UPSAMPLING = Names(
    """
    {theirs}.norm            {ours}/norm               norm
    {theirs}.conv_seg        {ours}/classifier/linear  pixelwise
    {theirs}.up_convs.{i}.0  {ours}/conv_{i}           conv_bn
    """
)
# In these and _LATERAL, {i} is the number of a map.
_MLA = Names(
    """
    neck.norm.{i}                  neck/norm_{i}        norm
    neck.mla.channel_proj.{i}      neck/projection_{i}  conv_bn
    neck.mla.feat_extract.{i}      neck/output_{i}      conv_bn
    decode_head.up_convs.{i}.0     head/conv_{i}_0      conv_bn
    decode_head.up_convs.{i}.1     head/conv_{i}_1      conv_bn
    """
)
_PYRAMID = {
    "bilinear": Names(
        """
        neck.lateral_convs.{i}.conv  neck/lateral_{i}  convolution
        neck.convs.{i}.conv          neck/output_{i}   convolution
        """
    ),
    "transposed": Names(
        """
        neck.upsample_4x.0  neck/resize_0a  enlarging
        neck.upsample_4x.1  neck/norm       batch_norm
        neck.upsample_4x.3  neck/resize_0b  enlarging
        neck.upsample_2x.0  neck/resize_1   enlarging
        """
    ),
}
_POOLED = Names("decode_head.psp_modules.{number}.1 head/pool_{bin} conv_bn")
_LATERAL = Names(
    """
    decode_head.bottleneck         head/pool_bottleneck  conv_bn
    decode_head.lateral_convs.{i}  head/lateral_{i}      conv_bn
    decode_head.fpn_convs.{i}      head/smooth_{i}       conv_bn
    """
)
AUXILIARY_UPERNET = Names("auxiliary_head.convs.0 auxiliary_0/conv_0 conv_bn")


def upernet_map(bins: tuple[int, ...]) -> NameMap:
    """{name: Entry} of UPerHead on four maps, without its classifier."""
    entries = Names("decode_head.fpn_bottleneck head/fusion conv_bn").map()
    for i, n in enumerate(bins):
        entries |= _POOLED.spelled(number=i, bin=n).map()
    return entries | _LATERAL.map(depth=3)


def head_map(head: str, options: Mapping[str, Any], auxiliary: bool) -> NameMap:
    """{name: Entry} of neck, head and auxiliary heads; `options` are those of the head."""

    def classifier(theirs, ours):
        return _CLASSIFIER.spelled(theirs=theirs, ours=ours).map()

    others = [(f"auxiliary_head.{i}", f"auxiliary_{i}") for i in range(AUXILIARY[head] if auxiliary else 0)]
    if head == "upernet":
        entries = _PYRAMID[options["pyramid"]].map(depth=4) | upernet_map(options["bins"])
        entries |= classifier("decode_head", "head")
        own = classifier("auxiliary_head", "auxiliary_0") | AUXILIARY_UPERNET.map()
        return entries | own if auxiliary else entries
    if head == "setr_mla":
        entries = classifier("decode_head", "head") | _MLA.map(depth=4)
        for theirs, ours in others:
            entries |= classifier(theirs, ours)
        return entries
    entries = _UPSAMPLING.spelled(theirs="decode_head", ours="head").map(depth=options.get("stages", 1))
    for theirs, ours in others:
        entries |= _UPSAMPLING.spelled(theirs=theirs, ours=ours).map(depth=options.get("auxiliary_convs", 1))
    return entries


def _count(arrays, prefix: str) -> int:
    """How many numbers follow `prefix` in the names."""
    found = (re.match(rf"{re.escape(prefix)}(\d{{1,6}})\.", name) for name in arrays)
    return len({match[1] for match in found if match})


def find(arrays: Mapping[str, np.ndarray]) -> str:
    """The head, a row of segmentation.heads.segmentation_heads.HEADS, by the names; ValueError for any other."""
    if "neck.mla.channel_proj.0.conv.weight" in arrays:
        return "setr_mla"
    if "decode_head.fpn_bottleneck.conv.weight" in arrays:
        return "upernet"
    if "decode_head.norm.weight" not in arrays or "decode_head.up_convs.0.0.conv.weight" not in arrays:
        raise ValueError("The decode_head must be a SETRUPHead, SETRMLAHead or UPerHead; others are not implemented.")
    kernel = need(arrays, "decode_head.up_convs.0.0.conv.weight", 4)
    return "setr_naive" if kernel.shape[2:] == (1, 1) else "setr_pup"


def _check_heads(head, config, auxiliary):
    """Refuses settings of neck, decode_head and auxiliary heads that no array shows; `auxiliary` is their number."""
    fixed = {"neck.scales": _SCALES, "neck.rescales": _SCALES}
    if head == "setr_mla":
        fixed["neck.act_cfg.type"] = "ReLU"
    if head in _UP_SCALE:
        fixed["decode_head.up_scale"] = _UP_SCALE[head]
    others = [f"auxiliary_head.{i}" for i in range(auxiliary)] if head in _UP_SCALE else ["auxiliary_head"]
    for name in ("decode_head", *others):
        fixed |= {f"{name}.align_corners": False, f"{name}.act_cfg.type": "ReLU"}
    for i, name in enumerate(others if head in _UP_SCALE else ()):
        fixed |= {f"{name}.in_index": i, f"{name}.up_scale": 4}
    check_implemented(config, fixed, mmsegmentation_config.WHERE)


def _upernet_options(arrays, config, others):
    pyramid = next((kind for kind, name in _PYRAMIDS.items() if name in arrays), None)
    if pyramid is None:
        raise ValueError("UPerHead without a neck is not implemented: MultiLevelNeck and Feature2Pyramid are.")
    bins = tuple(setting(section(config, "decode_head"), "pool_scales", list) or _BINS)
    options = {
        "width": need(arrays, "decode_head.fpn_bottleneck.conv.weight", 4).shape[0],
        "bins": bins,
        "pyramid": pyramid,
        "last_normalised": "backbone.ln1.weight" in arrays,
    }
    if len(bins) != (found := _count(arrays, "decode_head.psp_modules.")):
        raise ValueError(f"The config names pool_scales {bins}, and the arrays have {found} pooled maps.")
    if pyramid == "bilinear":
        options["pyramid_width"] = need(arrays, _PYRAMIDS[pyramid], 4).shape[0]
    if "auxiliary_head.convs.0.conv.weight" in arrays:
        stated = setting(others[0], "in_index", int) if others else None
        options["auxiliary_width"] = need(arrays, "auxiliary_head.convs.0.conv.weight", 4).shape[0]
        options["auxiliary_level"] = (3 if pyramid == "bilinear" else 2) if stated is None else stated
    return options


def read_options(
    head: str, arrays: Mapping[str, np.ndarray], config: Mapping[str, Any]
) -> tuple[dict[str, Any], float]:
    """(our options of a head without its taps, weight of the auxiliary losses or 0).

    Args:
        head: as `find` returns it.
        arrays: of the file.
        config: `model` of the config in the checkpoint, or {}.

    Raises:
        ValueError: for a setting or a number of auxiliary heads that is not implemented.
    """
    stated = config.get("auxiliary_head")
    others = [each for each in (stated if isinstance(stated, list) else [stated]) if isinstance(each, dict)]
    found = _count(arrays, "auxiliary_head.") if head != "upernet" else "auxiliary_head.conv_seg.weight" in arrays
    if found not in (0, AUXILIARY[head]):
        raise ValueError(f"The file has {found} auxiliary heads, and {head} has {AUXILIARY[head]} or none.")
    _check_heads(head, config, found)
    options: dict[str, Any] = {}
    if head == "upernet":
        options = _upernet_options(arrays, config, others)
    elif "backbone.ln1.weight" in arrays:
        raise ValueError("final_norm=True in the backbone is implemented for UPerHead, not for SETR.")
    elif head == "setr_mla":
        options["width"] = need(arrays, "neck.mla.channel_proj.0.conv.weight", 4).shape[0]
        options["branch_width"] = need(arrays, "decode_head.up_convs.0.0.conv.weight", 4).shape[0]
    else:
        options["width"] = need(arrays, "decode_head.up_convs.0.0.conv.weight", 4).shape[0]
        key, place = ("stages", "decode_head") if head == "setr_pup" else ("auxiliary_convs", "auxiliary_head.0")
        options |= {key: count} if (count := _count(arrays, f"{place}.up_convs.")) else {}
    dropout = setting(section(config, "decode_head"), "dropout_ratio", int, float)
    usual = 0.1 if config or head == "upernet" else 0.0  # mmsegmentation's default; 0 in the configs of SETR
    options["dropout"] = float(usual if dropout is None else dropout)
    loss = section(others[0], "loss_decode") if others else {}
    weight = setting(loss, "loss_weight", int, float)
    return options, (float(0.4 if weight is None else weight) if found else 0.0)


def _common(kind, width, index, classes, dropout, inputs):
    """The settings that every head has."""
    return {
        "type": kind,
        "in_channels": inputs,
        "in_index": index,
        "channels": width,
        "num_classes": classes,
        "dropout_ratio": dropout,
        "norm_cfg": {"type": "BN", "requires_grad": True},
        "align_corners": False,
        "loss_decode": {"type": "CrossEntropyLoss", "use_sigmoid": False, "loss_weight": 1.0},
    }


def _upsampling(model, place, layer):
    """The section of a SETR head, naive or PUP, on the map number `place`."""
    own = _common("SETRUPHead", layer.width, place, model.classes, layer.dropout, model.spec.width)
    sizes = {"num_convs": layer.convs, "up_scale": layer.scale, "kernel_size": layer.kernel_size}
    return {**own, **sizes, "norm_layer": {"type": "LN", "eps": 1e-6}}


def _auxiliary(model, place, layer):
    """The section of an auxiliary head on the map number `place`."""
    weight = {"loss_decode": {"type": "CrossEntropyLoss", "use_sigmoid": False, "loss_weight": model.auxiliary}}
    if isinstance(layer, UpsamplingHead):
        return {**_upsampling(model, place, layer), **weight}
    inputs = getattr(model.decoder.neck, "width", None) or model.spec.width
    width = layer.width if layer.convs else inputs
    own = _common("FCNHead", width, place, model.classes, layer.dropout, inputs)
    size = {"kernel_size": 3 if layer.convs else 1}
    return {**own, "num_convs": layer.convs, **size, "concat_input": False, **weight}


def _neck(model):
    neck, d = model.decoder.neck, model.spec.width
    if model.head_name == "setr_mla":
        norms = {"norm_cfg": {"type": "BN", "requires_grad": True}, "act_cfg": {"type": "ReLU"}}
        return {"type": "MLANeck", "in_channels": [d] * 4, "out_channels": neck.width, **norms}
    if isinstance(neck, BilinearPyramidNeck):
        sizes = {"in_channels": [d] * 4, "out_channels": neck.width or d}
        return {"type": "MultiLevelNeck", **sizes, "scales": _SCALES}
    return {"type": "Feature2Pyramid", "embed_dim": d, "rescales": _SCALES, "norm_cfg": {"type": "BN"}}


def describe(model: SegmentationModel) -> dict[str, Any]:
    """neck, decode_head and auxiliary_head of the config's `model`, for a model with one of the heads of AUXILIARY."""
    head, d, dropout = model.head, model.spec.width, model.head.dropout
    sections: dict[str, Any] = {} if model.decoder.neck is None else {"neck": _neck(model)}
    if model.head_name == "upernet":
        inputs = [sections["neck"].get("out_channels", d)] * 4
        own = _common("UPerHead", head.width, [0, 1, 2, 3], model.classes, dropout, inputs)
        own["pool_scales"] = list(head.bins)
    elif model.head_name == "setr_mla":
        inputs = [model.decoder.neck.width] * 4
        own = _common("SETRMLAHead", 4 * head.width, [0, 1, 2, 3], model.classes, dropout, inputs)
        own |= {"mla_channels": head.width, "up_scale": 4}
    else:
        own = _upsampling(model, 3, head)
    others = [_auxiliary(model, place, layer) for place, layer in model.decoder.auxiliary]
    if others:
        sections["auxiliary_head"] = others[0] if model.head_name == "upernet" else others
    return {**sections, "decode_head": own}


def map_options(model: SegmentationModel) -> dict[str, Any]:
    """What `head_map` needs of a model's options."""
    if model.head_name == "upernet":
        is_bilinear = isinstance(model.decoder.neck, BilinearPyramidNeck)
        return {"bins": model.head.bins, "pyramid": "bilinear" if is_bilinear else "transposed"}
    if model.head_name == "setr_pup":
        return {"stages": model.head.convs}
    others = [layer.convs for _, layer in model.decoder.auxiliary]
    return {"auxiliary_convs": others[0]} if others and model.head_name == "setr_naive" else {}
