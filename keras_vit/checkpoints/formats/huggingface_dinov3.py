"""Hugging Face's DINOv3ViTModel: names of files and, since transformers 5, of models in memory."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_vit.checkpoints.formats import huggingface_config
from keras_vit.checkpoints.formats.capabilities import Capabilities, any_of
from keras_vit.checkpoints.formats.huggingface import PROJECTIONS, WORDS, Spelling, in_section, read_fields
from keras_vit.checkpoints.formats.name_map import pack
from keras_vit.checkpoints.formats.parsed import ParsedCheckpoint, any_size
from keras_vit.checkpoints.formats.settings import Settings, check_agreement, model_facts, setting, stated_pair
from keras_vit.checkpoints.formats.shown import Shown, renamed

_KIND = "dinov3_vit"
SPELLED = Spelling("", {**WORDS["dinov2"], **PROJECTIONS}, 1e-5, flags=("apart",)).but(
    block="layer",
    fc1="mlp.up_proj",
    fc2="mlp.down_proj",
    gated2="mlp.down_proj",
    last="norm",
    patch="embeddings.patch_embeddings",
    table="",
)
# Of masked training; the frequencies are computed here.
_DROPPED = re.compile(r"embeddings\.mask_token$|rope_embeddings\.inv_freq$")
_CONFIG = Settings(
    """
    hidden_size          width        int
    intermediate_size    mlp_dim      int
    num_hidden_layers    depth        int
    num_attention_heads  heads        int
    image_size           image_size   pair
    patch_size           patch_size   pair
    num_channels         channels     int
    hidden_act           act          text
    use_gated_mlp        gated        bool
    layer_norm_eps       epsilon      number
    layerscale_value     layer_scale  number
    num_register_tokens  registers    int
    rope_theta           theta        number
    pos_embed_rescale    rescale      number
    query_bias           qkv_bias     bool
    key_bias             with_key     bool
    value_bias           qkv_bias     bool
    """
)


def _rules(model):
    text = 'a DINOv3 with a head, which transformers lacks (head="drop" removes it, or use format="timm")'
    yield model.classes is not None, text
    yield model.spec.layer_scale is None, 'layer_scale=None with positions="rope2d" (DINOv3 has LayerScale)'


CAPABILITIES = Capabilities(
    "huggingface",
    {
        **any_of("patch_size depth width mlp_dim heads registers layer_scale qkv_bias key_bias mlp_form"),
        "class_token": (True,),
        "positions": ("rope2d",),
        "pool": ("token",),
        # In config.json and preprocessor_config.json:
        **any_of("mlp_activation epsilon mean std"),
    },
    _rules,
)


def _normalise(arrays):
    """(the arrays in the names of files, the names left out)."""
    prefix = next(name for name in arrays if name.endswith(SPELLED.patch)).removesuffix(SPELLED.patch)
    roots = tuple(prefix + part for part in ("embeddings.", "layer.", "model.layer.", "norm.", "rope_embeddings."))
    empty = {name for name, array in arrays.items() if not array.size}  # no registers
    kept = {
        name: array
        for name, array in arrays.items()
        if name.startswith(roots) and not _DROPPED.search(name) and name not in empty
    }
    named = renamed(kept, lambda name: name.removeprefix(prefix).removeprefix("model."))
    return named, [name for name in arrays if name not in kept and name not in empty]


def _rescale(config):
    """The coordinates' rescaling in training, by default 2; null in the config is none."""
    if "pos_embed_rescale" in config and config["pos_embed_rescale"] is None:
        return 1.0
    stated = setting(config, "pos_embed_rescale", int, float)
    return 2.0 if stated is None else stated


def _check(outer, config, fields, size, channels):
    """Compares config.json with the arrays, and with this package; ValueError with each difference."""
    huggingface_config.check_config(outer, config, _KIND, fields, size, None, channels)
    gated, biased = fields["mlp_form"] == "swiglu", fields["qkv_bias"]
    facts = {"gated": gated, "qkv_bias": biased, "with_key": biased and fields["key_bias"], "theta": 100}
    check_agreement(_CONFIG.compared(config, facts))
    act = setting(config, "hidden_act", str)
    if gated and act not in (None, "silu", "swish"):
        raise ValueError(f'config.json has hidden_act={act!r} in a gated MLP, which is implemented with "silu" alone.')


def parse(contents: Any, options: Any) -> ParsedCheckpoint:
    """Parses a folder or file; arguments and errors as in timm.parse."""
    config = in_section(contents.config, "backbone_config")
    huggingface_config.check_type(config, _KIND)
    arrays, dropped = _normalise(contents.arrays)
    shown = Shown(SPELLED.names, arrays)
    fields = read_fields(shown, _KIND, config, options, SPELLED.epsilon)
    fields |= {"positions": "rope2d", "rope_rescale": _rescale(config), "layer_scale": 1e-5}
    fields |= huggingface_config.normalisation(contents.preprocessor, shown.channels, options)
    stated = stated_pair(config, "image_size")
    size = any_size(stated, options, 224, huggingface_config.is_named(config))
    _check(contents.config, config, fields, stated or size, shown.channels)
    return ParsedCheckpoint(
        "ViT",
        fields,
        size,
        SPELLED.map(fields),
        arrays,
        None,
        shown.channels,
        dropped=dropped,
        preprocessing=huggingface_config.preprocessing(contents.preprocessor),
    )


def to_config(model: Any) -> dict[str, Any]:
    """config.json."""
    spec, gated = model.spec, model.spec.mlp_form == "swiglu"
    facts = model_facts(
        model,
        act="silu" if gated else huggingface_config.hidden_act(spec),
        gated=gated,
        theta=100.0,
        rescale=spec.rope_rescale if spec.rope_rescale > 1 else None,
        with_key=spec.qkv_bias and spec.key_bias,
    )
    header = {"architectures": ["DINOv3ViTModel"], "transformers_version": huggingface_config.VERSION}
    written = {**header, "model_type": _KIND, **_CONFIG.written(facts)}
    return {**written, "proj_bias": True, "mlp_bias": True}


def write(model: Any, weights: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """(arrays, {config file: content}) of a model; ValueError for one that the format cannot express."""
    CAPABILITIES.check(model)
    arrays, width = pack(SPELLED.map(vars(model.spec)), weights), model.spec.width
    if not model.spec.registers:
        arrays["embeddings.register_tokens"] = np.zeros((1, 0, width), "float32")
    arrays["embeddings.mask_token"] = np.zeros((1, 1, width), "float32")  # of masked training
    return arrays, huggingface_config.files(model, to_config(model))
