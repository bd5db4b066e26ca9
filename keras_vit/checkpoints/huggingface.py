"""Hugging Face's safetensors with config.json: ViT, DeiT, DINOv2 (with registers too), and SigLIP's vision tower."""

import dataclasses
import re

from keras_vit.checkpoints.layout import conv, positions, same, stacked_bias, stacked_linear, torch_dense, torch_norm
from keras_vit.checkpoints.source import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Source,
    constants,
    depth,
    grid,
    heads,
    hint_grid,
    need,
    pixels,
    renamed,
    setting,
)

_BERT = {
    "query": "attention.attention.query",
    "key": "attention.attention.key",
    "value": "attention.attention.value",
    "out": "attention.output.dense",
}


@dataclasses.dataclass(frozen=True)
class Names:
    """The words of one model type.

    Attributes:
        prefix: before the backbone's names where it stands in a larger model.
        block: of one block, before its number.
        norms, mlp: the two normalisations, the two dense layers.
        attention: our names to theirs.
        last_norm, patch: the last normalisation, the patch embedding.
        epsilon: the type's default.
        imagenet: whether its images are normalised by ImageNet's mean and std, else to [-1, 1].
    """

    prefix: str
    block: str = "encoder.layer"
    norms: tuple = ("norm1", "norm2")
    mlp: tuple = ("mlp.fc1", "mlp.fc2")
    attention: dict = dataclasses.field(default_factory=lambda: _BERT)
    last_norm: str = "layernorm"
    patch: str = "embeddings.patch_embeddings.projection"
    epsilon: float = 1e-6
    imagenet: bool = True


_PLAIN = {"norms": ("layernorm_before", "layernorm_after"), "mlp": ("intermediate.dense", "output.dense"), "epsilon": 1e-12}
_SELF = {"query": "self_attn.q_proj", "key": "self_attn.k_proj", "value": "self_attn.v_proj", "out": "self_attn.out_proj"}
TYPES = {
    "vit": Names("vit.", imagenet=False, **_PLAIN),
    "deit": Names("deit.", **_PLAIN),
    "dinov2": Names("dinov2."),
    "dinov2_with_registers": Names("dinov2_with_registers."),
    "siglip_vision_model": Names(
        "vision_model.",
        block="encoder.layers",
        norms=("layer_norm1", "layer_norm2"),
        attention=_SELF,
        last_norm="post_layernorm",
        patch="embeddings.patch_embedding",
        imagenet=False,
    ),
}
GELUS = {"gelu": "erf", "gelu_pytorch_tanh": "tanh", "gelu_new": "tanh", "gelu_fast": "tanh"}
LIMITS = {
    "positions": ("learned",),
    "patch_norm": (False,),
    "pre_logits": (None,),
    "head_dim": (None,),
    "stem": (None,),
    "conv_stem": ((),),
    "qk_norm": (False,),
    "fc_norm": (False,),
}
_DROPPED = re.compile(r"(pooler\.|embeddings\.mask_token$|embeddings\.position_ids$)")


def matches(names, config):
    return any(
        name.endswith(("embeddings.patch_embeddings.projection.weight", "embeddings.patch_embedding.weight")) for name in names
    )


def _type(arrays, config):
    """The model type, by the names: config.json may be missing, or name a larger model."""
    ends = lambda end: any(name.endswith(end) for name in arrays)  # noqa: E731
    if ends("embeddings.patch_embedding.weight"):
        return "siglip_vision_model"
    if ends("layer_scale1.lambda1"):
        return "dinov2_with_registers" if ends("embeddings.register_tokens") else "dinov2"
    return "deit" if ends("embeddings.distillation_token") else "vit"


def _normalise(arrays, names):
    """The arrays with the backbone's prefix as in a classification model, and the names left out."""
    anchor = next((name for name in arrays if name.endswith(f"{names.patch}.weight")), None)
    if anchor is None:
        raise ValueError(f'The array "{names.patch}.weight" is missing.')
    prefix = anchor.removesuffix(f"{names.patch}.weight")
    outer = ("classifier.", "cls_classifier.", "distillation_classifier.")
    # SigLIP's classifiers average and leave the MAP head idle.
    idle = (f"{prefix}head.",) if "classifier.weight" in arrays and names.prefix == "vision_model." else ()

    def belongs(name):
        return name.startswith((prefix, *outer)) and not name.startswith(idle) and not _DROPPED.search(name)

    kept = {name: a for name, a in arrays.items() if belongs(name)}
    whole = renamed(kept, lambda name: name if name.startswith(outer) else names.prefix + name.removeprefix(prefix))
    return whole, [name for name in arrays if name not in kept]


