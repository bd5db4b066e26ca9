"""Hugging Face's array names for ViT, DeiT, DINOv2, SigLIP and CLIP: a row per model type, and the map to ours."""

import dataclasses
from collections.abc import Collection, Mapping

from keras_vit.checkpoints.formats.name_map import (
    NameMap,
    conv,
    positions,
    same,
    stacked_bias,
    stacked_linear,
    torch_dense,
    torch_norm,
)
from keras_vit.checkpoints.formats.parsed import CLIP_MEAN, CLIP_STD, IMAGENET_MEAN, IMAGENET_STD

_BERT_ATTENTION = {
    "query": "attention.attention.query",
    "key": "attention.attention.key",
    "value": "attention.attention.value",
    "out": "attention.output.dense",
}


@dataclasses.dataclass(frozen=True)
class Names:
    """The array names of one model type.

    Attributes:
        prefix: of the backbone inside a larger model.
        block: name of a block, before its number.
        norms, mlp, swiglu: the two normalisations and the two dense layers of a block, of either form.
        attention: {our name: theirs} of the attention's dense layers.
        last_norm, patch: the last normalisation, the patch embedding.
        epsilon: the type's default.
        usual: mean and std of the images.
    """

    prefix: str
    block: str = "encoder.layer"
    norms: tuple = ("norm1", "norm2")
    mlp: tuple = ("mlp.fc1", "mlp.fc2")
    swiglu: tuple = ("mlp.weights_in", "mlp.weights_out")
    attention: Mapping[str, str] = dataclasses.field(default_factory=lambda: _BERT_ATTENTION)
    last_norm: str = "layernorm"
    patch: str = "embeddings.patch_embeddings.projection"
    epsilon: float = 1e-6
    usual: tuple = (IMAGENET_MEAN, IMAGENET_STD)


_HALF = (127.5, 127.5)

_VIT = {
    "norms": ("layernorm_before", "layernorm_after"),
    "mlp": ("intermediate.dense", "output.dense"),
    "epsilon": 1e-12,
}
_SIGLIP_ATTENTION = {
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "out": "self_attn.out_proj",
}
_SIGLIP = {
    "block": "encoder.layers",
    "norms": ("layer_norm1", "layer_norm2"),
    "attention": _SIGLIP_ATTENTION,
    "last_norm": "post_layernorm",
    "patch": "embeddings.patch_embedding",
}
# {model type: its names}: in files of save_pretrained, in every release.
IN_FILES = {
    "vit": Names("vit.", usual=_HALF, **_VIT),
    "deit": Names("deit.", **_VIT),
    "dinov2": Names("dinov2."),
    "dinov2_with_registers": Names("dinov2_with_registers."),
    "siglip_vision_model": Names("vision_model.", usual=_HALF, **_SIGLIP),
    "clip_vision_model": Names("vision_model.", usual=(CLIP_MEAN, CLIP_STD), epsilon=1e-5, **_SIGLIP),
}
_PROJECTIONS = {name: f"attention.{name[0]}_proj" for name in ("query", "key", "value", "out")}
_LAYERS = {"block": "layers", "mlp": ("mlp.fc1", "mlp.fc2")}
_SWIGLU = {"swiglu": ("mlp.weights_in", "mlp.down_proj")}  # the first by join_gates
GATES = (".mlp.gate_proj.", ".mlp.up_proj.", ".mlp.weights_in.")
# In memory, and so in a saved state_dict(): since transformers 5.9, of DINOv2 since 5.18.
IN_MEMORY = IN_FILES | {
    kind: dataclasses.replace(IN_FILES[kind], attention=_PROJECTIONS, **changes)
    for kind, changes in (
        ("vit", _LAYERS),
        ("deit", _LAYERS),
        ("dinov2", _SWIGLU),
        ("dinov2_with_registers", _SWIGLU),
    )
}
FLAT = ("siglip_vision_model", "clip_vision_model")  # with position tables of two axes


def spelling(arrays: Collection[str]) -> Mapping[str, Names]:
    """The table of names, IN_FILES or IN_MEMORY, by the array names."""
    return IN_MEMORY if any(name.endswith("attention.q_proj.weight") for name in arrays) else IN_FILES


def block_map(theirs, ours, names, spec):
    entries = {}
    for name, their_name in names.attention.items():
        dense = torch_dense(theirs + their_name, f"{ours}/attention/{name}")
        if name != "out" and not (spec["qkv_bias"] and (name != "key" or spec.get("key_bias", True))):
            dense.pop(f"{theirs}{their_name}.bias")
        entries.update(dense)
    for their_name, name in zip(names.norms, ("attention_norm", "mlp_norm")):
        entries.update(torch_norm(theirs + their_name, f"{ours}/{name}"))
    their_mlp = names.swiglu if spec["mlp_form"] == "swiglu" else names.mlp
    for their_name, name in zip(their_mlp, ("hidden", "out")):
        entries.update(torch_dense(theirs + their_name, f"{ours}/mlp/{name}"))
    if spec["layer_scale"] is not None:
        entries[f"{theirs}layer_scale1.lambda1"] = same(f"{ours}/attention_scale/gamma")
        entries[f"{theirs}layer_scale2.lambda1"] = same(f"{ours}/mlp_scale/gamma")
    return entries


def _map_head_names(theirs):
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


def name_map(spec: Mapping, classes: int | None, kind: str, spelled: Mapping[str, Names] = IN_FILES) -> NameMap:
    """{name: Entry} of a model of type `kind`, its names as in `spelled`; `spec` is a dict of ViTSpec's fields."""
    names = spelled[kind]
    root = f"{names.prefix}embeddings."
    patch = f"{names.prefix}{names.patch}"
    entries = {f"{patch}.weight": conv("patch_encoder/kernel")}
    if spec.get("pre_norm"):
        entries |= torch_norm(f"{names.prefix}pre_layrnorm", "pre_norm")  # their spelling
    else:
        entries[f"{patch}.bias"] = same("patch_encoder/bias")
    tokens = (
        ("class_token", "cls_token"),
        ("distillation_token", "distillation_token"),
        ("registers", "register_tokens"),
    )
    if kind == "clip_vision_model":
        entries[f"{root}class_embedding"] = same("class_token/tokens", (-1,))
    else:
        entries.update({root + theirs: same(f"{ours}/tokens") for ours, theirs in tokens if spec[ours]})
    if kind in FLAT:
        entries[f"{root}position_embedding.weight"] = positions("position_embedding/embedding", 0, (-1, spec["width"]))
    else:
        entries[f"{root}position_embeddings"] = positions("position_embedding/embedding", 0)
    for i in range(spec["depth"]):
        entries.update(block_map(f"{names.prefix}{names.block}.{i}.", f"block_{i:02d}", names, spec))
    entries.update(torch_norm(f"{names.prefix}{names.last_norm}", "encoder_norm"))
    if spec["pool"] == "map":
        entries.update(_map_head_names(f"{names.prefix}head."))
    if classes is not None and spec["distillation_token"]:
        entries.update({**torch_dense("cls_classifier", "head"), **torch_dense("distillation_classifier", "head_dist")})
    elif classes is not None:
        entries.update(torch_dense("classifier", "head"))
    if spec.get("pre_logits"):
        entries.update(torch_dense("pooler.dense", "pre_logits"))
    return entries
