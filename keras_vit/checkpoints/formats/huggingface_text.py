"""Hugging Face's SiglipModel, Siglip2Model and CLIPModel: text tower, projections, scale and bias."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_vit.checkpoints.formats import huggingface, huggingface_config
from keras_vit.checkpoints.formats.name_map import NameMap, Names, pack, same
from keras_vit.checkpoints.formats.parsed import heads
from keras_vit.checkpoints.formats.parsed_text import ParsedText, check_texts, scalar
from keras_vit.checkpoints.formats.questions import Options
from keras_vit.checkpoints.formats.settings import Settings, check_agreement, section, setting
from keras_vit.checkpoints.formats.shown import Shown, need
from keras_vit.io.tokenizer import FILE

_ANCHOR = "text_model.embeddings.token_embedding.weight"
_HEADS = ("text_projection.weight", "text_model.head.weight")
_IMAGE_HEAD, _SCALE, _BIAS = "visual_projection.weight", "logit_scale", "logit_bias"
_BUFFERS = re.compile(r"embeddings\.position_ids$")
# {whether it is a CLIP: type of the image encoder}.
_IMAGE_KINDS = {True: "clip_vision_model", False: "siglip_vision_model"}
_NO_END = 2  # eos_token_id in CLIP's first configs, which transformers reads as the highest number
_NAMES = Names(
    """
    text_model.embeddings.token_embedding.weight     token_embedding/embeddings    same
    text_model.embeddings.position_embedding.weight  position_embedding/embedding  rows
    """,
    {"rows": lambda fields, ours: same(ours, (-1, fields["width"]))},
)
_NAMES += huggingface.BLOCK.spelled(
    theirs="text_model.encoder.layers.{i}.", ours="block_{i:02d}", **huggingface.IN_FILES[_IMAGE_KINDS[True]].words
)
_NAMES += Names(
    """
    text_model.final_layer_norm  encoder_norm  norm
    text_projection              head          matrix  if clip
    text_model.head              head          dense   if not clip
    """
)
_CONFIG = Settings(
    """
    vocab_size               vocabulary  int
    max_position_embeddings  length      int
    hidden_size              width       int
    num_hidden_layers        depth       int
    num_attention_heads      heads       int
    intermediate_size        mlp_dim     int
    hidden_act               act         text
    layer_norm_eps           epsilon     number
    """
)


def matches(names: Any) -> bool:
    """Whether a file with these names contains both encoders."""
    return any(name.endswith(_ANCHOR) for name in names)


def name_map(fields: Mapping[str, Any], clip: bool) -> NameMap:
    """{name: Entry} of the text encoder; `fields` are TextSpec's."""
    return _NAMES.map({name: fields[name] for name in ("depth", "width")}, clip=clip)


def _end(config, vocabulary):
    """The id of CLIP's token that ends a text."""
    stated = setting(config, "eos_token_id", int)
    return vocabulary - 1 if stated in (None, _NO_END) or stated >= vocabulary else stated


def _fields(arrays, config, clip):
    shown, kind = Shown(_NAMES, arrays), _IMAGE_KINDS[clip]
    vocabulary, width = shown.shape("token_embedding/embeddings", 2)
    stated = huggingface_config.stated_heads(config, "clip_text_model" if clip else "siglip_text_model")
    fields = {
        "vocabulary": vocabulary,
        "length": shown.shape("position_embedding/embedding", 2)[0],
        "depth": shown.depth,
        "width": width,
        "mlp_dim": shown.shape("block_00/mlp/hidden/kernel")[1],
    }
    check_agreement(_CONFIG.compared(config, fields))
    fields |= {
        "heads": heads(width, Options(asks=False), stated)[0],
        "outputs": shown.shape("head/kernel")[1],
        "mlp_activation": huggingface_config.mlp_activation(config, kind),
        "epsilon": huggingface_config.epsilon(config, huggingface.IN_FILES[kind].epsilon),
    }
    if clip:
        fields |= {"outputs_bias": False, "causal": True, "pool": "end", "end": _end(config, vocabulary)}
    return fields


def parse(contents: Any) -> ParsedText:
    """The text encoder and what joins it to the image encoder, of a file with names that `matches` accepts.

    Raises:
        ValueError: for missing arrays, or a config.json of another model.
    """
    prefix = next(name for name in contents.arrays if name.endswith(_ANCHOR)).removesuffix(_ANCHOR)
    arrays = {
        name.removeprefix(prefix): array
        for name, array in contents.arrays.items()
        if name.startswith(prefix) and not _BUFFERS.search(name)
    }
    clip = _HEADS[0] in arrays
    unshown = "the number of attention heads and the activation of the text encoder"
    huggingface_config.check_whole(contents.config, unshown)
    # Its class has a default for what a named config leaves out.
    fields = _fields(arrays, {"model_type": "text", **section(contents.config, "text_config")}, clip)
    texts = {name: array for name, array in arrays.items() if name.startswith("text_model.") or name == _HEADS[0]}
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
    activation = "softmax" if clip else "sigmoid"
    problems = [
        (text.outputs is None, "a text encoder without outputs"),
        ((model.projection is not None) != clip, f"projection={model.projection} (CLIP has one, SigLIP none)"),
        (model.activation != activation, f'activation="{model.activation}" ("{activation}")'),
    ]
    check_texts("huggingface", model, expected, problems)
    huggingface.CAPABILITIES.check(model.image_encoder)


def write(model: Any, weights: Mapping[str, Mapping]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """(arrays, {config file: content}) of a model; `weights` are {"image": {path: array}, "text": {path: array}}."""
    check(model)
    clip, spec = _is_clip(model), model.image_encoder.spec
    arrays = pack(huggingface.IN_FILES[huggingface.model_type(spec)].map(vars(spec)), weights["image"])
    arrays |= pack(name_map(vars(model.text_encoder.text_spec), clip), weights["text"])
    similarity = model.get_layer("similarity")
    scale = np.asarray(similarity.log_scale, "float32")
    if clip:
        kernel = np.asarray(model.get_layer("image_projection").kernel)
        arrays |= {_IMAGE_HEAD: np.ascontiguousarray(kernel.T), _SCALE: scale}
    else:
        arrays |= {_SCALE: scale.reshape(1), _BIAS: np.asarray(similarity.offset, "float32").reshape(1)}
    tokenizer = {} if model.tokenizer is None else {FILE: model.tokenizer.data}
    return arrays, {**huggingface_config.files(model.image_encoder, to_config(model)), **tokenizer}


def to_config(model: Any) -> dict[str, Any]:
    """config.json of a model that `check` accepts."""
    clip, spec = _is_clip(model), model.text_encoder.text_spec
    vision = huggingface.to_config(model.image_encoder)
    vision = {name: value for name, value in vision.items() if name not in ("architectures", "transformers_version")}
    kind, projection = ("clip", {"projection_dim": spec.outputs}) if clip else ("siglip", {})
    own = {"eos_token_id": spec.end, **projection} if clip else {"projection_size": spec.outputs}
    sizes = _CONFIG.written({**vars(spec), "act": huggingface_config.hidden_act(spec)})
    return {
        "architectures": ["CLIPModel" if clip else "SiglipModel"],
        "transformers_version": huggingface_config.VERSION,
        "model_type": kind,
        "text_config": {"model_type": f"{kind}_text_model", **sizes, **own},
        "vision_config": {**vision, **projection},
        **projection,
    }