def _fields(arrays, kind, config, options):
    """The spec's fields but normalisation."""
    names = TYPES[kind]
    block = f"{names.prefix}{names.block}.0."
    w = need(arrays, f"{names.prefix}{names.patch}.weight", 4)
    swiglu = f"{block}mlp.weights_in.weight" in arrays
    hidden = need(arrays, f"{block}mlp.weights_out.weight" if swiglu else f"{block}{names.mlp[1]}.weight", 2)
    act = setting(config, "hidden_act", str) or ("gelu" if kind != "siglip_vision_model" else "gelu_pytorch_tanh")
    if act not in GELUS:
        raise ValueError(f"config.json has hidden_act={act!r}, which is not built here. Known: {', '.join(GELUS)}.")
    epsilon = setting(config, "layer_norm_eps", float, int)
    epsilon = names.epsilon if epsilon is None else epsilon
    if not 0 < epsilon < 1:
        raise ValueError(f"config.json has layer_norm_eps={epsilon!r}, expected a small positive number.")
    tokens = f"{names.prefix}embeddings.register_tokens"
    registers = need(arrays, tokens, 3).shape[1] if tokens in arrays else 0
    if setting(config, "num_register_tokens", int) not in (None, registers):
        raise ValueError(f'config.json has {config["num_register_tokens"]} register tokens, the array "{tokens}" {registers}.')
    k, _ = heads(w.shape[0], options.get("heads") or setting(config, "num_attention_heads", int))
    pool = "token"
    if kind == "siglip_vision_model":
        pool = "map" if f"{names.prefix}head.probe" in arrays else "gap"
    elif "classifier.weight" in arrays and kind.startswith("dinov2"):
        pool = "token_gap"
    return {
        "patch_size": w.shape[2:],
        "depth": depth(arrays, rf"{re.escape(names.prefix + names.block)}\.(\d+)\."),
        "width": w.shape[0],
        "heads": k,
        "mlp_dim": hidden.shape[1],
        "mlp_form": "swiglu" if swiglu else "gelu",
        "class_token": f"{names.prefix}embeddings.cls_token" in arrays,
        "distillation_token": f"{names.prefix}embeddings.distillation_token" in arrays,
        "registers": registers,
        "layer_scale": 1.0 if kind.startswith("dinov2") else None,
        "qkv_bias": f"{block}{names.attention['query']}.bias" in arrays,
        "gelu": GELUS[act],
        "epsilon": epsilon,
        "pool": pool,
    }


def _normalisation(kind, preprocessor, notes):
    """mean and std on the 0..255 scale, from preprocessor_config.json, or the type's usual ones."""
    found = constants(preprocessor, ("image_mean", "image_std"))
    if found is not None:
        return {"mean": found[0], "std": found[1]}
    notes.append(
        f"No preprocessor_config.json: the normalisation is assumed to be the one usual for {kind}. Give mean and std if not."
    )
    return {"mean": IMAGENET_MEAN, "std": IMAGENET_STD} if TYPES[kind].imagenet else {"mean": 127.5, "std": 127.5}


def _preprocessing(preprocessor):
    """preprocessor_config.json's steps as text; None where it has another form."""
    size, crop = (setting(preprocessor, name, dict, int, list) for name in ("size", "crop_size"))
    method = {2: "bilinear", 3: "bicubic"}.get(setting(preprocessor, "resample", int))
    if not isinstance(size, dict) or method is None:
        return None
    edge, height = setting(size, "shortest_edge", int), setting(crop, "height", int) if isinstance(crop, dict) else None
    if edge and height and preprocessor.get("do_center_crop"):
        if not (0 < height < 2**16 and 0 < edge < 2**16):
            raise ValueError(
                f"The images' shortest_edge of {edge} and crop_size of {height} in the config are no sizes in pixels."
            )
        ratio = edge / height
        return lambda h, w: f"decode|resize({round(min(h, w) * ratio)}, method='{method}')|central_crop({h}, {w})"
    return lambda h, w: f"decode|resize({h}, {w}, method='{method}')"


def _labels(config, classes):
    """Class names from id2label, unless they are placeholders."""
    labels = setting(config, "id2label", dict)
    if labels is None or classes is None or len(labels) != classes:
        return None
    found = tuple(labels.get(str(i)) for i in range(classes))
    if not all(type(name) in (str, int) for name in found):
        raise ValueError(f'"id2label" in the config should name the classes "0" to "{classes - 1}".')
    return None if str(found[0]).startswith("LABEL_") else tuple(map(str, found))


