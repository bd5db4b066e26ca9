"""mmsegmentation's checkpoints of a VisionTransformer with SETR or UPerNet: a `.pth` with `state_dict` and `meta`.

One map serves reading and writing: the encoder's here, the heads' in mmsegmentation_heads.py.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_vit.checkpoints.formats import mmsegmentation_config, mmsegmentation_heads
from keras_vit.checkpoints.formats.capabilities import ANY, Capabilities, refuse
from keras_vit.checkpoints.formats.mmsegmentation_config import section
from keras_vit.checkpoints.formats.name_map import (
    Entry,
    NameMap,
    batch_norm_counters,
    conv,
    pack,
    positions,
    same,
    stacked_bias,
    stacked_linear,
    torch_dense,
    torch_norm,
)
from keras_vit.checkpoints.formats.parsed import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Dense,
    ParsedCheckpoint,
    colors_in,
    constants,
    depth,
    grid,
    heads,
    hint_grid,
    need,
    normalisation,
    pixels,
    setting,
    stated_pair,
)
from keras_vit.segmentation.segmentation_model import SegmentationModel

_PATCHES = "backbone.patch_embed.projection"


def _square_patches(model):
    h, w = model.spec.patch_size
    return None if h == w else f"patches that are not square, patch_size={(h, w)}"


def _whole_ratio(model):
    spec = model.spec
    whole = spec.mlp_dim % spec.width == 0
    return None if whole else f"mlp_dim={spec.mlp_dim}, which is no multiple of width={spec.width}"


CAPABILITIES = Capabilities(
    "mmsegmentation",
    {
        "patch_size": ANY,
        "depth": ANY,
        "width": ANY,
        "mlp_dim": ANY,
        "heads": ANY,
        "class_token": (True, False),
        "positions": ("learned",),
        "pool": ("token", "gap"),
        "final_norm": (True, False),
        # In the config:
        "epsilon": ANY,
        "mean": ANY,
        "std": ANY,
    },
    rules=(_square_patches, _whole_ratio),
)


def _positions(has_token: bool) -> Entry:
    """The position table, which has a row for the class token in every file."""
    ours = "position_embedding/embedding"
    if has_token:
        return positions(ours, 0)
    return Entry((ours,), lambda a: np.concatenate([np.zeros_like(a[:, :1]), a], axis=1), lambda a, shapes: [a[:, 1:]])


def encoder_map(depth: int, class_token: bool, final_norm: bool) -> NameMap:
    """{name: Entry} of the backbone."""
    entries = {f"{_PATCHES}.weight": conv("patch_encoder/kernel"), f"{_PATCHES}.bias": same("patch_encoder/bias")}
    if class_token:
        entries["backbone.cls_token"] = same("class_token/tokens")
    entries["backbone.pos_embed"] = _positions(class_token)
    for i in range(depth):
        theirs, ours = f"backbone.layers.{i}", f"block_{i:02d}"
        qkv = [f"{ours}/attention/{name}" for name in ("query", "key", "value")]
        entries |= torch_norm(f"{theirs}.ln1", f"{ours}/attention_norm")
        entries[f"{theirs}.attn.attn.in_proj_weight"] = stacked_linear(*(f"{name}/kernel" for name in qkv))
        entries[f"{theirs}.attn.attn.in_proj_bias"] = stacked_bias(*(f"{name}/bias" for name in qkv))
        entries |= torch_dense(f"{theirs}.attn.attn.out_proj", f"{ours}/attention/out")
        entries |= torch_norm(f"{theirs}.ln2", f"{ours}/mlp_norm")
        entries |= torch_dense(f"{theirs}.ffn.layers.0.0", f"{ours}/mlp/hidden")
        entries |= torch_dense(f"{theirs}.ffn.layers.1", f"{ours}/mlp/out")
    return entries | (torch_norm("backbone.ln1", "encoder_norm") if final_norm else {})


def _fields(arrays, backbone, options):
    """The fields of the spec, without the normalisation of images."""
    w, hidden = need(arrays, f"{_PATCHES}.weight", 4), need(arrays, "backbone.layers.0.ffn.layers.0.0.weight", 2)
    d = w.shape[0]
    k, _ = heads(d, options, setting(backbone, "num_heads", int))
    class_token = setting(backbone, "with_cls_token", bool) is not False
    stated = setting(section(backbone, "norm_cfg"), "eps", float)
    fields = {
        "patch_size": w.shape[2:],
        "depth": depth(arrays, r"backbone\.layers\.(\d+)\."),
        "width": d,
        "heads": k,
        "mlp_dim": hidden.shape[0],
        "class_token": class_token,
        "final_norm": "backbone.ln1.weight" in arrays,
        "pool": "token" if class_token else "gap",
        "epsilon": float(options.get("epsilon") or stated or 1e-5),  # torch's
    }
    rows = [
        ("embed_dims", setting(backbone, "embed_dims", int), d),
        ("num_layers", setting(backbone, "num_layers", int), fields["depth"]),
        ("patch_size", setting(backbone, "patch_size", int), w.shape[2]),
        ("in_channels", setting(backbone, "in_channels", int), w.shape[1]),
    ]
    mmsegmentation_config.compare(rows)
    return fields


def _check_backbone(arrays, backbone):
    """Refuses other backbones, and settings that no array shows; ValueError."""
    kind = backbone.get("type", "VisionTransformer")
    if kind != "VisionTransformer" or "backbone.layers.0.attn.attn.in_proj_weight" not in arrays:
        raise ValueError(
            f"The backbone{f' {kind}' if kind != 'VisionTransformer' else ''} is not mmsegmentation's"
            " VisionTransformer, the only one that is implemented."
        )
    names = ("patch_norm", "pre_norm", "output_cls_token")
    rows = [(f"backbone.{name}", backbone.get(name), False) for name in names]
    rows += [("backbone.act_cfg.type", section(backbone, "act_cfg").get("type"), "GELU")]
    mmsegmentation_config.check(rows)


def _stated_constants(settings):
    """(mean, std) of the images in a config of any release, or None; ValueError for blue before red."""
    found = section(section(settings, "model"), "data_preprocessor") or section(settings, "img_norm_cfg")
    for name in ("bgr_to_rgb", "to_rgb"):
        mmsegmentation_config.check([(name, found.get(name), True)])
    return constants(found, ("mean", "std"), 1.0)


def _class_names(meta, classes):
    """(class names, colours) in `meta` of any release, each None if missing or for other classes."""
    names = section(meta, "dataset_meta") or {"classes": meta.get("CLASSES"), "palette": meta.get("PALETTE")}
    found = names.get("classes")
    is_named = isinstance(found, list) and len(found) == classes
    return tuple(map(str, found)) if is_named else None, colors_in(names.get("palette"), classes)


def _taps(backbone, depth):
    """The blocks that are read, from 0, or None where nothing says so."""
    stated = setting(backbone, "out_indices", list)
    if stated is not None and (
        sorted(set(stated)) != stated or len(stated) != 4 or not 0 <= stated[0] <= stated[3] < depth
    ):
        raise ValueError(
            f"out_indices in the config should name four of the {depth} blocks, from 0, got {stated[:50]}."
        )
    return None if stated is None else tuple(stated)


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
    fields = _fields(arrays, backbone, options)
    own, auxiliary = mmsegmentation_heads.read_options(head, arrays, config)
    taps = _taps(backbone, fields["depth"])
    own |= {} if taps is None else {"taps": taps}
    resample = setting(backbone, "interpolate_mode", str) or "bicubic"
    channels = need(arrays, f"{_PATCHES}.weight", 4).shape[1]
    usual = (IMAGENET_MEAN, IMAGENET_STD)
    fields |= normalisation(_stated_constants(settings), usual, channels, options)
    stated, patch = stated_pair(backbone, "img_size"), fields["patch_size"]
    hint = hint_grid(options, patch, None if stated is None else list(stated))
    shape = grid(need(arrays, "backbone.pos_embed", 3).shape[1] - 1, hint, options)
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
        pixels(shape, patch),
        encoder_map(fields["depth"], fields["class_token"], fields["final_norm"]),
        inside,
        None,
        channels,
        resample=resample,
        dense=Dense(own, classes, names, colors, auxiliary, entries, outside, head),
    )


def check(model: SegmentationModel) -> None:
    """ValueError, with each reason, for a model that mmsegmentation does not have."""
    if model.head_name not in mmsegmentation_heads.AUXILIARY:
        raise ValueError(
            f'The format "mmsegmentation" cannot express a segmentation model with the head "{model.head_name}", only'
            f' with {", ".join(mmsegmentation_heads.AUXILIARY)}. format="keras" saves every model.'
        )
    CAPABILITIES.check(model.get_encoder())
    taps, owners = list(model.decoder.taps), [layer for layer in model.decoder.layers if hasattr(layer, "norm")]
    problems = [
        (any(layer.norm == "group" for layer in owners), 'norm="group" (batch normalisation)'),
        (taps != sorted(set(taps)), f"taps={tuple(taps)} (in rising order)"),
    ]
    refuse("mmsegmentation", "model", problems)


def to_arrays(model: SegmentationModel, weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The `state_dict` of a model that `check` accepts; `weights`, {path: array}, are those of encoder and heads."""
    spec, is_normed = model.spec, bool(model.decoder.normalised)
    if not is_normed:  # no code reads them
        weights = {path: a for path, a in weights.items() if not path.startswith("encoder_norm/")}
    options = mmsegmentation_heads.map_options(model)
    entries = encoder_map(spec.depth, bool(spec.class_token), is_normed)
    entries |= mmsegmentation_heads.head_map(model.head_name, options, model.auxiliary > 0)
    arrays = pack(entries, weights)
    if not spec.class_token:
        arrays["backbone.cls_token"] = np.zeros((1, 1, spec.width), "float32")
    return {**arrays, **batch_norm_counters(arrays)}


def _backbone(model):
    """The config of the backbone."""
    spec = model.spec
    return {
        "type": "VisionTransformer",
        "img_size": list(model.image_size),
        "patch_size": spec.patch_size[0],
        "in_channels": model.channels,
        "embed_dims": spec.width,
        "num_layers": spec.depth,
        "num_heads": spec.heads,
        "mlp_ratio": spec.mlp_dim // spec.width,
        "out_indices": list(model.decoder.taps),
        "with_cls_token": bool(spec.class_token),
        "final_norm": bool(model.decoder.normalised),
        "norm_cfg": {"type": "LN", "eps": spec.epsilon},
        "act_cfg": {"type": "GELU"},
        "interpolate_mode": "bicubic",
    }


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
