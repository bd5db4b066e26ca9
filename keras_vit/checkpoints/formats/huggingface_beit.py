"""Hugging Face's BeitForSemanticSegmentation: a ViT with a bias per offset in each attention, and UPerNet."""

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_vit.checkpoints.formats import config_json
from keras_vit.checkpoints.formats.capabilities import ANY, Capabilities, refuse
from keras_vit.checkpoints.formats.huggingface import VERSION
from keras_vit.checkpoints.formats.huggingface_config import (
    ACTIVATIONS,
    check_whole,
    epsilon,
    labels,
    mlp_activation,
    normalisation,
    preprocessing,
)
from keras_vit.checkpoints.formats.mmsegmentation_heads import conv_block, upernet_map
from keras_vit.checkpoints.formats.name_map import (
    Entry,
    NameMap,
    batch_norm_counters,
    biases_without_key,
    conv,
    linear,
    pack,
    same,
    torch_batch_norm,
    torch_dense,
    torch_enlargement,
    torch_norm,
    torch_pointwise,
)
from keras_vit.checkpoints.formats.parsed import (
    Dense,
    ParsedCheckpoint,
    check_agreement,
    depth,
    heads,
    need,
    pixels,
    setting,
    stated_pair,
)
from keras_vit.segmentation.heads.upernet import PyramidNeck
from keras_vit.segmentation.segmentation_model import SegmentationModel

_BLOCK = "beit.encoder.layer."
_TABLE = "attention.attention.relative_position_bias.relative_position_bias_table"
_BINS = (1, 2, 3, 6)
CAPABILITIES = Capabilities(
    "huggingface",
    {
        **dict.fromkeys(("patch_size", "depth", "width", "mlp_dim", "heads", "layer_scale"), ANY),
        "class_token": (True,),
        "positions": ("relative2d",),
        "pool": ("token", "gap"),
        "final_norm": (True, False),
        # In config.json and preprocessor_config.json:
        "mlp_activation": tuple(dict.fromkeys(ACTIVATIONS.values())),
        **dict.fromkeys(("epsilon", "mean", "std"), ANY),
    },
)


def _offsets(ours: str) -> Entry:
    """The bias per offset, row by row, and the three rows of the class token."""
    paths = (f"{ours}/bias", f"{ours}/prefix_bias")
    return Entry(
        paths,
        lambda bias, rows: np.concatenate([bias.reshape(-1, bias.shape[-1]), rows]),
        lambda a, shapes: [a[:-3].reshape(shapes[0]), a[-3:]],
    )


def _block_map(theirs: str, ours: str, scaled: bool) -> NameMap:
    attention = f"{theirs}attention.attention"
    entries = {
        **torch_norm(f"{theirs}layernorm_before", f"{ours}/attention_norm"),
        **torch_dense(f"{attention}.query", f"{ours}/attention/query"),
        f"{attention}.key.weight": linear(f"{ours}/attention/key/kernel"),
        f"{attention}.value.weight": linear(f"{ours}/attention/value/kernel"),
        f"{attention}.value.bias": biases_without_key(f"{ours}/attention"),
        f"{theirs}{_TABLE}": _offsets(f"{ours}/attention/relative2d"),
        **torch_dense(f"{theirs}attention.output.dense", f"{ours}/attention/out"),
        **torch_norm(f"{theirs}layernorm_after", f"{ours}/mlp_norm"),
        **torch_dense(f"{theirs}intermediate.dense", f"{ours}/mlp/hidden"),
        **torch_dense(f"{theirs}output.dense", f"{ours}/mlp/out"),
    }
    scales = (("lambda_1", "attention_scale"), ("lambda_2", "mlp_scale")) if scaled else ()
    return entries | {f"{theirs}{name}": same(f"{ours}/{scale}/gamma") for name, scale in scales}


def encoder_map(fields: Mapping[str, Any]) -> NameMap:
    """{name: Entry} of the encoder; `fields` are the spec's."""
    entries = {
        "beit.embeddings.cls_token": same("class_token/tokens"),
        "beit.embeddings.patch_embeddings.projection.weight": conv("patch_encoder/kernel"),
        "beit.embeddings.patch_embeddings.projection.bias": same("patch_encoder/bias"),
    }
    for i in range(fields["depth"]):
        entries |= _block_map(f"{_BLOCK}{i}.", f"block_{i:02d}", fields["layer_scale"] is not None)
    return entries | (torch_norm("beit.layernorm", "encoder_norm") if fields["final_norm"] else {})


