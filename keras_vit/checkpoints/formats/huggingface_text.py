"""Hugging Face's SiglipModel, Siglip2Model and CLIPModel: text tower, projections, scale and bias."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_vit.checkpoints.formats import config_json, huggingface, huggingface_names
from keras_vit.checkpoints.formats.capabilities import refuse
from keras_vit.checkpoints.formats.huggingface_config import (
    ACTIVATIONS,
    check_whole,
    epsilon,
    mlp_activation,
    stated_heads,
)
from keras_vit.checkpoints.formats.name_map import NameMap, linear, pack, same, torch_dense, torch_norm
from keras_vit.checkpoints.formats.parsed import check_agreement, depth, heads, need, setting
from keras_vit.checkpoints.formats.parsed_text import ParsedText, scalar
from keras_vit.checkpoints.formats.questions import Options

_TEXT, _EMBEDDINGS = "text_model.", "text_model.embeddings."
_HEADS = ("text_projection.weight", "text_model.head.weight")
_IMAGE_HEAD, _SCALE, _BIAS = "visual_projection.weight", "logit_scale", "logit_bias"
_BUFFERS = re.compile(r"embeddings\.position_ids$")
# {whether it is a CLIP: type of the image encoder}.
_IMAGE_KINDS = {True: "clip_vision_model", False: "siglip_vision_model"}
_NO_END = 2  # eos_token_id in CLIP's first configs, which transformers reads as the highest number


def matches(names: Any) -> bool:
    """Whether a file with these names contains both encoders."""
    return any(name.endswith("text_model.embeddings.token_embedding.weight") for name in names)


def _prefix(arrays):
    """The prefix of the names of a model inside another module."""
    anchor = "text_model.embeddings.token_embedding.weight"
    return next(name for name in arrays if name.endswith(anchor)).removesuffix(anchor)


def name_map(spec: Mapping[str, Any], clip: bool) -> NameMap:
    """{name: Entry} of the text encoder; `spec` is a dict of TextSpec's fields."""
    names = huggingface_names.IN_FILES[_IMAGE_KINDS[clip]]
    entries = {
        f"{_EMBEDDINGS}token_embedding.weight": same("token_embedding/embeddings"),
        f"{_EMBEDDINGS}position_embedding.weight": same("position_embedding/embedding", (-1, spec["width"])),
    }
    fields = {"qkv_bias": True, "mlp_form": "plain", "layer_scale": None}
    for i in range(spec["depth"]):
        entries |= huggingface_names.block_map(f"{_TEXT}{names.block}.{i}.", f"block_{i:02d}", names, fields)
    entries |= torch_norm(f"{_TEXT}final_layer_norm", "encoder_norm")
    if clip:
        return {**entries, _HEADS[0]: linear("head/kernel")}
    return {**entries, **torch_dense(f"{_TEXT}head", "head")}


def _end(config, vocabulary):
    """The id of CLIP's token that ends a text."""
    stated = setting(config, "eos_token_id", int)
    return vocabulary - 1 if stated in (None, _NO_END) or stated >= vocabulary else stated


def _fields(arrays, config, clip, head):
    table, positions = (need(arrays, f"{_EMBEDDINGS}{name}_embedding.weight", 2) for name in ("token", "position"))
    hidden = need(arrays, f"{_TEXT}encoder.layers.0.mlp.fc1.weight", 2)
    width = table.shape[1]
    k, _ = heads(width, Options(asks=False), stated_heads(config, "clip_text_model" if clip else "siglip_text_model"))
    kind = _IMAGE_KINDS[clip]
    fields = {
        "vocabulary": table.shape[0],
        "length": positions.shape[0],
        "depth": depth(arrays, rf"{re.escape(_TEXT)}encoder\.layers\.(\d+)\."),
        "width": width,
        "mlp_dim": hidden.shape[0],
        "heads": k,
        "outputs": need(arrays, head, 2).shape[0],
        "mlp_activation": mlp_activation(config, kind),
        "epsilon": epsilon(config, huggingface_names.IN_FILES[kind].epsilon),
    }
    check_agreement(
        [
            ("vocab_size", setting(config, "vocab_size", int), fields["vocabulary"]),
            ("max_position_embeddings", setting(config, "max_position_embeddings", int), fields["length"]),
            ("hidden_size", setting(config, "hidden_size", int), width),
            ("num_hidden_layers", setting(config, "num_hidden_layers", int), fields["depth"]),
            ("intermediate_size", setting(config, "intermediate_size", int), fields["mlp_dim"]),
        ]
    )
    if clip:
        fields |= {"outputs_bias": False, "causal": True, "pool": "end", "end": _end(config, fields["vocabulary"])}
    return fields


