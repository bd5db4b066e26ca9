"""Hugging Face's DINOv3ViTModel: names of files and, since transformers 5, of models in memory."""

import re
from collections.abc import Mapping

import numpy as np

from keras_vit.checkpoints.formats.capabilities import ANY, Capabilities
from keras_vit.checkpoints.formats.gates import join_gates, split_gates
from keras_vit.checkpoints.formats.huggingface import read_fields
from keras_vit.checkpoints.formats.huggingface_config import (
    check_config,
    check_type,
    is_named,
    normalisation,
    preprocessing,
)
from keras_vit.checkpoints.formats.huggingface_names import Names, block_map
from keras_vit.checkpoints.formats.name_map import NameMap, conv, same, torch_norm
from keras_vit.checkpoints.formats.parsed import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    ParsedCheckpoint,
    any_size,
    check_agreement,
    need,
    renamed,
    setting,
    stated_pair,
)

KIND = "dinov3_vit"
_NAMES = Names(
    "",
    block="layer",
    mlp=("mlp.up_proj", "mlp.down_proj"),
    swiglu=("mlp.gated_proj", "mlp.down_proj"),
    attention={name: f"attention.{name[0]}_proj" for name in ("query", "key", "value", "out")},
    last_norm="norm",
    patch="embeddings.patch_embeddings",
    epsilon=1e-5,
)
_PATCH = f"{_NAMES.patch}.weight"
_GATES = (".mlp.gate_proj.", ".mlp.up_proj.", ".mlp.gated_proj.")
# Of masked training; the frequencies are computed here.
_DROPPED = re.compile(r"embeddings\.mask_token$|rope_embeddings\.inv_freq$")


def _structure(model):
    if model.classes is not None:
        return 'a DINOv3 with a head, which transformers lacks (head="drop" removes it, or use format="timm")'
    if model.spec.layer_scale is None:
        return 'layer_scale=None with positions="rope2d" (DINOv3 has LayerScale)'
    return None


CAPABILITIES = Capabilities(
    "huggingface",
    {
        **dict.fromkeys(("patch_size", "depth", "width", "mlp_dim", "heads", "registers", "layer_scale"), ANY),
        "class_token": (True,),
        "positions": ("rope2d",),
        "pool": ("token",),
        "qkv_bias": (True, False),
        "key_bias": (True, False),
        "mlp_form": ("plain", "swiglu"),
        # In config.json and preprocessor_config.json:
        **dict.fromkeys(("mlp_activation", "epsilon", "mean", "std"), ANY),
    },
    rules=(_structure,),
)


def _normalise(arrays):
    """(the arrays in the names of files, SwiGLU's first layers joined; the names left out)."""
    prefix = next(name for name in arrays if name.endswith(_PATCH)).removesuffix(_PATCH)
    roots = tuple(prefix + part for part in ("embeddings.", "layer.", "model.layer.", "norm.", "rope_embeddings."))
    empty = {name for name, array in arrays.items() if not array.size}  # no registers
    kept = {
        name: array
        for name, array in arrays.items()
        if name.startswith(roots) and not _DROPPED.search(name) and name not in empty
    }
    named = renamed(kept, lambda name: name.removeprefix(prefix).removeprefix("model."))
    return join_gates(named, *_GATES), [name for name in arrays if name not in kept and name not in empty]


def _fields(arrays, config, options):
    """The fields of the spec, without the normalisation."""
    bias = "layer.0.attention.q_proj.bias" in arrays
    return {
        **read_fields(arrays, _NAMES, KIND, config, options),
        "positions": "rope2d",
        "rope_rescale": _rescale(config),
        "key_bias": not bias or "layer.0.attention.k_proj.bias" in arrays,
        "layer_scale": 1e-5,
    }


def _rescale(config):
    """The coordinates' rescaling in training, by default 2; null in the config is none."""
    if "pos_embed_rescale" in config and config["pos_embed_rescale"] is None:
        return 1.0
    stated = setting(config, "pos_embed_rescale", int, float)
    return 2.0 if stated is None else stated


def _check(outer, config, fields, size, channels):
    """Compares config.json with the arrays, and with this package; ValueError with each difference."""
    check_config(outer, config, KIND, fields, size, None, channels)
    gated = fields["mlp_form"] == "swiglu"
    check_agreement(
        [
            ("use_gated_mlp", setting(config, "use_gated_mlp", bool), gated),
            ("query_bias", setting(config, "query_bias", bool), fields["qkv_bias"]),
            ("value_bias", setting(config, "value_bias", bool), fields["qkv_bias"]),
            ("key_bias", setting(config, "key_bias", bool), fields["qkv_bias"] and fields["key_bias"]),
            ("rope_theta", setting(config, "rope_theta", int, float), 100),
        ]
    )
    act = setting(config, "hidden_act", str)
    if gated and act not in (None, "silu", "swish"):
        raise ValueError(f'config.json has hidden_act={act!r} in a gated MLP, which is implemented with "silu" alone.')


def parse(contents, options: dict) -> ParsedCheckpoint:
    """Parses a folder or file; arguments and errors as in timm.parse."""
    outer = contents.config
    section = setting(outer, "backbone_config", dict)
    config = outer if section is None else section
    if is_named(outer):
        config = {**config, "architectures": outer.get("architectures") or [outer["model_type"]]}
    check_type(config, KIND)
    arrays, dropped = _normalise(contents.arrays)
    fields = _fields(arrays, config, options)
    channels = need(arrays, _PATCH, 4).shape[1]
    usual = (IMAGENET_MEAN, IMAGENET_STD)
    fields.update(normalisation(contents.preprocessor, usual, channels, options))
    stated = stated_pair(config, "image_size")
    size = any_size(stated, options, 224, is_named(config))
    _check(outer, config, fields, stated or size, channels)
    entries, preprocess = name_map(fields), preprocessing(contents.preprocessor)
    return ParsedCheckpoint(
        "ViT",
        fields,
        size,
        entries,
        arrays,
        None,
        channels,
        dropped=dropped,
        preprocessing=preprocess,
    )


def name_map(spec: Mapping) -> NameMap:
    """{name: Entry} of a model, SwiGLU's first layers joined; `spec` is a dict of ViTSpec's fields."""
    entries = {_PATCH: conv("patch_encoder/kernel"), f"{_NAMES.patch}.bias": same("patch_encoder/bias")}
    tokens = (("class_token", "cls_token"), ("registers", "register_tokens"))
    entries.update({f"embeddings.{theirs}": same(f"{ours}/tokens") for ours, theirs in tokens if spec[ours]})
    for i in range(spec["depth"]):
        entries.update(block_map(f"{_NAMES.block}.{i}.", f"block_{i:02d}", _NAMES, spec))
    return {**entries, **torch_norm(_NAMES.last_norm, "encoder_norm")}


def file_arrays(arrays: Mapping[str, np.ndarray], spec) -> dict[str, np.ndarray]:
    """The arrays by name_map's names as in files of save_pretrained, with the mask token, zeros at its start."""
    found = split_gates(arrays, *_GATES) if spec.mlp_form == "swiglu" else dict(arrays)
    if not spec.registers:
        found["embeddings.register_tokens"] = np.zeros((1, 0, spec.width), "float32")
    return {**found, "embeddings.mask_token": np.zeros((1, 1, spec.width), "float32")}
