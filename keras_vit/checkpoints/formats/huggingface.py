"""Hugging Face's safetensors with config.json: ViT, DeiT, DINOv2 (with or without registers), and the vision towers of
SigLIP, SigLIP 2 and CLIP.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from keras_vit.checkpoints.formats import huggingface_config, parsed
from keras_vit.checkpoints.formats.capabilities import Capabilities, any_of
from keras_vit.checkpoints.formats.huggingface_config import ACTIVATIONS, SIZES, VERSION, dinov2_mlp_ratio, is_named
from keras_vit.checkpoints.formats.name_map import NameMap, Names, pack, same, spellings
from keras_vit.checkpoints.formats.parsed import ParsedCheckpoint, grid, heads, hint_grid, pixels
from keras_vit.checkpoints.formats.settings import model_facts, setting, stated_pair
from keras_vit.checkpoints.formats.shown import Shown, need, renamed

BLOCK = Names(
    """
    {theirs}{query}       {ours}/attention/query             matrix
    {theirs}{query}       {ours}/attention/query             bias         if qkv_bias
    {theirs}{key}         {ours}/attention/key               matrix
    {theirs}{key}         {ours}/attention/key               bias         if qkv_bias, key_bias, not keyless
    {theirs}{value}       {ours}/attention/value             matrix
    {theirs}{value}       {ours}/attention/value             bias         if qkv_bias, not keyless
    {theirs}{value}.bias  {ours}/attention/<value,key>/bias  without_key  if qkv_bias, keyless
    {theirs}{out}         {ours}/attention/out               dense
    {theirs}{norm1}       {ours}/attention_norm              norm
    {theirs}{norm2}       {ours}/mlp_norm                    norm
    {theirs}{fc1}         {ours}/mlp/hidden                  dense        if mlp_form=plain
    {theirs}{fc2}         {ours}/mlp/out                     dense        if mlp_form=plain
    {theirs}{gated1}      {ours}/mlp/hidden                  dense        if mlp_form=swiglu, not apart
    {theirs}<{gate},{up}>  {ours}/mlp/hidden                 dense        if mlp_form=swiglu, apart
    {theirs}{gated2}      {ours}/mlp/out                     dense        if mlp_form=swiglu
    {theirs}{scale1}      {ours}/attention_scale/gamma       same         if layer_scale
    {theirs}{scale2}      {ours}/mlp_scale/gamma             same         if layer_scale
    """
)
# pre_layrnorm is their spelling.
_NAMES = Names(
    """
    {root}{patch}.weight                 patch_encoder/kernel          conv
    {root}{patch}.bias                   patch_encoder/bias            same            if not pre_norm
    {root}pre_layrnorm                   pre_norm                      norm            if pre_norm
    {root}embeddings.class_embedding     class_token/tokens            vector          if clip
    {root}embeddings.cls_token           class_token/tokens            same            if class_token, not clip
    {root}embeddings.distillation_token  distillation_token/tokens     same            if distillation_token
    {root}embeddings.register_tokens     registers/tokens              same            if registers
    {root}embeddings.{table}             position_embedding/embedding  positions       if table, not flat
    {root}embeddings.{table}             position_embedding/embedding  flat_positions  if flat
    """,
    {"vector": lambda fields, ours: same(ours, (-1,))},
)
_NAMES += BLOCK.spelled(theirs="{root}{block}.{i}.", ours="block_{i:02d}")
_NAMES += Names(
    """
    {root}{last}                         encoder_norm                     norm    if final_norm
    {root}head.probe                     pool/probe                       same    if pool=map
    {root}head.attention.in_proj_weight  pool/<query,key,value>/kernel    linear  if pool=map
    {root}head.attention.in_proj_bias    pool/<query,key,value>/bias      same    if pool=map
    {root}head.attention.out_proj        pool/out                         dense   if pool=map
    {root}head.layernorm                 pool/norm                        norm    if pool=map
    {root}head.mlp.fc<1,2>               pool/mlp/<hidden,out>            dense   if pool=map
    cls_classifier                       head                             dense   if classes, distillation_token
    distillation_classifier              head_dist                        dense   if classes, distillation_token
    classifier                           head                             dense   if classes, not distillation_token
    pooler.dense                         pre_logits                       dense   if pre_logits
    """
)


@dataclasses.dataclass(frozen=True)
class Spelling:
    """The array names of one model type.

    Attributes:
        root: prefix of the backbone inside a larger model.
        words: of the table of names, see WORDS.
        epsilon: the type's default.
        usual: mean and std of the images.
        flags: "clip", whose class token is a vector; "flat" for a position table of two axes; "keyless" for biases of
            query and value alone; "apart" for SwiGLU's gate and values in two layers.
    """

    root: str
    words: Mapping[str, str | None]
    epsilon: float = 1e-6
    usual: tuple = parsed.IMAGENET
    flags: tuple[str, ...] = ()

    def but(self, root: str | None = None, flags: tuple[str, ...] | None = None, **words: str) -> "Spelling":
        """The same with another root, other flags and some other words."""
        root, flags = self.root if root is None else root, self.flags if flags is None else flags
        return dataclasses.replace(self, root=root, words={**self.words, **words}, flags=flags)

    @functools.cached_property
    def names(self) -> Names:
        """The type's table."""
        return _NAMES.spelled(root=self.root, **self.words)

    @property
    def patch(self) -> str:
        """The name of the patch embedding's weights without the root."""
        return f"{self.words['patch']}.weight"

    def map(self, fields: Mapping[str, Any], classes: int | None = None) -> NameMap:
        """{name: Entry} of a model; `fields` are ViTSpec's."""
        flags = dict.fromkeys(self.flags, True)
        return self.names.map(fields, classes=classes, table=self.words["table"], **flags)