def parse(contents: Any) -> ParsedText:
    """The text encoder and what joins it to the image encoder, of a file with names that `matches` accepts.

    Raises:
        ValueError: for missing arrays, or a config.json of another model.
    """
    prefix = _prefix(contents.arrays)
    arrays = {
        name.removeprefix(prefix): array
        for name, array in contents.arrays.items()
        if name.startswith(prefix) and not _BUFFERS.search(name)
    }
    clip = _HEADS[0] in arrays
    check_whole(contents.config, "the number of attention heads and the activation of the text encoder")
    # Its class has a default for what a named config leaves out.
    config = {"model_type": "text", **(setting(contents.config, "text_config", dict) or {})}
    fields = _fields(arrays, config, clip, _HEADS[0] if clip else _HEADS[1])
    texts = {name: array for name, array in arrays.items() if name.startswith(_TEXT) or name == _HEADS[0]}
    image = {name: array for name, array in arrays.items() if name.startswith("vision_model.")}
    return ParsedText(
        fields,
        name_map(fields, clip),
        texts,
        "softmax" if clip else "sigmoid",
        need(arrays, _IMAGE_HEAD, 2).T if clip else None,
        scalar(arrays, _SCALE),
        None if clip else scalar(arrays, _BIAS),
        image,
    )


def _is_clip(model):
    return bool(getattr(model.image_encoder.spec, "pre_norm", False))


def check(model: Any) -> None:
    """ValueError, with each reason, for a DualEncoder that neither SiglipModel nor CLIPModel expresses."""
    text, clip = model.text_encoder.text_spec, _is_clip(model)
    expected = {"outputs_bias": not clip, "causal": clip, "pool": "end" if clip else "last"}
    problems = [
        (getattr(text, name) != value, f"{name}={getattr(text, name)!r} of the text encoder ({value!r})")
        for name, value in expected.items()
    ]
    activation = "softmax" if clip else "sigmoid"
    problems += [
        (text.outputs is None, "a text encoder without outputs"),
        (not model.image_encoder.spec.has_tokens, "an image encoder without attention"),
        ((model.projection is not None) != clip, f"projection={model.projection} (CLIP has one, SigLIP none)"),
        (model.activation != activation, f'activation="{model.activation}" ("{activation}")'),
    ]
    refuse("huggingface", "DualEncoder", problems)
    huggingface.CAPABILITIES.check(model.image_encoder)


def to_arrays(model: Any, image: Mapping[str, np.ndarray], text: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays of the file, of a model that `check` accepts; `image` and `text` are the weights of its encoders."""
    clip, spec = _is_clip(model), dataclasses.asdict(model.image_encoder.spec)
    kind = huggingface.model_type(model.image_encoder.spec)
    arrays = pack(huggingface_names.name_map(spec, None, kind), image)
    arrays |= pack(name_map(dataclasses.asdict(model.text_encoder.text_spec), clip), text)
    similarity = model.get_layer("similarity")
    scale = np.asarray(similarity.log_scale, "float32")
    if clip:
        kernel = np.asarray(model.get_layer("image_projection").kernel)
        return {**arrays, _IMAGE_HEAD: np.ascontiguousarray(kernel.T), _SCALE: scale}
    return {**arrays, _SCALE: scale.reshape(1), _BIAS: np.asarray(similarity.offset, "float32").reshape(1)}


def to_config(model: Any) -> dict[str, Any]:
    """config.json of a model that `check` accepts."""
    clip, spec = _is_clip(model), model.text_encoder.text_spec
    vision = config_json.huggingface(model.image_encoder)
    vision = {name: value for name, value in vision.items() if name not in ("architectures", "transformers_version")}
    kind = "clip" if clip else "siglip"
    text = {
        "model_type": f"{kind}_text_model",
        "vocab_size": spec.vocabulary,
        "max_position_embeddings": spec.length,
        "hidden_size": spec.width,
        "num_hidden_layers": spec.depth,
        "num_attention_heads": spec.heads,
        "intermediate_size": spec.mlp_dim,
        "hidden_act": {ours: act for act, ours in reversed(ACTIVATIONS.items())}[spec.mlp_activation],
        "layer_norm_eps": spec.epsilon,
        **({"eos_token_id": spec.end, "projection_dim": spec.outputs} if clip else {"projection_size": spec.outputs}),
    }
    return {
        "architectures": ["CLIPModel" if clip else "SiglipModel"],
        "transformers_version": huggingface.VERSION,
        "model_type": kind,
        "text_config": text,
        "vision_config": {**vision, **({"projection_dim": spec.outputs} if clip else {})},
        **({"projection_dim": spec.outputs} if clip else {}),
    }
