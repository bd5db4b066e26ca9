"""Hugging Face's BeitForSemanticSegmentation: a ViT with a bias per offset in each attention, and UPerNet."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_vit.checkpoints.formats import huggingface_config
from keras_vit.checkpoints.formats.capabilities import Capabilities, any_of, refuse
from keras_vit.checkpoints.formats.huggingface import IN_FILES
from keras_vit.checkpoints.formats.mmsegmentation_heads import AUXILIARY_UPERNET, upernet_map
from keras_vit.checkpoints.formats.name_map import Entry, NameMap, Names, batch_norm_counters, pack
from keras_vit.checkpoints.formats.parsed import HALF, Dense, ParsedCheckpoint, heads, pixels
from keras_vit.checkpoints.formats.settings import (
    Settings,
    check_agreement,
    four_blocks,
    model_facts,
    setting,
    stated_pair,
)
from keras_vit.checkpoints.formats.shown import Shown, need
from keras_vit.segmentation.heads.upernet import PyramidNeck
from keras_vit.segmentation.segmentation_model import SegmentationModel

_TABLE = "attention.attention.relative_position_bias.relative_position_bias_table"
_BINS = (1, 2, 3, 6)
CAPABILITIES = Capabilities(
    "huggingface",
    {
        **any_of("patch_size depth width mlp_dim heads layer_scale final_norm"),
        "class_token": (True,),
        "positions": ("relative2d",),
        "pool": ("token", "gap"),
        # In config.json and preprocessor_config.json:
        "mlp_activation": tuple(dict.fromkeys(huggingface_config.ACTIVATIONS.values())),
        **any_of("epsilon mean std"),
    },
)


def _offsets(fields: Any, *ours: str) -> Entry:
    """The bias per offset, row by row, and the three rows of the class token."""
    return Entry(
        ours,
        lambda bias, rows: np.concatenate([bias.reshape(-1, bias.shape[-1]), rows]),
        lambda a, shapes: [a[:-3].reshape(shapes[0]), a[-3:]],
    )


_SPELLED = IN_FILES["vit"].but("beit.", ("keyless",), table="", scale1="lambda_1", scale2="lambda_2")
_BIASES = Names(
    f"beit.encoder.layer.{{i}}.{_TABLE} block_{{i:02d}}/attention/relative2d/<bias,prefix_bias> offsets",
    {"offsets": _offsets},
)
_HEAD = Names(
    """
    fpn1.0                     neck/resize_0a                 enlarging
    fpn1.1                     neck/norm                      batch_norm
    fpn1.3                     neck/resize_0b                 enlarging
    fpn2.0                     neck/resize_1                  enlarging
    decode_head.classifier     head/classifier/linear         pixelwise
    auxiliary_head.classifier  auxiliary_0/classifier/linear  pixelwise   if auxiliary
    """
)
_CONFIG = Settings(
    """
    hidden_size                         width         int
    num_hidden_layers                   depth         int
    num_attention_heads                 heads         int
    intermediate_size                   mlp_dim       int
    image_size                          image_size    pair
    patch_size                          patch_size    pair
    num_channels                        channels      int
    hidden_act                          act           text
    layer_norm_eps                      epsilon       number
    layer_scale_init_value              scale         number
    use_mean_pooling                    pools         bool
    use_relative_position_bias          relative      bool
    use_shared_relative_position_bias   shared        bool
    use_absolute_position_embeddings    absolute      bool
    out_indices                         stages        numbers
    pool_scales                         bins          numbers
    use_auxiliary_head                  auxiliary     bool
    auxiliary_concat_input              concatenates  bool
    """
)
_FIXED = {"shared": False, "absolute": False, "concatenates": False}


def _encoder_map(fields):
    return _SPELLED.map({**fields, "qkv_bias": True}) | _BIASES.map(fields)


def _head_map(bins: tuple[int, ...], auxiliary: bool) -> NameMap:
    """{name: Entry} of neck, head and auxiliary head."""
    return _HEAD.map(auxiliary=auxiliary) | upernet_map(bins) | (AUXILIARY_UPERNET.map() if auxiliary else {})


def _fields(arrays, config, options):
    """The fields of the spec, without the normalisation of images."""
    shown = Shown(_SPELLED.names, arrays)
    by_tables = need(arrays, f"beit.encoder.layer.0.{_TABLE}", 2).shape[1]
    fields = shown.vit_fields()
    k, _ = heads(fields["width"], options, by_tables)
    check_agreement([("num_attention_heads", setting(config, "num_attention_heads", int), by_tables)])
    return {
        **fields,
        "heads": k,
        "key_bias": True,
        "class_token": True,
        "positions": "relative2d",
        "layer_scale": 0.1 if fields["layer_scale"] else None,
        "mlp_activation": huggingface_config.mlp_activation(config, "beit"),
        "epsilon": huggingface_config.epsilon(config, 1e-12),
        "pool": "token",
    }, shown.channels


def _grid(arrays, config, patch):
    """The patch grid (h, w): config.json's, or that of a square image; ValueError if the tables have another."""
    rows = need(arrays, f"beit.encoder.layer.0.{_TABLE}", 2).shape[0] - 3
    side, stated = (math.isqrt(max(rows, 0)) + 1) // 2, stated_pair(config, "image_size")
    h, w = (side, side) if stated is None else (stated[0] // patch[0], stated[1] // patch[1])
    check_agreement([("the number of offsets, by image_size,", (2 * h - 1) * (2 * w - 1), rows)])
    return h, w


def _taps(config, depth):
    """The blocks that are read, from 0; None without config.json. In out_indices, 1 is what enters the first block."""
    stated = four_blocks(config, "out_indices", 2, depth)
    return None if stated is None else tuple(i - 2 for i in stated)


def parse(contents: Any, options: Any) -> ParsedCheckpoint:
    """Parses a folder or file with these names; arguments and errors as in timm.parse."""
    config = contents.config
    huggingface_config.check_whole(config, "the blocks that its head reads (out_indices) and its pool_scales")
    arrays = {name: a for name, a in contents.arrays.items() if name != "beit.embeddings.mask_token"}
    kind = ("model_type", setting(config, "model_type", str), "beit")
    check_agreement([kind, *_CONFIG.compared(config, _FIXED)])
    fields, channels = _fields(arrays, config, options)
    fields |= huggingface_config.normalisation(contents.preprocessor, channels, options, HALF)
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
    names = huggingface_config.labels(config, classes)
    dense = Dense(own, classes, names, None, auxiliary, _head_map(bins, auxiliary > 0), outside, "upernet")
    return ParsedCheckpoint(
        "ViT",
        fields,
        pixels(_grid(arrays, config, fields["patch_size"]), fields["patch_size"]),
        _encoder_map(fields),
        inside,
        None,
        channels,
        resample="bilinear",
        preprocessing=huggingface_config.preprocessing(contents.preprocessor),
        dense=dense,
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


def write(model: Any, weights: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """(arrays, {config file: content}) of a model; ValueError for one that the format cannot express."""
    check(model)
    entries = _encoder_map(vars(model.spec)) | _head_map(model.head.bins, model.auxiliary > 0)
    return batch_norm_counters(pack(entries, weights)), huggingface_config.files(model, to_config(model))


def to_config(model: SegmentationModel) -> dict[str, Any]:
    """config.json of a model that `check` accepts."""
    spec, others = model.spec, [layer for _, layer in model.decoder.auxiliary]
    facts = model_facts(model, act=huggingface_config.hidden_act(spec), scale=spec.layer_scale or 0.0, **_FIXED)
    facts |= {"pools": not spec.final_norm, "relative": True, "stages": [i + 2 for i in model.decoder.taps]}
    facts |= {"bins": model.head.bins, "auxiliary": bool(others)}
    weight = {"auxiliary_channels": others[0].width, "auxiliary_loss_weight": model.auxiliary} if others else {}
    header = {"architectures": ["BeitForSemanticSegmentation"], "model_type": "beit"}
    header["transformers_version"] = huggingface_config.VERSION
    return {**header, **_CONFIG.written(facts), **weight, **huggingface_config.to_labels(model)}
