"""Hugging Face's YOLOS: detection tokens in a ViT; their positions stand in one table with those of the patches."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_vit.checkpoints.formats import config_json, huggingface, huggingface_names
from keras_vit.checkpoints.formats.capabilities import refuse
from keras_vit.checkpoints.formats.huggingface_config import (
    check_config,
    labels,
    mlp_activation,
    normalisation,
)
from keras_vit.checkpoints.formats.name_map import NameMap, pack, positions, same, torch_dense
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

YOLOS = "yolos"  # model_type
_TOKENS, _TABLE = "vit.embeddings.detection_tokens", "vit.embeddings.position_embeddings"
_MIDDLE = ("vit.encoder.mid_position_embeddings", "vit.encoder.interpolation.mid_position_embeddings")
_PATCH = "vit.embeddings.patch_embeddings.projection.weight"
_LIKE = "vit"
_NAMES = {_LIKE: huggingface_names.IN_FILES[_LIKE]}
_HEADS = {"class": "class_labels_classifier", "box": "bbox_predictor"}


def _split(arrays):
    """(the encoder's arrays, those of neck and head); tables of positions are cut in two, and one per block."""
    tokens, table = need(arrays, _TOKENS, 3), need(arrays, _TABLE, 3)
    q = tokens.shape[1]
    middle = next((need(arrays, name, 4) for name in _MIDDLE if name in arrays), np.zeros((0, *table.shape)))
    heads = tuple(f"{name}." for name in _HEADS.values())
    encoder = {name: a for name, a in arrays.items() if not name.startswith((*heads, *_MIDDLE, _TOKENS, _TABLE))}
    others = {name: a for name, a in arrays.items() if name.startswith(heads)} | {_TOKENS: tokens}
    for i, rows in enumerate([table, *middle]):
        encoder[f"positions.{i}"], others[f"detection_positions.{i}"] = rows[:, :-q], rows[0, -q:]
    return encoder, others


def _head_map(blocks: int) -> NameMap:
    """{name as `_split` makes it: Entry} of neck and head; `blocks` have positions."""
    entries: NameMap = {_TOKENS: same("neck/tokens"), "detection_positions.0": same("neck/positions")}
    for ours, theirs in _HEADS.items():
        for i in range(3):
            entries |= torch_dense(f"{theirs}.layers.{i}", f"head/{ours}_{i}")
    added = (f"detection_positions_{i:02d}/positions" for i in range(1, blocks))
    return entries | {f"detection_positions.{i}": same(path) for i, path in enumerate(added, 1)}


def _encoder_map(spec: Mapping) -> NameMap:
    """{name as `_split` makes it: Entry} of the encoder."""
    entries = huggingface_names.name_map(spec, None, _LIKE, _NAMES)
    del entries[_TABLE]
    if spec["positions_at"] == "stem":
        return {**entries, "positions.0": positions("position_embedding/embedding", 0)}
    paths = (f"position_embedding_{i:02d}/embedding" for i in range(spec["depth"]))
    return entries | {f"positions.{i}": positions(path, 0) for i, path in enumerate(paths)}


def parse(contents, options: dict) -> ParsedCheckpoint:
    """Parses a folder or file with names that `matches` accepts; arguments and errors as in timm.parse."""
    config = contents.config
    check_agreement([("model_type", setting(config, "model_type", str), YOLOS)])
    if mlp_activation(config, _LIKE) != "gelu":
        raise ValueError(f"config.json has hidden_act={config['hidden_act']!r}, with which YOLOS is not implemented.")
    arrays, others = _split(contents.arrays)
    fields = huggingface.read_fields(arrays, _NAMES[_LIKE], _LIKE, config, options)
    tables = sum(name.startswith("positions.") for name in arrays)
    fields["positions_at"] = "stem" if tables == 1 else "every"
    channels = need(arrays, _PATCH, 4).shape[1]
    fields.update(normalisation(contents.preprocessor, (IMAGENET_MEAN, IMAGENET_STD), channels, options))
    stated = stated_pair(config, "image_size")
    hint = hint_grid(options, fields["patch_size"], None if stated is None else list(stated))
    size = pixels(grid(need(arrays, "positions.0", 3).shape[1] - 1, hint, options), fields["patch_size"])
    whole = None if stated is None else tuple(s // p * p for s, p in zip(stated, fields["patch_size"]))
    check_config(config, config, _LIKE, fields, stated if whole == size else size, None, channels)
    classes = need(others, f"{_HEADS['class']}.layers.2.weight", 2).shape[0] - 1
    count = need(others, _TOKENS, 3).shape[1]
    check_agreement(
        [
            ("num_detection_tokens", setting(config, "num_detection_tokens", int), count),
            ("use_mid_position_embeddings", setting(config, "use_mid_position_embeddings", bool), tables > 1),
        ]
    )
    others[_TOKENS] = others[_TOKENS][0]
    dense = Dense({"tokens": count}, classes, labels(config, classes), None, 0.0, _head_map(tables), others, head=YOLOS)
    return ParsedCheckpoint(
        "ViT",
        fields,
        size,
        _encoder_map(fields),
        arrays,
        None,
        channels,
        resample="bicubic",
        dense=dense,
    )


def _as_vit(model):
    """The encoder, described as the ViT that the format takes it for."""
    spec = dataclasses.replace(model.spec, positions_at="stem", pool="token")
    return dataclasses.make_dataclass("Described", ["spec", "image_size", "channels", "classes"])(
        spec, model.image_size, model.channels, None
    )


def check(model: Any) -> None:
    """ValueError, with each reason, for a model that YolosForObjectDetection does not express."""
    spec = model.spec
    problems = [
        (not spec.class_token, "a model without a class token"),
        (bool(spec.registers), f"registers={spec.registers}"),
        (spec.distillation_token, "a distillation token"),
        (spec.layer_scale is not None, "layer_scale"),
        (spec.mlp_form != "plain", f'mlp_form="{spec.mlp_form}"'),
        (spec.mlp_activation != "gelu", f'mlp_activation="{spec.mlp_activation}" ("gelu")'),
    ]
    refuse("huggingface", "YOLOS", problems)
    huggingface.CAPABILITIES.check(_as_vit(model))


def to_arrays(model: Any, weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays of the file, of a model that `check` accepts; `weights` are those of encoder, neck and head."""
    spec = dataclasses.asdict(model.spec)
    tables = 1 if spec["positions_at"] == "stem" else spec["depth"]
    found = pack(_encoder_map(spec) | _head_map(tables), weights)
    rows = [
        np.concatenate([found.pop(f"positions.{i}"), found.pop(f"detection_positions.{i}")[None]], axis=1)
        for i in range(tables)
    ]
    found |= {_TOKENS: found[_TOKENS][None], _TABLE: rows[0]}
    return found if tables == 1 else {**found, _MIDDLE[0]: np.stack(rows[1:])}


def to_config(model: Any) -> dict[str, Any]:
    """config.json of a model that `check` accepts."""
    own = {
        "architectures": ["YolosForObjectDetection"],
        "model_type": YOLOS,
        "image_size": list(model.image_size),
        "num_detection_tokens": model.decoder.neck.count,
        "use_mid_position_embeddings": model.spec.positions_at == "every",
    }
    return {**config_json.huggingface(_as_vit(model)), **own, **config_json.id_labels(model)}


def to_preprocessor(model: Any) -> dict[str, Any]:
    """preprocessor_config.json."""
    return {**config_json.preprocessor(model), "image_processor_type": "YolosImageProcessor"}