def understand(contents, options):
    """The Source of a folder or file whose names `matches` accepts; see timm.understand for arguments and errors."""
    outer = contents.config
    kind = _type(contents.arrays, outer)
    names = TYPES[kind]
    config = setting(outer, "vision_config", dict) or outer
    arrays, dropped = _normalise(contents.arrays, names)
    notes = []
    fields = {**_fields(arrays, kind, config, options), **_normalisation(kind, contents.preprocessor, notes)}
    head = next((name for name in ("classifier.weight", "cls_classifier.weight") if name in arrays), None)
    classes = None if head is None else need(arrays, head, 2).shape[0]
    if kind == "deit" and "classifier.weight" in arrays:
        raise ValueError(
            "A DeiT with two tokens and one head (DeiTForImageClassification) is not built here: its second head is missing."
        )
    siglip = kind == "siglip_vision_model"
    table = need(arrays, f"{names.prefix}embeddings.position_embedding{'.weight' if siglip else 's'}", 2 if siglip else 3)
    prefix = int(fields["class_token"]) + int(fields["distillation_token"])
    hint = hint_grid(options, fields["patch_size"], setting(config, "image_size", int, list))
    shape = grid(table.shape[0 if siglip else 1] - prefix, hint)
    return Source(
        "vit",
        fields,
        pixels(shape, fields["patch_size"]),
        layout(fields, classes, kind),
        arrays,
        classes,
        need(arrays, f"{names.prefix}{names.patch}.weight", 4).shape[1],
        _labels(outer, classes),
        dropped,
        notes,
        "timm" if kind == "dinov2_with_registers" else "bicubic",
        _preprocessing(contents.preprocessor),
    )


def _block(theirs, ours, names, spec):
    entries = {}
    for name, word in names.attention.items():
        dense = torch_dense(theirs + word, f"{ours}/attention/{name}")
        if name != "out" and not spec["qkv_bias"]:
            dense.pop(f"{theirs}{word}.bias")
        entries.update(dense)
    for word, name in zip(names.norms, ("attention_norm", "mlp_norm")):
        entries.update(torch_norm(theirs + word, f"{ours}/{name}"))
    words = ("mlp.weights_in", "mlp.weights_out") if spec["mlp_form"] == "swiglu" else names.mlp
    for word, name in zip(words, ("hidden", "out")):
        entries.update(torch_dense(theirs + word, f"{ours}/mlp/{name}"))
    if spec["layer_scale"] is not None:
        entries[f"{theirs}layer_scale1.lambda1"] = same(f"{ours}/attention_scale/gamma")
        entries[f"{theirs}layer_scale2.lambda1"] = same(f"{ours}/mlp_scale/gamma")
    return entries


def _map_layout(theirs):
    qkv = ("query", "key", "value")
    return {
        f"{theirs}probe": same("pool/probe"),
        f"{theirs}attention.in_proj_weight": stacked_linear(*(f"pool/{name}/kernel" for name in qkv)),
        f"{theirs}attention.in_proj_bias": stacked_bias(*(f"pool/{name}/bias" for name in qkv)),
        **torch_dense(f"{theirs}attention.out_proj", "pool/out"),
        **torch_norm(f"{theirs}layernorm", "pool/norm"),
        **torch_dense(f"{theirs}mlp.fc1", "pool/mlp/hidden"),
        **torch_dense(f"{theirs}mlp.fc2", "pool/mlp/out"),
    }


def layout(spec, classes, kind):
    """{name: Entry} of a model of that type; `spec` is a dict of ViTSpec's fields."""
    names = TYPES[kind]
    root = f"{names.prefix}embeddings."
    patch = f"{names.prefix}{names.patch}"
    entries = {f"{patch}.weight": conv("patch_encoder/kernel"), f"{patch}.bias": same("patch_encoder/bias")}
    tokens = (("class_token", "cls_token"), ("distillation_token", "distillation_token"), ("registers", "register_tokens"))
    entries.update({root + theirs: same(f"{ours}/tokens") for ours, theirs in tokens if spec[ours]})
    if kind == "siglip_vision_model":
        entries[f"{root}position_embedding.weight"] = positions("position_embedding/embedding", 0, (-1, spec["width"]))
    else:
        entries[f"{root}position_embeddings"] = positions("position_embedding/embedding", 0)
    for i in range(spec["depth"]):
        entries.update(_block(f"{names.prefix}{names.block}.{i}.", f"block_{i:02d}", names, spec))
    entries.update(torch_norm(f"{names.prefix}{names.last_norm}", "encoder_norm"))
    if spec["pool"] == "map":
        entries.update(_map_layout(f"{names.prefix}head."))
    if classes is not None and spec["distillation_token"]:
        entries.update({**torch_dense("cls_classifier", "head"), **torch_dense("distillation_classifier", "head_dist")})
    elif classes is not None:
        entries.update(torch_dense("classifier", "head"))
    return entries
