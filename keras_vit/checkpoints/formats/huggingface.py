"""Hugging Face's safetensors with config.json: ViT, DeiT, DINOv2 (with or without registers), and the vision towers of
SigLIP, SigLIP 2 and CLIP.
"""

import math
import re

from keras_vit.checkpoints.formats.capabilities import ANY, Capabilities
from keras_vit.checkpoints.formats.gates import join_gates
from keras_vit.checkpoints.formats.huggingface_config import (
    ACTIVATIONS,
    activation,
    check_config,
    check_type,
    dinov2_mlp_ratio,
    epsilon,
    is_named,
    labels,
    mlp_activation,
    normalisation,
    preprocessing,
    stated_heads,
)
from keras_vit.checkpoints.formats.huggingface_names import FLAT, GATES, name_map, spelling
from keras_vit.checkpoints.formats.parsed import (
    ParsedCheckpoint,
    depth,
    grid,
    heads,
    hint_grid,
    need,
    pixels,
    renamed,
    setting,
    stated_pair,
)

VERSION = "4.57.6"  # of transformers, declared in config.json: the files that we write have its names
# Sections of a larger model's config.json for its image model.
_SECTIONS = ("vision_config", "backbone_config", "encoder")
_DROPPED = re.compile(r"(pooler\.|embeddings\.mask_token$|embeddings\.position_ids$)")


def model_type(spec) -> str:
    """The type in IN_FILES with which Hugging Face builds a model that CAPABILITIES accepts."""
    if spec.pre_norm:
        return "clip_vision_model"
    if spec.pool == "map" or not spec.class_token:
        return "siglip_vision_model"
    if spec.registers or spec.layer_scale is not None or spec.mlp_form == "swiglu":
        return "dinov2_with_registers" if spec.registers else "dinov2"
    return "deit" if spec.distillation_token else "vit"


def _siglip_fields(model):
    spec, head = model.spec, model.classes is not None
    unusual = spec.registers or spec.layer_scale is not None or spec.mlp_form == "swiglu" or not spec.qkv_bias
    unusual = unusual or (spec.pool == "map" and (head or spec.class_token))
    if model_type(spec) == "siglip_vision_model" and unusual:
        return (
            'a model without a class token or with pool="map" that is not a SigLIP (a SigLIP has no registers,'
            ' layer_scale or swiglu, has qkv_bias=True, and with pool="map" neither a class token nor a head, which'
            ' head="drop" removes; or use format="timm")'
        )
    return None


def _clip_fields(model):
    spec = model.spec
    unusual = spec.registers or spec.layer_scale is not None or spec.mlp_form == "swiglu" or spec.distillation_token
    unusual = unusual or spec.pool != "token" or not spec.qkv_bias or model.classes is not None
    if spec.pre_norm and unusual:
        return (
            "pre_norm=True in a model that is not a CLIP (a CLIP has a class token, which it pools, qkv_bias=True, no"
            " registers, layer_scale or swiglu, and no head)"
        )
    return None


def _dinov2_fields(model):
    spec, head = model.spec, model.classes is not None
    pool = "token_gap" if head else "token"
    if model_type(spec).startswith("dinov2") and (
        spec.layer_scale is None or spec.distillation_token or spec.pool != pool
    ):
        return (
            "registers, layer_scale or swiglu in a model that is not a DINOv2 (a DINOv2 has layer_scale, no"
            ' distillation token, and pool="token" without a head or "token_gap" with one; or use format="timm")'
        )
    if model_type(spec).startswith("dinov2") and dinov2_mlp_ratio(spec) is None:
        return f'a DINOv2 with width={spec.width}, mlp_dim={spec.mlp_dim}, which no mlp_ratio gives (use format="timm")'
    return None


def _vit_pool(model):
    if model_type(model.spec) in ("vit", "deit") and model.spec.pool != "token":
        return f'a ViT with a class token and pool="{model.spec.pool}" (use format="timm")'
    return None


def _square_patches(model):
    h, w = model.spec.patch_size
    return None if h == w else f'patches that are not square, patch_size={(h, w)} (use format="timm")'


def _square_images(model):
    kind, (h, w) = model_type(model.spec), model.image_size
    if h != w and kind not in ("vit", "deit"):
        return f'a {kind} for images that are not square, image_size={(h, w)} (use format="timm")'
    return None


