"""mmsegmentation's checkpoints of a VisionTransformer with SETR or UPerNet: a `.pth` with `state_dict` and `meta`.

One map serves reading and writing: the encoder's here, the heads' in mmsegmentation_heads.py.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_vit.checkpoints.formats import mmsegmentation_config, mmsegmentation_heads
from keras_vit.checkpoints.formats.capabilities import Capabilities, any_of, refuse
from keras_vit.checkpoints.formats.name_map import NameMap, Names, batch_norm_counters, pack
from keras_vit.checkpoints.formats.parsed import (
    IMAGENET,
    Dense,
    ParsedCheckpoint,
    colors_in,
    heads,
    normalisation,
    table_size,
)
from keras_vit.checkpoints.formats.settings import (
    Settings,
    check_agreement,
    check_implemented,
    constants,
    four_blocks,
    model_facts,
    section,
    setting,
    stated_pair,
)
from keras_vit.checkpoints.formats.shown import Shown, need
from keras_vit.segmentation.segmentation_model import SegmentationModel

HEADS = tuple(mmsegmentation_heads.AUXILIARY)
_NAMES = Names(
    """
    backbone.patch_embed.projection  patch_encoder                              convolution
    backbone.cls_token               class_token/tokens                         same         if class_token
    backbone.pos_embed               position_embedding/embedding               positions
    {theirs}.ln1                     {ours}/attention_norm                      norm
    {theirs}.attn.attn.in_proj_weight  {ours}/attention/<query,key,value>/kernel  linear
    {theirs}.attn.attn.in_proj_bias  {ours}/attention/<query,key,value>/bias    same
    {theirs}.attn.attn.out_proj      {ours}/attention/out                       dense
    {theirs}.ln2                     {ours}/mlp_norm                            norm
    {theirs}.ffn.layers.0.0          {ours}/mlp/hidden                          dense
    {theirs}.ffn.layers.1            {ours}/mlp/out                             dense
    backbone.ln1                     encoder_norm                               norm         if final_norm
    """
).spelled(theirs="backbone.layers.{i}", ours="block_{i:02d}")
_BACKBONE = Settings(
    """
    img_size        size         numbers
    patch_size      patch        int
    in_channels     channels     int
    embed_dims      width        int
    num_layers      depth        int
    num_heads       heads        int
    mlp_ratio       ratio        int
    out_indices     taps         numbers
    with_cls_token  class_token  bool
    final_norm      normed       bool
    """
)


def _rules(model):
    spec, (h, w) = model.spec, model.spec.patch_size
    yield h != w, f"patches that are not square, patch_size={(h, w)}"
    yield spec.mlp_dim % spec.width != 0, f"mlp_dim={spec.mlp_dim}, which is no multiple of width={spec.width}"


CAPABILITIES = Capabilities(
    "mmsegmentation",
    {
        **any_of("patch_size depth width mlp_dim heads class_token final_norm"),
        "positions": ("learned",),
        "pool": ("token", "gap"),
        # In the config:
        **any_of("epsilon mean std"),
    },
    _rules,
)


def _encoder_map(fields: Mapping[str, Any], final_norm: bool) -> NameMap:
    """{name: Entry} of the backbone; its position table has a row for the class token in every file."""
    rows = 0 if fields["class_token"] else -1
    return _NAMES.map({**fields, "final_norm": final_norm}, missing_rows=rows)


def _fields(shown, backbone, options):
    """The fields of the spec, without the normalisation of images."""
    class_token = setting(backbone, "with_cls_token", bool) is not False
    fields = {**shown.vit_fields(), "class_token": class_token, "pool": "token" if class_token else "gap"}
    fields["heads"], _ = heads(fields["width"], options, setting(backbone, "num_heads", int))
    stated = setting(section(backbone, "norm_cfg"), "eps", float)
    fields["epsilon"] = float(options.get("epsilon") or stated or 1e-5)  # torch's
    facts = {name: fields[name] for name in ("width", "depth")}
    facts |= {"patch": fields["patch_size"][0], "channels": shown.channels}
    check_agreement(_BACKBONE.compared(backbone, facts), mmsegmentation_config.WHERE)
    return fields


def _check_backbone(arrays, backbone):
    """Refuses other backbones, and settings that no array shows; ValueError."""
    kind = backbone.get("type", "VisionTransformer")
    if kind != "VisionTransformer" or "backbone.layers.0.attn.attn.in_proj_weight" not in arrays:
        raise ValueError(
            f"The backbone{f' {kind}' if kind != 'VisionTransformer' else ''} is not mmsegmentation's"
            " VisionTransformer, the only one that is implemented."
        )
    fixed = {"patch_norm": False, "pre_norm": False, "output_cls_token": False, "act_cfg.type": "GELU"}
    check_implemented(backbone, fixed, f"backbone in {mmsegmentation_config.WHERE}")


def _stated_constants(settings):
    """(mean, std) of the images in a config of any release, or None; ValueError for blue before red."""
    found = section(section(settings, "model"), "data_preprocessor") or section(settings, "img_norm_cfg")
    check_implemented(found, {"bgr_to_rgb": True, "to_rgb": True}, mmsegmentation_config.WHERE)
    return constants(found, ("mean", "std"), 1.0)


def _class_names(meta, classes):
    """(class names, colours) in `meta` of any release, each None if missing or for other classes."""
    names = section(meta, "dataset_meta") or {"classes": meta.get("CLASSES"), "palette": meta.get("PALETTE")}
    found = names.get("classes")
    is_named = isinstance(found, list) and len(found) == classes
    return tuple(map(str, found)) if is_named else None, colors_in(names.get("palette"), classes)


def parse(contents, options: dict) -> ParsedCheckpoint:
    """Parses a file with the names of mmsegmentation's EncoderDecoder; arguments and errors as in timm.parse."""
    arrays, meta = contents.arrays, contents.meta
    settings = mmsegmentation_config.parse_settings(next((meta[n] for n in ("cfg", "config") if n in meta), ""))
    config = section(settings, "model")
    if not config:
        raise ValueError(
            "The file has no config in its meta, and its arrays do not show the blocks that the head reads, the number"
            " of attention heads or the use of the class token. Save the arrays with the config that the model was"
            ' built from: torch.save({"state_dict": ..., "meta": {"cfg": Config.fromfile("CONFIG.py").pretty_text}},'
            ' "model.pth").'
        )
    backbone = section(config, "backbone")
    _check_backbone(arrays, backbone)
    head = mmsegmentation_heads.find(arrays)
    shown = Shown(_NAMES, arrays)
    fields, channels = _fields(shown, backbone, options), shown.channels
    own, auxiliary = mmsegmentation_heads.read_options(head, arrays, config)
    taps = four_blocks(backbone, "out_indices", 0, fields["depth"] - 1)
    own |= {} if taps is None else {"taps": tuple(taps)}
    resample = setting(backbone, "interpolate_mode", str) or "bicubic"
    fields |= normalisation(_stated_constants(settings), IMAGENET, channels, options)
    rows = need(arrays, "backbone.pos_embed", 3).shape[1] - 1
    size = table_size(rows, fields["patch_size"], stated_pair(backbone, "img_size"), options)
    classes = need(arrays, "decode_head.conv_seg.weight", 4).shape[0]
    names, colors = _class_names(meta, classes)
    unread = () if fields["class_token"] else ("backbone.cls_token",)
    inside = {name: a for name, a in arrays.items() if name.startswith("backbone.") and name not in unread}
    outside = {name: a for name, a in arrays.items() if not name.startswith("backbone.")}
    if not auxiliary:
        outside = {name: a for name, a in outside.items() if not name.startswith("auxiliary_head.")}
    entries = mmsegmentation_heads.head_map(head, own, auxiliary > 0)
    return ParsedCheckpoint(
        "ViT",
        fields,
        size,
        _encoder_map(fields, fields["final_norm"]),
        inside,
        None,
        channels,
        resample=resample,
        dense=Dense(own, classes, names, colors, auxiliary, entries, outside, head),
    )


