"""Hugging Face's YOLOS: detection tokens in a ViT; their positions stand in one table with those of the patches."""

import dataclasses
import types
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_vit.checkpoints.formats import huggingface, huggingface_config
from keras_vit.checkpoints.formats.capabilities import refuse
from keras_vit.checkpoints.formats.name_map import Names, pack
from keras_vit.checkpoints.formats.parsed import Dense, ParsedCheckpoint, table_size
from keras_vit.checkpoints.formats.settings import Settings, check_agreement, setting, stated_pair
from keras_vit.checkpoints.formats.shown import Shown, need

YOLOS = "yolos"  # model_type
_TOKENS, _TABLE = "vit.embeddings.detection_tokens", "vit.embeddings.position_embeddings"
_MIDDLE = ("vit.encoder.mid_position_embeddings", "vit.encoder.interpolation.mid_position_embeddings")
_LIKE = "vit"
_SPELLED = huggingface.IN_FILES[_LIKE].but(table="")
# The tables' names are those that `_split` makes.
_POSITIONS = Names(
    """
    positions.0    position_embedding/embedding           positions  if positions_at=stem
    positions.{i}  position_embedding_{i:02d}/embedding   positions  if positions_at=every
    """
)
_HEAD = Names(
    """
    vit.embeddings.detection_tokens         neck/tokens          same
    detection_positions.0                   neck/positions       same
    class_labels_classifier.layers.<0,1,2>  head/class_<0,1,2>   dense
    bbox_predictor.layers.<0,1,2>           head/box_<0,1,2>     dense
    """
)
_ADDED = Names("detection_positions.{i} detection_positions_{i:02d}/positions same")  # from block 1 on
_HEADS = ("class_labels_classifier.", "bbox_predictor.")
_CONFIG = Settings(
    """
    num_detection_tokens         tokens  int
    use_mid_position_embeddings  middle  bool
    """
)


def _split(arrays):
    """(the encoder's arrays, those of neck and head); tables of positions are cut in two, and one per block."""
    tokens, table = need(arrays, _TOKENS, 3), need(arrays, _TABLE, 3)
    q = tokens.shape[1]
    middle = next((need(arrays, name, 4) for name in _MIDDLE if name in arrays), np.zeros((0, *table.shape)))
    encoder = {name: a for name, a in arrays.items() if not name.startswith((*_HEADS, *_MIDDLE, _TOKENS, _TABLE))}
    others = {name: a for name, a in arrays.items() if name.startswith(_HEADS)} | {_TOKENS: tokens[0]}
    for i, rows in enumerate([table, *middle]):
        encoder[f"positions.{i}"], others[f"detection_positions.{i}"] = rows[:, :-q], rows[0, -q:]
    return encoder, others


def _head_map(blocks):
    """{name as `_split` makes it: Entry} of neck and head; `blocks` have positions."""
    added = _ADDED.map(depth=blocks)
    del added["detection_positions.0"]
    return _HEAD.map() | added


def _encoder_map(fields):
    """{name as `_split` makes it: Entry} of the encoder."""
    return _SPELLED.map(fields) | _POSITIONS.map(fields)


def parse(contents: Any, options: Any) -> ParsedCheckpoint:
    """Parses a folder or file with these names; arguments and errors as in timm.parse."""
    config = contents.config
    check_agreement([("model_type", setting(config, "model_type", str), YOLOS)])
    if huggingface_config.mlp_activation(config, _LIKE) != "gelu":
        raise ValueError(f"config.json has hidden_act={config['hidden_act']!r}, with which YOLOS is not implemented.")
    arrays, others = _split(contents.arrays)
    shown = Shown(_SPELLED.names, arrays)
    fields = huggingface.read_fields(shown, _LIKE, config, options, _SPELLED.epsilon)
    tables, channels = sum(name.startswith("positions.") for name in arrays), shown.channels
    fields["positions_at"] = "stem" if tables == 1 else "every"
    fields |= huggingface_config.normalisation(contents.preprocessor, channels, options)
    stated, patch = stated_pair(config, "image_size"), fields["patch_size"]
    size = table_size(need(arrays, "positions.0", 3).shape[1] - 1, patch, stated, options)
    whole = None if stated is None else tuple(s // p * p for s, p in zip(stated, patch))
    is_whole = stated if whole == size else size
    huggingface_config.check_config(config, config, _LIKE, fields, is_whole, None, channels)
    classes = need(others, "class_labels_classifier.layers.2.weight", 2).shape[0] - 1
    count = len(need(others, _TOKENS, 2))
    check_agreement(_CONFIG.compared(config, {"tokens": count, "middle": tables > 1}))
    names = huggingface_config.labels(config, classes)
    dense = Dense({"tokens": count}, classes, names, None, 0.0, _head_map(tables), others, head=YOLOS)
    return ParsedCheckpoint(
        "ViT", fields, size, _encoder_map(fields), arrays, None, channels, resample="bicubic", dense=dense
    )


def _as_vit(model):
    """The encoder, described as the ViT that the format takes it for."""
    spec = dataclasses.replace(model.spec, positions_at="stem", pool="token")
    return types.SimpleNamespace(spec=spec, image_size=model.image_size, channels=model.channels, classes=None)


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


def write(model: Any, weights: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """(arrays, {config file: content}) of a model; ValueError for one that the format cannot express."""
    check(model)
    spec = vars(model.spec)
    tables = 1 if spec["positions_at"] == "stem" else spec["depth"]
    found = pack(_encoder_map(spec) | _head_map(tables), weights)
    rows = [
        np.concatenate([found.pop(f"positions.{i}"), found.pop(f"detection_positions.{i}")[None]], axis=1)
        for i in range(tables)
    ]
    found |= {_TOKENS: found[_TOKENS][None], _TABLE: rows[0]}
    found |= {_MIDDLE[0]: np.stack(rows[1:])} if tables > 1 else {}
    return found, huggingface_config.files(model, to_config(model), "YolosImageProcessor")


def to_config(model: Any) -> dict[str, Any]:
    """config.json of a model that `check` accepts."""
    own = {"architectures": ["YolosForObjectDetection"], "model_type": YOLOS, "image_size": list(model.image_size)}
    own |= _CONFIG.written({"tokens": model.decoder.neck.count, "middle": model.spec.positions_at == "every"})
    return {**huggingface.to_config(_as_vit(model)), **own, **huggingface_config.to_labels(model)}
