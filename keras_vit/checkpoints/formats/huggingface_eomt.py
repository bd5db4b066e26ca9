"""Hugging Face's EoMT: queries and the mask module behind a DINOv2 with registers.

Its class token has no position, which makes it one more register: the encoder has `class_token=False` and one register
more than `num_register_tokens`.
"""

import dataclasses
import types
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_vit.checkpoints.formats import huggingface, huggingface_config
from keras_vit.checkpoints.formats.capabilities import refuse
from keras_vit.checkpoints.formats.name_map import NameMap, Names, pack
from keras_vit.checkpoints.formats.parsed import Dense, ParsedCheckpoint, table_size
from keras_vit.checkpoints.formats.settings import Settings, check_agreement, setting, stated_pair
from keras_vit.checkpoints.formats.shown import Shown, need
from keras_vit.segmentation.segmentation_model import SegmentationModel

EOMT = "eomt"  # model_type
_CLASS, _REGISTERS = "embeddings.cls_token", "embeddings.register_tokens"
_TABLE = "position_embeddings.weight"
_MASKED = "attn_mask_probs"  # probability of masked attention in each of the last blocks
_IDLE = ("criterion.empty_weight", _MASKED)  # buffers that inference does not read
_LIKE = "dinov2_with_registers"
_PROJECTIONS = huggingface.PROJECTIONS | {"out": "attention.out_proj"}
_SPELLED = huggingface.IN_MEMORY[_LIKE].but("", ("flat", "apart"), block="layers", table=_TABLE, **_PROJECTIONS)
_HEAD = Names(
    """
    query.weight         neck/queries        same
    class_predictor      head/classifier     dense
    mask_head.fc<1,2,3>  head/mlp_<0,1,2>    dense
    """
)
_SCALE = Names(
    """
    upscale_block.block.{i}.conv1         head/scale_{i}/enlargement       enlarging
    upscale_block.block.{i}.conv2.weight  head/scale_{i}/depthwise/kernel  depthwise
    upscale_block.block.{i}.layernorm2d   head/scale_{i}/norm              norm
    """
)
_CONFIG = Settings(
    """
    num_register_tokens  registers  int
    num_blocks           blocks     int
    num_queries          queries    int
    num_upscale_blocks   scales     int
    """
)


def _head_map(scales: int) -> NameMap:
    """{name: Entry} of queries and mask module."""
    return _HEAD.map() | _SCALE.map(depth=scales)


def _options(config, arrays, fields):
    """The options of the head "eomt"."""
    scales = sum(name.startswith("upscale_block.") and name.endswith("conv1.weight") for name in arrays)
    blocks, queries = setting(config, "num_blocks", int), len(need(arrays, "query.weight", 2))
    if blocks is None:
        blocks = len(need(arrays, _MASKED, 1))
    facts = {"queries": queries, "scales": scales}
    check_agreement(_CONFIG.compared(config, {**facts, "registers": fields["registers"] - 1}))
    return {**facts, "blocks": blocks}


def _encoder(contents, arrays, options):
    """The ParsedCheckpoint of the encoder alone."""
    config, shown = contents.config, Shown(_SPELLED.names, arrays)
    fields = huggingface.read_fields(shown, _LIKE, config, options, registers=False)
    fields |= huggingface_config.normalisation(contents.preprocessor, shown.channels, options)
    rows, stated = len(need(arrays, f"embeddings.{_TABLE}", 2)), stated_pair(config, "image_size")
    size = table_size(rows, fields["patch_size"], stated, options)
    huggingface_config.check_config(config, config, _LIKE, fields, size, None, shown.channels)
    entries = _SPELLED.map(fields)
    return ParsedCheckpoint("ViT", fields, size, entries, arrays, None, shown.channels, resample="timm")


def parse(contents: Any, options: Any) -> ParsedCheckpoint:
    """Parses a folder or file with these names; arguments and errors as in timm.parse."""
    config, arrays = contents.config, contents.arrays
    check_agreement([("model_type", setting(config, "model_type", str), EOMT)])
    if huggingface_config.mlp_activation(config, EOMT) != "gelu":
        raise ValueError(f"config.json has hidden_act={config['hidden_act']!r}, with which EoMT is not implemented.")
    of_head = ("query.", "class_predictor.", "mask_head.", "upscale_block.")
    theirs = {name: a for name, a in arrays.items() if not name.startswith(of_head) and name not in (*_IDLE, _CLASS)}
    theirs[_REGISTERS] = np.concatenate([need(arrays, _CLASS, 3), need(arrays, _REGISTERS, 3)], axis=1)
    encoder = _encoder(contents, theirs, options)
    others = {name: a for name, a in arrays.items() if name.startswith(of_head)}
    head = _options(config, arrays, encoder.fields)
    classes = need(arrays, "class_predictor.weight", 2).shape[0] - 1
    if np.any(arrays.get(_MASKED, 0)):
        encoder.assumptions.append(
            f"{_MASKED} is above 0, so transformers masks the attention of queries in inference; here it is not masked."
        )
    names = huggingface_config.labels(config, classes)
    dense = Dense(head, classes, names, None, 0.0, _head_map(head["scales"]), others, head=EOMT)
    return dataclasses.replace(encoder, dense=dense)


def _as_dinov2(model):
    """What describes the encoder as the DINOv2 that the format takes it for, its first register the class token."""
    spec = dataclasses.replace(model.spec, class_token=True, registers=model.spec.registers - 1, pool="token")
    return types.SimpleNamespace(spec=spec, image_size=model.image_size, channels=model.channels, classes=None)


def check(model: SegmentationModel) -> None:
    """ValueError, with each reason, for a model that EomtForUniversalSegmentation does not express."""
    spec, activation = model.spec, f'mlp_activation="{model.spec.mlp_activation}" ("gelu")'
    placed = spec.class_token or spec.registers < 1
    problems = [
        (placed, "a class token with a position (class_token=False, registers=1 or more)"),
        (spec.layer_scale is None, "a model without layer_scale"),
        (not spec.qkv_bias, "qkv_bias=False"),
        (spec.mlp_activation != "gelu", activation),
    ]
    refuse("huggingface", "EoMT", problems)
    huggingface.CAPABILITIES.check(_as_dinov2(model))


def write(model: Any, weights: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """(arrays, {config file: content}) of a model; ValueError for one that the format cannot express."""
    check(model)
    entries = _SPELLED.map(vars(model.spec)) | _head_map(model.decoder.head.scales)
    arrays = pack(entries, {path: a for path, a in weights.items() if not path.endswith("/step")})
    tokens = arrays.pop(_REGISTERS)
    weight = np.append(np.ones(model.classes, "float32"), np.float32(0.1))
    idle = {_IDLE[0]: weight, _MASKED: np.zeros(len(model.decoder.taps), "float32")}
    arrays |= {_CLASS: tokens[:, :1].copy(), _REGISTERS: tokens[:, 1:].copy(), **idle}
    return arrays, huggingface_config.files(model, to_config(model), "EomtImageProcessor")


def to_config(model: SegmentationModel) -> dict[str, Any]:
    """config.json of a model that `check` accepts."""
    head, blocks = model.decoder.head, len(model.decoder.taps)
    facts = {"registers": model.spec.registers - 1, "blocks": blocks, "queries": head.queries, "scales": head.scales}
    own = {"architectures": ["EomtForUniversalSegmentation"], "model_type": EOMT, **_CONFIG.written(facts)}
    encoder = huggingface.to_config(_as_dinov2(model))
    del encoder["qkv_bias"]  # always
    return {**encoder, **own, **huggingface_config.to_labels(model)}
