"""Hugging Face's EoMT: queries and the mask module behind a DINOv2 with registers.

Its class token has no position, which makes it one more register: the encoder has `class_token=False` and one register
more than `num_register_tokens`.
"""

import dataclasses
import types
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_vit.checkpoints.formats import config_json, huggingface, huggingface_names
from keras_vit.checkpoints.formats.capabilities import refuse
from keras_vit.checkpoints.formats.gates import join_gates
from keras_vit.checkpoints.formats.huggingface_config import (
    check_config,
    labels,
    mlp_activation,
    normalisation,
)
from keras_vit.checkpoints.formats.name_map import (
    Entry,
    NameMap,
    enlargement,
    pack,
    positions,
    same,
    torch_dense,
    torch_norm,
)
from keras_vit.checkpoints.formats.parsed import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Dense,
    ParsedCheckpoint,
    check_agreement,
    grid,
    hint_grid,
    need,
    pixels,
    setting,
    stated_pair,
)
from keras_vit.segmentation.segmentation_model import SegmentationModel

EOMT = "eomt"  # model_type
_CLASS, _REGISTERS = "embeddings.cls_token", "embeddings.register_tokens"
_PATCH, _TABLE = "embeddings.patch_embeddings.projection.weight", "embeddings.position_embeddings.weight"
_MASKED = "attn_mask_probs"  # probability of masked attention in each of the last blocks
_IDLE = ("criterion.empty_weight", _MASKED)  # buffers that inference does not read
_LIKE = "dinov2_with_registers"
_ATTENTION = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "out_proj"}
_NAMES = dataclasses.replace(
    huggingface_names.IN_MEMORY[_LIKE],
    prefix="",
    block="layers",
    attention={ours: f"attention.{theirs}" for ours, theirs in _ATTENTION.items()},
)


def _depthwise(ours: str) -> Entry:
    """torch's depthwise convolution: (d, 1, h, w) where ours is (h, w, d, 1)."""
    return Entry((ours,), lambda a: a.transpose(2, 3, 0, 1), lambda a, shapes: [a.transpose(2, 3, 0, 1)])


def head_map(scales: int) -> NameMap:
    """{name: Entry} of queries and mask module."""
    entries: NameMap = {"query.weight": same("neck/queries"), **torch_dense("class_predictor", "head/classifier")}
    for i in range(3):
        entries |= torch_dense(f"mask_head.fc{i + 1}", f"head/mlp_{i}")
    for i in range(scales):
        theirs, ours = f"upscale_block.block.{i}", f"head/scale_{i}"
        entries[f"{theirs}.conv1.weight"] = enlargement(f"{ours}/enlargement/kernel")
        entries[f"{theirs}.conv1.bias"] = same(f"{ours}/enlargement/bias")
        entries[f"{theirs}.conv2.weight"] = _depthwise(f"{ours}/depthwise/kernel")
        entries |= torch_norm(f"{theirs}.layernorm2d", f"{ours}/norm")
    return entries


def _encoder_map(spec: Mapping) -> NameMap:
    """{name: Entry} of the encoder, its class token among the registers."""
    entries = huggingface_names.name_map(spec, None, _LIKE, {_LIKE: _NAMES})
    del entries["embeddings.position_embeddings"]
    return {**entries, _TABLE: positions("position_embedding/embedding", 0, (-1, spec["width"]))}


def _options(config, arrays, fields):
    """The options of the head "eomt"."""
    scales = sum(name.startswith("upscale_block.") and name.endswith("conv1.weight") for name in arrays)
    blocks = setting(config, "num_blocks", int)
    if blocks is None:
        blocks = len(need(arrays, _MASKED, 1))
    queries = len(need(arrays, "query.weight", 2))
    check_agreement(
        [
            ("num_queries", setting(config, "num_queries", int), queries),
            ("num_upscale_blocks", setting(config, "num_upscale_blocks", int), scales),
            ("num_hidden_layers", setting(config, "num_hidden_layers", int), fields["depth"]),
            ("num_register_tokens", setting(config, "num_register_tokens", int), fields["registers"] - 1),
        ]
    )
    return {"queries": queries, "blocks": blocks, "scales": scales}