def head_map(bins: tuple[int, ...], auxiliary: bool) -> NameMap:
    """{name: Entry} of neck, head and auxiliary head."""
    entries = {
        **torch_enlargement("fpn1.0", "neck/resize_0a"),
        **torch_batch_norm("fpn1.1", "neck/norm"),
        **torch_enlargement("fpn1.3", "neck/resize_0b"),
        **torch_enlargement("fpn2.0", "neck/resize_1"),
        **upernet_map(bins),
        **torch_pointwise("decode_head.classifier", "head/classifier/linear"),
    }
    if auxiliary:
        entries |= conv_block("auxiliary_head.convs.0", "auxiliary_0/conv_0")
        entries |= torch_pointwise("auxiliary_head.classifier", "auxiliary_0/classifier/linear")
    return entries


def _fields(arrays, config, options):
    """The fields of the spec, without the normalisation of images."""
    w = need(arrays, "beit.embeddings.patch_embeddings.projection.weight", 4)
    shown = need(arrays, f"{_BLOCK}0.{_TABLE}", 2).shape[1]
    k, _ = heads(w.shape[0], options, shown)
    check_agreement([("num_attention_heads", setting(config, "num_attention_heads", int), shown)])
    return {
        "patch_size": w.shape[2:],
        "depth": depth(arrays, rf"{re.escape(_BLOCK)}(\d+)\."),
        "width": w.shape[0],
        "heads": k,
        "mlp_dim": need(arrays, f"{_BLOCK}0.intermediate.dense.weight", 2).shape[0],
        "class_token": True,
        "positions": "relative2d",
        "layer_scale": 0.1 if f"{_BLOCK}0.lambda_1" in arrays else None,
        "mlp_activation": mlp_activation(config, "beit"),
        "epsilon": epsilon(config, 1e-12),
        "final_norm": "beit.layernorm.weight" in arrays,
        "pool": "token",
    }