PROJECTIONS = {name: f"attention.{name[0]}_proj" for name in ("query", "key", "value", "out")}
WORDS = spellings(
    """
    word    vit                                     dinov2                                  siglip
    query   attention.attention.query               attention.attention.query               self_attn.q_proj
    key     attention.attention.key                 attention.attention.key                 self_attn.k_proj
    value   attention.attention.value               attention.attention.value               self_attn.v_proj
    out     attention.output.dense                  attention.output.dense                  self_attn.out_proj
    block   encoder.layer                           encoder.layer                           encoder.layers
    norm1   layernorm_before                        norm1                                   layer_norm1
    norm2   layernorm_after                         norm2                                   layer_norm2
    fc1     intermediate.dense                      mlp.fc1                                 mlp.fc1
    fc2     output.dense                            mlp.fc2                                 mlp.fc2
    gated1  -                                       mlp.weights_in                          -
    gated2  -                                       mlp.weights_out                         -
    gate    -                                       mlp.gate_proj                           -
    up      -                                       mlp.up_proj                             -
    scale1  -                                       layer_scale1.lambda1                    -
    scale2  -                                       layer_scale2.lambda1                    -
    last    layernorm                               layernorm                               post_layernorm
    patch   embeddings.patch_embeddings.projection  embeddings.patch_embeddings.projection  embeddings.patch_embedding
    table   position_embeddings                     position_embeddings                     position_embedding.weight
    """
)
# {model type: its names}: in files of save_pretrained, in every release.
IN_FILES = {
    "vit": Spelling("vit.", WORDS["vit"], 1e-12, parsed.HALF),
    "deit": Spelling("deit.", WORDS["vit"], 1e-12),
    "dinov2": Spelling("dinov2.", WORDS["dinov2"]),
    "dinov2_with_registers": Spelling("dinov2_with_registers.", WORDS["dinov2"]),
    "siglip_vision_model": Spelling("vision_model.", WORDS["siglip"], usual=parsed.HALF, flags=("flat",)),
    "clip_vision_model": Spelling("vision_model.", WORDS["siglip"], 1e-5, parsed.CLIP, ("flat", "clip")),
}
_LAYERS = {**PROJECTIONS, "block": "layers", "fc1": "mlp.fc1", "fc2": "mlp.fc2"}
_SWIGLU = {**PROJECTIONS, "gated2": "mlp.down_proj", "flags": ("apart",)}
# In memory, and so in a saved state_dict(): since transformers 5.9, of DINOv2 since 5.18.
IN_MEMORY = IN_FILES | {
    kind: IN_FILES[kind].but(**changes)
    for kind, changes in (("vit", _LAYERS), ("deit", _LAYERS), ("dinov2", _SWIGLU), ("dinov2_with_registers", _SWIGLU))
}
# Sections of a larger model's config.json for its image model.
_SECTIONS = ("vision_config", "backbone_config", "encoder")
_DROPPED = re.compile(r"(pooler\.|embeddings\.mask_token$|embeddings\.position_ids$)")