CAPABILITIES = Capabilities(
    "huggingface",
    {
        "patch_size": ANY,
        "depth": ANY,
        "width": ANY,
        "mlp_dim": ANY,
        "heads": ANY,
        "class_token": (True, False),
        "distillation_token": (True, False),
        "registers": ANY,
        "positions": ("learned",),
        "pool": ("token", "gap", "map", "token_gap"),
        "qkv_bias": (True, False),
        "layer_scale": ANY,
        "mlp_form": ("plain", "swiglu"),
        "pre_norm": (True, False),
        # In config.json and preprocessor_config.json:
        "mlp_activation": tuple(dict.fromkeys(ACTIVATIONS.values())),
        "epsilon": ANY,
        "mean": ANY,
        "std": ANY,
    },
    rules=(_siglip_fields, _clip_fields, _dinov2_fields, _vit_pool, _square_patches, _square_images),
)


def _type(arrays, config):
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


def _normalise(arrays, names):
    """(the arrays with the prefix of `names`, which a backbone alone lacks, the names left out)."""
    anchor = next((name for name in arrays if name.endswith(f"{names.patch}.weight")), None)
    if anchor is None:
        raise ValueError(f'The array "{names.patch}.weight" is missing.')
    prefix = anchor.removesuffix(f"{names.patch}.weight")
    outer = ("classifier.", "cls_classifier.", "distillation_classifier.")
    # SigLIP's classifiers average the tokens and ignore their MAP head.
    idle = (f"{prefix}head.",) if "classifier.weight" in arrays and names.prefix == "vision_model." else ()

    # transformers 5 saves the blocks of ViTMSNForImageClassification without the prefix.
    roots = (prefix, f"{names.block}.", *outer)

    def belongs(name):
        return name.startswith(roots) and not name.startswith(idle) and not _DROPPED.search(name)

    kept = {name: a for name, a in arrays.items() if belongs(name)}
    arrays_of_model = renamed(
        kept, lambda name: name if name.startswith(outer) else names.prefix + name.removeprefix(prefix)
    )
    return arrays_of_model, [name for name in arrays if name not in kept]