def _grid(arrays, config, patch):
    """The patch grid (h, w): config.json's, or that of a square image; ValueError if the tables have another."""
    rows, stated = need(arrays, f"{_BLOCK}0.{_TABLE}", 2).shape[0] - 3, stated_pair(config, "image_size")
    side = (math.isqrt(max(rows, 0)) + 1) // 2
    h, w = (side, side) if stated is None else (stated[0] // patch[0], stated[1] // patch[1])
    check_agreement([("the number of offsets, by image_size,", (2 * h - 1) * (2 * w - 1), rows)])
    return h, w


def _taps(config, count):
    """The blocks that are read, from 0; None without config.json. In out_indices, 1 is what enters the first block."""
    stated = setting(config, "out_indices", list)
    taps = None if stated is None else [i - 2 if type(i) is int else -1 for i in stated]
    if taps is not None and (sorted(set(taps)) != taps or len(taps) != 4 or not 0 <= taps[0] <= taps[3] < count - 1):
        raise ValueError(
            f"out_indices in config.json should name the outputs of four of the {count} blocks, from 2 to {count},"
            f" in order, got {stated[:50]}."
        )
    return None if taps is None else tuple(taps)


def parse(contents, options: dict) -> ParsedCheckpoint:
    """Parses a folder or file with names that `matches` accepts; arguments and errors as in timm.parse."""
    config = contents.config
    check_whole(config, "the blocks that its head reads (out_indices) and its pool_scales")
    arrays = {name: a for name, a in contents.arrays.items() if name != "beit.embeddings.mask_token"}
    rows = [("model_type", setting(config, "model_type", str), "beit")]
    for name in ("use_shared_relative_position_bias", "use_absolute_position_embeddings", "auxiliary_concat_input"):
        rows.append((name, setting(config, name, bool), False))
    check_agreement(rows)
    fields = _fields(arrays, config, options)
    channels = need(arrays, "beit.embeddings.patch_embeddings.projection.weight", 4).shape[1]
    fields |= normalisation(contents.preprocessor, (127.5, 127.5), channels, options)
    classes = need(arrays, "decode_head.classifier.weight", 4).shape[0]
    bins = tuple(setting(config, "pool_scales", list) or _BINS)
    own = {"width": need(arrays, "decode_head.bottleneck.conv.weight", 4).shape[0], "bins": bins, "dropout": 0.0}
    own |= {} if (taps := _taps(config, fields["depth"])) is None else {"taps": taps}
    auxiliary = 0.0
    if "auxiliary_head.classifier.weight" in arrays:
        auxiliary = float(setting(config, "auxiliary_loss_weight", float) or 0.4)
        own["auxiliary_width"] = need(arrays, "auxiliary_head.convs.0.conv.weight", 4).shape[0]
    inside = {name: a for name, a in arrays.items() if name.startswith("beit.")}
    outside = {name: a for name, a in arrays.items() if name not in inside}
    dense = (own, classes, labels(config, classes), None, auxiliary, head_map(bins, auxiliary > 0), outside, "upernet")
    return ParsedCheckpoint(
        "ViT",
        fields,
        pixels(_grid(arrays, config, fields["patch_size"]), fields["patch_size"]),
        encoder_map(fields),
        inside,
        None,
        channels,
        resample="bilinear",
        preprocessing=preprocessing(contents.preprocessor),
        dense=Dense(*dense),
    )


def check(model: SegmentationModel) -> None:
    """ValueError, with each reason, for a UPerNet that BeitForSemanticSegmentation does not express."""
    CAPABILITIES.check(model.get_encoder())
    head, taps, (h, w) = model.head, list(model.decoder.taps), model.spec.patch_size
    problems = [
        (h != w, f"patches that are not square, {(h, w)}"),
        (not isinstance(model.decoder.neck, PyramidNeck), 'pyramid="bilinear" ("transposed")'),
        (head.norm != "batch", f'norm="{head.norm}" (batch normalisation)'),
        (head.width != model.spec.width, f"width={head.width} (the encoder's, {model.spec.width})"),
        (taps != sorted(set(taps)), f"taps={tuple(taps)} (in rising order)"),
        (taps[-1] == model.spec.depth - 1, f"taps={tuple(taps)} (out_indices cannot name the last block)"),
        (bool(model.decoder.normalised), "last_normalised=True"),
        (any(place != 2 for place, _ in model.decoder.auxiliary), "an auxiliary_level other than 2"),
    ]
    refuse("huggingface", "model", problems)


def to_arrays(model: SegmentationModel, weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays of the file of a model that `check` accepts; `weights`, {path: array}, of encoder, neck and heads."""
    fields = {name: getattr(model.spec, name) for name in ("depth", "layer_scale", "final_norm")}
    arrays = pack({**encoder_map(fields), **head_map(model.head.bins, model.auxiliary > 0)}, weights)
    return {**arrays, **batch_norm_counters(arrays)}


def to_config(model: SegmentationModel) -> dict[str, Any]:
    """config.json of a model that `check` accepts."""
    spec, (h, w) = model.spec, model.image_size
    others = [layer for _, layer in model.decoder.auxiliary]
    activation = {ours: act for act, ours in reversed(ACTIVATIONS.items())}[spec.mlp_activation]
    return {
        "architectures": ["BeitForSemanticSegmentation"],
        "model_type": "beit",
        "transformers_version": VERSION,
        "hidden_size": spec.width,
        "num_hidden_layers": spec.depth,
        "num_attention_heads": spec.heads,
        "intermediate_size": spec.mlp_dim,
        "image_size": h if h == w else [h, w],
        "patch_size": spec.patch_size[0],
        "num_channels": model.channels,
        "hidden_act": activation,
        "layer_norm_eps": spec.epsilon,
        "layer_scale_init_value": spec.layer_scale or 0.0,
        "use_mean_pooling": not spec.final_norm,
        "use_relative_position_bias": True,
        "use_shared_relative_position_bias": False,
        "use_absolute_position_embeddings": False,
        "out_indices": [i + 2 for i in model.decoder.taps],
        "pool_scales": list(model.head.bins),
        "use_auxiliary_head": bool(others),
        "auxiliary_concat_input": False,
        **({"auxiliary_channels": others[0].width, "auxiliary_loss_weight": model.auxiliary} if others else {}),
        **config_json.id_labels(model),
    }


to_preprocessor = config_json.preprocessor