def spelling(arrays: Collection[str]) -> Mapping[str, Spelling]:
    """The table of names, IN_FILES or IN_MEMORY, by the array names."""
    return IN_MEMORY if any(name.endswith("attention.q_proj.weight") for name in arrays) else IN_FILES


def model_type(spec: Any) -> str:
    """The type in IN_FILES with which Hugging Face builds a model that CAPABILITIES accepts."""
    if spec.pre_norm:
        return "clip_vision_model"
    if spec.pool == "map" or not spec.class_token:
        return "siglip_vision_model"
    if spec.registers or spec.layer_scale is not None or spec.mlp_form == "swiglu":
        return "dinov2_with_registers" if spec.registers else "dinov2"
    return "deit" if spec.distillation_token else "vit"


def _rules(model):
    spec, kind, has_head = model.spec, model_type(model.spec), model.classes is not None
    (p, q), (h, w) = spec.patch_size, model.image_size
    unlike = spec.registers > 0 or spec.layer_scale is not None or spec.mlp_form == "swiglu"
    siglip = unlike or not spec.qkv_bias or (spec.pool == "map" and (has_head or spec.class_token))
    yield (
        kind == "siglip_vision_model" and siglip,
        'a model without a class token or with pool="map" that is not a SigLIP (a SigLIP has no registers,'
        ' layer_scale or swiglu, has qkv_bias=True, and with pool="map" neither a class token nor a head, which'
        ' head="drop" removes; or use format="timm")',
    )
    clip = unlike or spec.distillation_token or spec.pool != "token" or not spec.qkv_bias or has_head
    yield (
        spec.pre_norm and clip,
        "pre_norm=True in a model that is not a CLIP (a CLIP has a class token, which it pools, qkv_bias=True, no"
        " registers, layer_scale or swiglu, and no head)",
    )
    is_dinov2, pool = kind.startswith("dinov2"), "token_gap" if has_head else "token"
    dinov2 = spec.layer_scale is None or spec.distillation_token or spec.pool != pool
    yield (
        is_dinov2 and dinov2,
        "registers, layer_scale or swiglu in a model that is not a DINOv2 (a DINOv2 has layer_scale, no"
        ' distillation token, and pool="token" without a head or "token_gap" with one; or use format="timm")',
    )
    sizes = f"width={spec.width}, mlp_dim={spec.mlp_dim}"
    no_ratio = is_dinov2 and not dinov2 and dinov2_mlp_ratio(spec) is None
    yield no_ratio, f'a DINOv2 with {sizes}, which no mlp_ratio gives (use format="timm")'
    pooled = kind in ("vit", "deit") and spec.pool != "token"
    yield pooled, f'a ViT with a class token and pool="{spec.pool}" (use format="timm")'
    yield p != q, f'patches that are not square, patch_size={(p, q)} (use format="timm")'
    wide = h != w and kind not in ("vit", "deit")
    yield wide, f'a {kind} for images that are not square, image_size={(h, w)} (use format="timm")'


