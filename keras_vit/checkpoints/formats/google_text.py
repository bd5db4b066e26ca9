"""big_vision's two towers in one .npz, `img` and `txt`, with temperature `t` and bias `b`: SigLIP, SigLIP 2."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_vit.checkpoints.formats import google
from keras_vit.checkpoints.formats.capabilities import refuse
from keras_vit.checkpoints.formats.name_map import NameMap, Names, pack
from keras_vit.checkpoints.formats.parsed_text import ParsedText, check_texts, scalar
from keras_vit.checkpoints.formats.shown import Shown, need, renamed

_PREFIXES = ("params/", "opt/target/", "")
_TABLE, _HEAD = "Embed_0/embedding", "head/kernel"
_NAMES = Names(
    """
    Embed_0/embedding  token_embedding/embeddings    same
    pos_embedding      position_embedding/embedding  same
    """
)
_NAMES += google.BLOCK
_NAMES += Names(
    """
    Transformer/encoder_norm  encoder_norm  flax_norm
    head                      head          flax_dense  if outputs
    """
)


def _prefix(names):
    """The prefix of both towers' names; None if one of them is missing."""
    return next((p for p in _PREFIXES if f"{p}txt/{_TABLE}" in names and f"{p}img/embedding/kernel" in names), None)


def matches(names: Any) -> bool:
    """Whether a file with these names contains both encoders."""
    return _prefix(names) is not None


def name_map(fields: Mapping[str, Any]) -> NameMap:
    """{name: Entry} of the text encoder, its blocks in a "Transformer"; `fields` are TextSpec's."""
    return _NAMES.map({name: fields[name] for name in ("depth", "width", "heads", "outputs")})


def parse(contents: Any) -> ParsedText:
    """The text encoder and what joins it to the image encoder, of a file with names that `matches` accepts.

    Raises:
        ValueError: for missing arrays, or an image tower with a head.
    """
    prefix = _prefix(contents.arrays)
    named = {name.removeprefix(prefix): a for name, a in contents.arrays.items() if name.startswith(prefix)}
    if f"img/{_HEAD}" in named:
        raise ValueError("The image tower has a head, img/head, which a DualEncoder does not have.")
    texts = {name.removeprefix("txt/"): a for name, a in named.items() if name.startswith("txt/")}
    texts = google.one_naming(renamed(texts, lambda name: name.replace("Encoder_0/", "Transformer/", 1)))
    shown = Shown(_NAMES, texts)
    vocabulary, width = shown.shape("token_embedding/embeddings", 2)
    query = shown.places["block_00/attention/query/kernel"][0]
    fields = {
        "vocabulary": vocabulary,
        "length": shown.shape("position_embedding/embedding", 3)[1],
        "depth": shown.depth,
        "width": width,
        "mlp_dim": shown.shape("block_00/mlp/hidden/kernel", 2)[1],
        "heads": need(texts, query, 3).shape[1],
        "outputs": shown.classes,
    }
    image = {f"params/{name}": a for name, a in named.items() if name.startswith("img/")}
    activation = "sigmoid" if "b" in named else "softmax"
    bias = scalar(named, "b") if "b" in named else None
    return ParsedText(fields, name_map(fields), texts, activation, None, scalar(named, "t"), bias, image)


def _unconventional(spec):
    """What differs from the conventions of the files, which have no metadata next to two towers."""
    for name, value in google.CONVENTIONS.items():
        own = getattr(spec, name)
        if own != value if isinstance(value, str) else not np.all(np.equal(own, value)):
            yield f"{name}={own!r} of the image encoder ({value!r})"


def check(model: Any) -> None:
    """ValueError, with each reason, for a DualEncoder that big_vision's two towers do not express."""
    expected = {"outputs_bias": True, "causal": False, "pool": "last", "mlp_activation": "gelu_tanh", "epsilon": 1e-6}
    check_texts("google", model, expected, [(model.projection is not None, f"projection={model.projection}")])
    refuse("google", "DualEncoder", ((True, what) for what in _unconventional(model.image_encoder.spec)))
    google.CAPABILITIES.check(model.image_encoder)


def write(model: Any, weights: Mapping[str, Mapping]) -> tuple[dict[str, np.ndarray], dict]:
    """(arrays of the .npz, {}) of a model; `weights` are {"image": {path: array}, "text": {path: array}}."""
    check(model)
    spec = vars(model.image_encoder.spec)
    images = google.published_names(pack(google.name_map(spec, None), weights["image"]), spec)
    texts = pack(name_map(vars(model.text_encoder.text_spec)), weights["text"])
    similarity = model.get_layer("similarity")
    arrays = {f"params/img/{name}": array for name, array in images.items()}
    arrays |= {f"params/txt/{name.replace('Transformer/', 'Encoder_0/')}": array for name, array in texts.items()}
    arrays["params/t"] = np.asarray(similarity.log_scale, "float32").reshape(1)
    if similarity.bias is not None:
        arrays["params/b"] = np.asarray(similarity.offset, "float32").reshape(1)
    return arrays, {}