def read_fields(arrays, names, kind, config, options):
    """The fields of the spec, without the normalisation."""
    certain = is_named(config)
    block = f"{names.prefix}{names.block}.0."
    w = need(arrays, f"{names.prefix}{names.patch}.weight", 4)
    swiglu = f"{block}{names.swiglu[0]}.weight" in arrays
    hidden = need(arrays, f"{block}{(names.swiglu if swiglu else names.mlp)[1]}.weight", 2)
    tokens = f"{names.prefix}embeddings.register_tokens"
    registers = need(arrays, tokens, 3).shape[1] if tokens in arrays else 0
    if setting(config, "num_register_tokens", int) not in (None, registers):
        raise ValueError(
            f'config.json has {config["num_register_tokens"]} register tokens, but the array "{tokens}" has'
            f" {registers}."
        )
    k, _ = heads(w.shape[0], options, stated_heads(config, kind))
    class_token = any(f"{names.prefix}embeddings.{name}" in arrays for name in ("cls_token", "class_embedding"))
    pool = "token" if class_token else "gap"
    if f"{names.prefix}head.probe" in arrays:
        pool = "map"
    elif "classifier.weight" in arrays and kind.startswith("dinov2"):
        # Another head than Hugging Face's reads the class token alone.
        both = arrays["classifier.weight"].shape[-1] == 2 * w.shape[0]
        pool = "token_gap" if both else options.value("pool", "token", certain=options.get("head") == "reset")
    elif class_token and "classifier.weight" in arrays and kind == "vit":
        # transformers' class reads the class token.
        pool = options.value("pool", "token", certain=certain or options.get("head") == "reset")
    return {
        "patch_size": w.shape[2:],
        "depth": depth(arrays, rf"{re.escape(names.prefix + names.block)}\.(\d+)\."),
        "width": w.shape[0],
        "heads": k,
        "mlp_dim": hidden.shape[1],
        "mlp_form": "swiglu" if swiglu else "plain",
        "class_token": class_token,
        "distillation_token": f"{names.prefix}embeddings.distillation_token" in arrays,
        "registers": registers,
        "layer_scale": 1.0 if kind.startswith("dinov2") else None,
        "qkv_bias": f"{block}{names.attention['query']}.bias" in arrays,
        "mlp_activation": "gelu" if swiglu else mlp_activation(config, kind, options, certain),
        "epsilon": epsilon(config, names.epsilon, options, certain),
        "pool": pool,
        "pre_norm": kind == "clip_vision_model",
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


def _without_clip_classifier(arrays, kind, options):
    """The arrays without the head of CLIPForImageClassification, which averages tokens that are not normalised.

    Raises:
        ValueError: if that head is to be kept.
    """
    if kind != "clip_vision_model" or "classifier.weight" not in arrays:
        return arrays
    if options.get("head", "keep") == "keep":
        raise ValueError(
            "A classifier on CLIP (CLIPForImageClassification) is not supported, only its vision tower: pass"
            ' head="drop" for its features, or head="reset" and classes=... for a new head.'
        )
    return {name: a for name, a in arrays.items() if not name.startswith("classifier.")}


def _classes(arrays, kind):
    """The number of classes, or None; ValueError for a head that another model reads otherwise."""
    head = next((name for name in ("classifier.weight", "cls_classifier.weight") if name in arrays), None)
    if kind == "deit" and "classifier.weight" in arrays:
        raise ValueError(
            "A DeiT with a distillation token and one head (DeiTForImageClassification) is not supported: its second"
            " head is missing."
        )
    return None if head is None else need(arrays, head, 2).shape[0]


def _grid(arrays, names, kind, fields, config, options):
    """(the grid (h, w) of the position table, the image size in config.json or None if that is of another grid)."""
    flat = kind in FLAT
    table = need(arrays, f"{names.prefix}embeddings.position_embedding{'.weight' if flat else 's'}", 2 if flat else 3)
    prefix = int(fields["class_token"]) + int(fields["distillation_token"])
    stated = stated_pair(config, "image_size")
    hint = hint_grid(options, fields["patch_size"], None if stated is None else list(stated))
    shape = grid(table.shape[0 if flat else 1] - prefix, hint, options)
    fits = stated is not None and tuple(s // p for s, p in zip(stated, fields["patch_size"])) == shape
    return shape, stated if fits else None


def parse(contents, options: dict) -> ParsedCheckpoint:
    """Parses a folder or file with names that `matches` accepts; arguments and errors as in timm.parse."""
    outer = contents.config
    kind = _type(contents.arrays, outer)
    spelled = spelling(contents.arrays)
    names = spelled[kind]
    config = next((part for name in _SECTIONS if (part := setting(outer, name, dict)) is not None), outer)
    if is_named(outer):  # and so are its sections
        config = {**config, "architectures": outer.get("architectures") or [outer["model_type"]]}
    check_type(config, kind)
    found = _without_clip_classifier(contents.arrays, kind, options)
    arrays, dropped = _normalise(join_gates(_with_convolution(found, config), *GATES), names)
    fields = read_fields(arrays, names, kind, config, options)
    if pooler := _pooler(contents.arrays, outer, options):
        arrays, dropped = {**arrays, **pooler}, [name for name in dropped if not name.endswith(tuple(pooler))]
        fields.update(pre_logits=len(pooler["pooler.dense.weight"]), pre_logits_activation="tanh")
    channels = need(arrays, f"{names.prefix}{names.patch}.weight", 4).shape[1]
    fields.update(normalisation(contents.preprocessor, names.usual, channels, options))
    classes = _classes(arrays, kind)
    shape, stated = _grid(arrays, names, kind, fields, config, options)
    size = pixels(shape, fields["patch_size"])
    check_config(outer, config, kind, fields, stated or size, classes, channels)
    return ParsedCheckpoint(
        "ViT",
        fields,
        size,
        name_map(fields, classes, kind, spelled),
        arrays,
        classes,
        channels,
        labels(outer, classes),
        dropped,
        resample="timm" if kind == "dinov2_with_registers" else "bicubic",
        preprocessing=preprocessing(contents.preprocessor),
        activation=None if classes is None else activation(outer),
    )