CAPABILITIES = Capabilities(
    "huggingface",
    {
        **any_of("patch_size depth width mlp_dim heads class_token distillation_token registers qkv_bias layer_scale"),
        **any_of("mlp_form pre_norm"),
        "positions": ("learned",),
        "pool": ("token", "gap", "map", "token_gap"),
        # In config.json and preprocessor_config.json:
        "mlp_activation": tuple(dict.fromkeys(ACTIVATIONS.values())),
        **any_of("epsilon mean std"),
    },
    _rules,
)


def _type(arrays):
    """The model type by the array names: config.json may be missing, or describe a larger model."""

    def ends(end):
        return any(name.endswith(end) for name in arrays)

    if ends("embeddings.patch_embedding.weight"):
        return "clip_vision_model" if ends("embeddings.class_embedding") else "siglip_vision_model"
    if ends("layer_scale1.lambda1"):
        return "dinov2_with_registers" if ends("embeddings.register_tokens") else "dinov2"
    return "deit" if ends("embeddings.distillation_token") else "vit"


def _with_convolution(arrays, config):
    """The arrays, with the linear patch embedding of SigLIP 2's NaFlex models, (d, p*p*c), as a convolution."""
    name = next((name for name in arrays if name.endswith("embeddings.patch_embedding.weight")), None)
    if name is None or arrays[name].ndim != 2:
        return arrays
    width, values = arrays[name].shape
    channels = setting(config, "num_channels", int) or 3
    side = math.isqrt(values // channels)
    if side * side * channels != values:
        raise ValueError(f'The array "{name}" has {values} columns, not square patches of {channels} channels.')
    kernel = arrays[name].reshape(width, side, side, channels)  # (d, p*p*c) -> (d, p, p, c)
    return {**arrays, name: kernel.transpose(0, 3, 1, 2)}


def _normalise(arrays, spelled):
    """(the arrays with the type's prefix, which a backbone alone lacks, the names left out)."""
    patch = spelled.patch
    anchor = next((name for name in arrays if name.endswith(patch)), None)
    if anchor is None:
        raise ValueError(f'The array "{patch}" is missing.')
    prefix = anchor.removesuffix(patch)
    outer = ("classifier.", "cls_classifier.", "distillation_classifier.")
    # SigLIP's classifiers average the tokens and ignore their MAP head.
    idle = (f"{prefix}head.",) if "classifier.weight" in arrays and spelled.root == "vision_model." else ()
    # transformers 5 saves the blocks of ViTMSNForImageClassification without the prefix.
    roots = (prefix, f"{spelled.words['block']}.", *outer)

    def belongs(name):
        return name.startswith(roots) and not name.startswith(idle) and not _DROPPED.search(name)

    kept = {name: a for name, a in arrays.items() if belongs(name)}
    arrays_of_model = renamed(
        kept, lambda name: name if name.startswith(outer) else spelled.root + name.removeprefix(prefix)
    )
    return arrays_of_model, [name for name in arrays if name not in kept]


def read_fields(
    shown: Shown, kind: str, config: Mapping[str, Any], options: Any, epsilon: float = 1e-6, registers: bool = True
) -> dict[str, Any]:
    """The fields of the spec, without the normalisation.

    Args:
        shown: by the arrays.
        kind: model type.
        config, options: config.json, or its section, and those of `parse`.
        epsilon: the type's default.
        registers: whether config.json counts them as the arrays do.
    """
    certain, fields = is_named(config), shown.vit_fields()
    stated = setting(config, "num_register_tokens", int) if registers else None
    if stated not in (None, fields["registers"]):
        raise ValueError(f"config.json has {stated} register tokens, but the arrays have {fields['registers']}.")
    stated = huggingface_config.stated_heads(config, kind)
    fields["heads"], _ = heads(fields["width"], options, stated)
    is_new, has_head = options.get("head") == "reset", "classifier.weight" in shown.arrays
    pool = "token" if fields["class_token"] else "gap"
    if "pool/probe" in shown:
        pool = "map"
    elif has_head and kind.startswith("dinov2"):
        # Another head than Hugging Face's reads the class token alone.
        both = shown.arrays["classifier.weight"].shape[-1] == 2 * fields["width"]
        pool = "token_gap" if both else options.value("pool", "token", certain=is_new)
    elif fields["class_token"] and has_head and kind == "vit":
        # transformers' class reads the class token.
        pool = options.value("pool", "token", certain=certain or is_new)
    swiglu = fields["mlp_form"] == "swiglu"
    return {
        **fields,
        "layer_scale": 1.0 if fields["layer_scale"] else None,
        "mlp_activation": "gelu" if swiglu else huggingface_config.mlp_activation(config, kind, options, certain),
        "epsilon": huggingface_config.epsilon(config, epsilon, options, certain),
        "pool": pool,
        "final_norm": True,
    }


def _pooler(arrays, config, options):
    """{name: array} of ViTModel's pooler if the head reads it, else {}.

    If the file contains both, and nothing says so, it is asked for. Hugging Face's own classifiers have no pooler.
    """
    found = {
        match[1]: a for name, a in arrays.items() if (match := re.search(r"(pooler\.dense\.(?:weight|bias))$", name))
    }
    is_theirs = any("Classification" in str(name) for name in setting(config, "architectures", list) or ())
    if not found or is_theirs or "classifier.weight" not in arrays:
        return {}
    width = need(found, "pooler.dense.weight", 2).shape[0]
    if "pre_logits" not in options:
        options.value("pre_logits", width)
        return {}
    return found if options["pre_logits"] else {}


def _check_head(arrays, kind, options):
    """The arrays without the head of CLIPForImageClassification, which averages tokens that are not normalised.

    Raises:
        ValueError: if that head is to be kept, and for a head that another model reads otherwise.
    """
    if kind not in ("clip_vision_model", "deit") or "classifier.weight" not in arrays:
        return arrays
    if kind == "deit":
        raise ValueError(
            "A DeiT with a distillation token and one head (DeiTForImageClassification) is not supported: its second"
            " head is missing."
        )
    if options.get("head", "keep") == "keep":
        raise ValueError(
            "A classifier on CLIP (CLIPForImageClassification) is not supported, only its vision tower: pass"
            ' head="drop" for its features, or head="reset" and classes=... for a new head.'
        )
    return {name: a for name, a in arrays.items() if not name.startswith("classifier.")}


def _grid(shown, fields, config, options):
    """(the grid (h, w) of the position table, the image size in config.json or None if that is of another grid)."""
    name, _ = shown.places["position_embedding/embedding"]
    table = need(shown.arrays, name, 2 if name.endswith(".weight") else 3)
    prefix = int(fields["class_token"]) + int(fields["distillation_token"])
    stated = stated_pair(config, "image_size")
    hint = hint_grid(options, fields["patch_size"], stated)
    shape = grid(table.shape[-2] - prefix, hint, options)
    fits = stated is not None and tuple(s // p for s, p in zip(stated, fields["patch_size"])) == shape
    return shape, stated if fits else None


def in_section(outer: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    """The first of these sections of a config.json that it has, or all of it; named if the whole is."""
    config = next((part for name in names if (part := setting(outer, name, dict)) is not None), outer)
    if not is_named(outer):
        return config
    return {**config, "architectures": outer.get("architectures") or [outer["model_type"]]}


def parse(contents: Any, options: Any) -> ParsedCheckpoint:
    """Parses a folder or file with these names; arguments and errors as in timm.parse."""
    outer, kind = contents.config, _type(contents.arrays)
    spelled, config = spelling(contents.arrays)[kind], in_section(outer, *_SECTIONS)
    huggingface_config.check_type(config, kind)
    found = _check_head(contents.arrays, kind, options)
    arrays, dropped = _normalise(_with_convolution(found, config), spelled)
    shown = Shown(spelled.names, arrays)
    fields, classes, channels = (
        read_fields(shown, kind, config, options, spelled.epsilon),
        shown.classes,
        shown.channels,
    )
    if pooler := _pooler(contents.arrays, outer, options):
        arrays, dropped = {**arrays, **pooler}, [name for name in dropped if not name.endswith(tuple(pooler))]
        fields.update(pre_logits=len(pooler["pooler.dense.weight"]), pre_logits_activation="tanh")
    fields |= huggingface_config.normalisation(contents.preprocessor, channels, options, spelled.usual)
    shape, stated = _grid(shown, fields, config, options)
    size = pixels(shape, fields["patch_size"])
    huggingface_config.check_config(outer, config, kind, fields, stated or size, classes, channels)
    return ParsedCheckpoint(
        "ViT",
        fields,
        size,
        spelled.map(fields, classes),
        arrays,
        classes,
        channels,
        class_names=huggingface_config.labels(outer, classes),
        dropped=dropped,
        resample="timm" if kind == "dinov2_with_registers" else "bicubic",
        preprocessing=huggingface_config.preprocessing(contents.preprocessor),
        activation=None if classes is None else huggingface_config.activation(outer),
    )


def _architecture(kind, has_head):
    """The Hugging Face class of the model."""
    if kind == "clip_vision_model":
        return "CLIPVisionModel"
    if kind == "siglip_vision_model":
        return "SiglipForImageClassification" if has_head else "SiglipVisionModel"
    if kind == "deit":
        return "DeiTForImageClassificationWithTeacher" if has_head else "DeiTModel"
    name = {"vit": "ViT", "dinov2": "Dinov2", "dinov2_with_registers": "Dinov2WithRegisters"}[kind]
    return name + ("ForImageClassification" if has_head else "Model")


def to_config(model: Any) -> dict[str, Any]:
    """config.json."""
    spec, kind = model.spec, model_type(model.spec)
    architecture = _architecture(kind, model.classes is not None)
    inner = SIZES.written(model_facts(model, act=huggingface_config.hidden_act(spec)))
    if kind == "siglip_vision_model":
        inner |= {"intermediate_size": spec.mlp_dim, "vision_use_head": spec.pool == "map"}
    elif kind == "clip_vision_model":  # attention in SigLIP and CLIP always has the biases
        inner |= {"intermediate_size": spec.mlp_dim}
    elif not kind.startswith("dinov2"):
        inner |= {"intermediate_size": spec.mlp_dim, "qkv_bias": spec.qkv_bias}
    else:
        inner |= {"qkv_bias": spec.qkv_bias, "use_swiglu_ffn": spec.mlp_form == "swiglu"}
        inner |= {"layerscale_value": spec.layer_scale, "mlp_ratio": dinov2_mlp_ratio(spec)}
        inner |= {"num_register_tokens": spec.registers} if spec.registers else {}
    labels = huggingface_config.to_labels(model)
    header = {"architectures": [architecture], "transformers_version": VERSION}
    if architecture == "SiglipForImageClassification":
        vision = {**inner, "model_type": kind}
        return {**header, "model_type": "siglip", "vision_config": vision, "text_config": {}, **labels}
    return {**header, "model_type": kind, **inner, **labels}


def write(model: Any, weights: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """(arrays, {config file: content}) of a model; ValueError for one that the format cannot express."""
    CAPABILITIES.check(model)
    kind = model_type(model.spec)
    arrays = pack(IN_FILES[kind].map(vars(model.spec), model.classes), weights)
    if kind.startswith("dinov2"):  # a token for masked training is part of the format
        arrays[f"{kind}.embeddings.mask_token"] = np.zeros((1, model.spec.width), "float32")
    return arrays, huggingface_config.files(model, to_config(model))