def _encoder(contents, options):
    """The ParsedCheckpoint of the encoder alone."""
    config, arrays, preprocessor = contents.config, contents.arrays, contents.preprocessor
    fields = huggingface.read_fields(arrays, _NAMES, _LIKE, {**config, "num_register_tokens": None}, options)
    w = need(arrays, _PATCH, 4)
    usual = (IMAGENET_MEAN, IMAGENET_STD)
    fields.update(normalisation(preprocessor, usual, w.shape[1], options))
    stated = stated_pair(config, "image_size")
    hint = hint_grid(options, fields["patch_size"], None if stated is None else list(stated))
    size = pixels(grid(len(need(arrays, _TABLE, 2)), hint, options), fields["patch_size"])
    check_config(config, config, _LIKE, fields, size, None, w.shape[1])
    entries = _encoder_map(fields)
    return ParsedCheckpoint("ViT", fields, size, entries, arrays, None, w.shape[1], resample="timm")


def parse(contents, options: dict) -> ParsedCheckpoint:
    """Parses a folder or file with names that `matches` accepts; arguments and errors as in timm.parse."""
    config, arrays = contents.config, contents.arrays
    check_agreement([("model_type", setting(config, "model_type", str), EOMT)])
    if mlp_activation(config, EOMT) != "gelu":
        raise ValueError(f"config.json has hidden_act={config['hidden_act']!r}, with which EoMT is not implemented.")
    of_head = ("query.", "class_predictor.", "mask_head.", "upscale_block.")
    theirs = {name: a for name, a in arrays.items() if not name.startswith(of_head) and name not in (*_IDLE, _CLASS)}
    theirs[_REGISTERS] = np.concatenate([need(arrays, _CLASS, 3), need(arrays, _REGISTERS, 3)], axis=1)
    encoder = _encoder(dataclasses.replace(contents, arrays=join_gates(theirs, *huggingface_names.GATES)), options)
    others = {name: a for name, a in arrays.items() if name.startswith(of_head)}
    head = _options(config, arrays, encoder.fields)
    classes = need(arrays, "class_predictor.weight", 2).shape[0] - 1
    if np.any(arrays.get(_MASKED, 0)):
        encoder.assumptions.append(
            f"{_MASKED} is above 0, so transformers masks the attention of queries in inference; here it is not masked."
        )
    names = labels(config, classes)
    dense = Dense(head, classes, names, None, 0.0, head_map(head["scales"]), others, head="eomt")
    return dataclasses.replace(encoder, dense=dense)


def _as_dinov2(model):
    """What describes the encoder as the DINOv2 that the format takes it for, its first register the class token."""
    spec = dataclasses.replace(model.spec, class_token=True, registers=model.spec.registers - 1, pool="token")
    return types.SimpleNamespace(spec=spec, image_size=model.image_size, channels=model.channels, classes=None)


def check(model: SegmentationModel) -> None:
    """ValueError, with each reason, for a model that EomtForUniversalSegmentation does not express."""
    spec = model.spec
    problems = [
        (
            spec.class_token or spec.registers < 1,
            "a class token with a position (class_token=False, registers=1 or more)",
        ),
        (spec.layer_scale is None, "a model without layer_scale"),
        (not spec.qkv_bias, "qkv_bias=False"),
        (spec.mlp_activation != "gelu", f'mlp_activation="{spec.mlp_activation}" ("gelu")'),
    ]
    refuse("huggingface", "EoMT", problems)
    huggingface.CAPABILITIES.check(_as_dinov2(model))


def to_arrays(model: SegmentationModel, weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays of the file, of a model that `check` accepts; `weights` are those of encoder, neck and head."""
    head = model.decoder.head
    entries = _encoder_map(dataclasses.asdict(model.spec)) | head_map(head.scales)
    arrays = pack(entries, {path: a for path, a in weights.items() if not path.endswith("/step")})
    tokens = arrays.pop(_REGISTERS)
    weight = np.append(np.ones(model.classes, "float32"), np.float32(0.1))
    idle = {_IDLE[0]: weight, _MASKED: np.zeros(len(model.decoder.taps), "float32")}
    return {**arrays, _CLASS: tokens[:, :1].copy(), _REGISTERS: tokens[:, 1:].copy(), **idle}


def to_config(model: SegmentationModel) -> dict[str, Any]:
    """config.json of a model that `check` accepts."""
    head = model.decoder.head
    own = {
        "architectures": ["EomtForUniversalSegmentation"],
        "model_type": EOMT,
        "num_register_tokens": model.spec.registers - 1,
        "num_blocks": len(model.decoder.taps),
        "num_queries": head.queries,
        "num_upscale_blocks": head.scales,
    }
    encoder = config_json.huggingface(_as_dinov2(model))
    del encoder["qkv_bias"]  # always
    return {**encoder, **own, **config_json.id_labels(model)}


def to_preprocessor(model: SegmentationModel) -> dict[str, Any]:
    """preprocessor_config.json."""
    return {**config_json.preprocessor(model), "image_processor_type": "EomtImageProcessor"}