def check(model: SegmentationModel) -> None:
    """ValueError, with each reason, for a model that mmsegmentation does not have."""
    CAPABILITIES.check(model.get_encoder())
    taps, owners = list(model.decoder.taps), [layer for layer in model.decoder.layers if hasattr(layer, "norm")]
    problems = [
        (any(layer.norm == "group" for layer in owners), 'norm="group" (batch normalisation)'),
        (taps != sorted(set(taps)), f"taps={tuple(taps)} (in rising order)"),
    ]
    refuse("mmsegmentation", "model", problems)


def write(model: Any, weights: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """(`state_dict`, `meta`) of a model; ValueError for one that mmsegmentation does not have."""
    check(model)
    spec, is_normed = model.spec, bool(model.decoder.normalised)
    if not is_normed:  # no code reads them
        weights = {path: a for path, a in weights.items() if not path.startswith("encoder_norm/")}
    options = mmsegmentation_heads.map_options(model)
    entries = _encoder_map(vars(spec), is_normed)
    entries |= mmsegmentation_heads.head_map(model.head_name, options, model.auxiliary > 0)
    arrays = pack(entries, weights)
    if not spec.class_token:
        arrays["backbone.cls_token"] = np.zeros((1, 1, spec.width), "float32")
    return batch_norm_counters(arrays), to_meta(model)


def _backbone(model):
    """The config of the backbone."""
    spec, taps = model.spec, model.decoder.taps
    facts = model_facts(
        model, size=model.image_size, patch=spec.patch_size[0], ratio=spec.mlp_dim // spec.width, taps=taps
    )
    facts |= {"class_token": bool(spec.class_token), "normed": bool(model.decoder.normalised)}
    own = {"norm_cfg": {"type": "LN", "eps": spec.epsilon}, "act_cfg": {"type": "GELU"}}
    return {"type": "VisionTransformer", **_BACKBONE.written(facts), **own, "interpolate_mode": "bicubic"}


def to_meta(model: SegmentationModel) -> dict[str, Any]:
    """`meta` of the checkpoint: class names, colours, and the config as text."""
    constants_of = {
        name: np.broadcast_to(getattr(model.spec, name), (model.channels,)).tolist() for name in ("mean", "std")
    }
    processor = {
        "type": "SegDataPreProcessor",
        **constants_of,
        "bgr_to_rgb": True,
        "pad_val": 0,
        "seg_pad_val": model.void,
        "size": list(model.image_size),
    }
    config = {
        "type": "EncoderDecoder",
        "data_preprocessor": processor,
        "backbone": _backbone(model),
        **mmsegmentation_heads.describe(model),
        "train_cfg": {},
        "test_cfg": {"mode": "whole"},
    }
    described = {} if model.class_names is None else {"classes": list(model.class_names)}
    described |= {} if model.colors is None else {"palette": [list(color) for color in model.colors]}
    return {"dataset_meta": described, "cfg": mmsegmentation_config.format_settings({"model": config})}
