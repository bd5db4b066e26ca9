"""The JSON that goes beside weights for timm and Hugging Face: what their constructors need to build the same model."""

import numpy as np

from keras_vit.checkpoints.huggingface import GELUS
from keras_vit.models.resnet import DEPTHS

# timm's architecture that has a hybrid's stem.
_STEMS = {
    (): "vit_tiny_r_s16_p8_224",
    (2, 2, 2, 2): "vit_small_r26_s32_224",
    (3, 4, 9): "vit_base_r50_s16_224",
    (3, 4, 6, 3): "vit_large_r50_s32_224",
}
_TIMM_BIT = ("50x1", "50x3", "101x1", "101x3", "152x2", "152x4")


def _constants(spec, channels):
    """mean and std, a list a channel, on the 0..1 scale."""
    return {name: (np.broadcast_to(getattr(spec, name), (channels,)) / 255).tolist() for name in ("mean", "std")}


def _labels(model):
    return {} if model.class_names is None else {"label_names": list(model.class_names)}


def _pretrained(model):
    """timm's description of how a model is evaluated."""
    size = [model.channels, *model.image_size]
    plain = {"input_size": size, "interpolation": "bicubic", "crop_pct": 0.9, "num_classes": model.classes or 0}
    return {**plain, **_constants(model.spec, model.channels), **_labels(model)}


def _architecture(spec):
    """The timm function that builds the model, given all sizes as arguments.

    Raises:
        ValueError: for a stem that timm has no function for.
    """
    if spec.stem is not None:
        if spec.stem not in _STEMS or spec.stem_width != 64:
            raise ValueError(
                f'The format "timm" has no hybrid with the stem {spec.stem}, {spec.stem_width} wide. Use "google" or "keras".'
            )
        return _STEMS[spec.stem]
    if spec.distillation_token:
        return "deit_base_distilled_patch16_224"
    if spec.mlp_form == "swiglu":
        return "vit_giant_patch14_dinov2"
    return "vit_base_patch16_siglip_224" if spec.pool == "map" else "vit_base_patch16_224"


def timm_vit(model, no_embed_class):
    """timm's config.json of a ViT; `no_embed_class`: the position table has rows for the patches only."""
    spec = model.spec
    pool = {"token": "token", "gap": "avg", "map": "map"}[spec.pool]
    arguments = {
        "img_size": list(model.image_size),
        "embed_dim": spec.width,
        "depth": spec.depth,
        "num_heads": spec.heads,
        # timm rounds width * ratio down; half a unit more keeps it from losing one.
        "mlp_ratio": (spec.mlp_dim * (2 if spec.mlp_form == "swiglu" else 1) + 0.5) / spec.width,
        "qkv_bias": spec.qkv_bias,
        "global_pool": pool,
        "class_token": spec.class_token,
        "no_embed_class": no_embed_class,
        "fc_norm": spec.fc_norm,
    }
    if spec.stem is None:
        arguments["patch_size"] = spec.patch_size[0] if spec.patch_size[0] == spec.patch_size[1] else list(spec.patch_size)
    optional = {"reg_tokens": spec.registers, "init_values": spec.layer_scale, "qk_norm": spec.qk_norm}
    arguments.update({name: value for name, value in optional.items() if value})
    if spec.gelu == "tanh" and spec.mlp_form == "gelu":
        arguments["act_layer"] = "gelu_tanh"
    if model.channels != 3:
        arguments["in_chans"] = model.channels
    return {
        "architecture": _architecture(spec),
        "num_classes": model.classes or 0,
        "num_features": spec.width,
        "global_pool": pool,
        "model_args": arguments,
        "pretrained_cfg": _pretrained(model),
    }


def timm_bit(model):
    """timm's config.json of a BiT.

    Raises:
        ValueError: for a size that timm has no function for.
    """
    spec = model.spec
    depth = {units: number for number, units in DEPTHS.items()}.get(spec.units)
    name = f"{depth}x{spec.width_factor:g}"
    if name not in _TIMM_BIT:
        raise ValueError(
            f'The format "timm" has no BiT with units {spec.units}, width factor {spec.width_factor}. Use "google" or "keras".'
        )
    arguments = {} if model.channels == 3 else {"in_chans": model.channels}
    return {
        "architecture": f"resnetv2_{name}_bit",
        "num_classes": model.classes or 0,
        "num_features": 2048 * int(spec.width_factor),
        "global_pool": "avg",
        "model_args": arguments,
        "pretrained_cfg": _pretrained(model),
    }


def _kind(model):
    """(model type, architecture) with which Hugging Face builds the model.

    Raises:
        ValueError: if it has none, saying what would fit.
    """
    spec, head = model.spec, model.classes is not None
    if spec.pool == "map" or not spec.class_token:
        if spec.registers or spec.layer_scale is not None or spec.mlp_form == "swiglu" or (spec.pool == "map" and head):
            raise ValueError(
                'The format "huggingface" has models without class token for SigLIP only: no registers, layer_scale or swiglu, and '
                'pool="map" without a head (head="drop"). Use "timm" or "keras".'
            )
        return (
            ("siglip_vision_model", "SiglipVisionModel")
            if spec.pool == "map"
            else ("siglip_vision_model", "SiglipForImageClassification")
        )
    if spec.registers or spec.layer_scale is not None or spec.mlp_form == "swiglu":
        if spec.layer_scale is None or spec.distillation_token or spec.pool != ("token_gap" if head else "token"):
            raise ValueError(
                'The format "huggingface" has registers, layer_scale and swiglu in DINOv2 only: with layer_scale, pool="token" without a '
                'head or "token_gap" with one. Use "timm" or "keras".'
            )
        kind = "dinov2_with_registers" if spec.registers else "dinov2"
        word = "Dinov2WithRegisters" if spec.registers else "Dinov2"
        return kind, word + ("ForImageClassification" if head else "Model")
    if spec.pool != "token":
        raise ValueError(f'The format "huggingface" has no ViT with a class token and pool="{spec.pool}". Use "timm" or "keras".')
    if spec.distillation_token:
        return "deit", "DeiTForImageClassificationWithTeacher" if head else "DeiTModel"
    return "vit", "ViTForImageClassification" if head else "ViTModel"


def huggingface(model):
    """(model type, config.json) for Hugging Face.

    Raises:
        ValueError: for a model that has no type there.
    """
    spec = model.spec
    kind, architecture = _kind(model)
    if spec.patch_size[0] != spec.patch_size[1]:
        raise ValueError(
            f'The format "huggingface" is written for square patches, the model has {spec.patch_size}. Use "timm" or "keras".'
        )
    square = model.image_size[0] == model.image_size[1]
    if not square and kind not in ("vit", "deit"):
        raise ValueError(
            f'The format "huggingface" has {kind} for square images only, got {model.image_size}. Use "timm" or "keras".'
        )
    inner = {
        "hidden_size": spec.width,
        "num_hidden_layers": spec.depth,
        "num_attention_heads": spec.heads,
        "image_size": model.image_size[0] if square else list(model.image_size),
        "patch_size": spec.patch_size[0],
        "num_channels": model.channels,
        "layer_norm_eps": spec.epsilon,
        "hidden_act": {form: act for act, form in reversed(GELUS.items())}[spec.gelu],
    }
    if kind == "siglip_vision_model":
        inner["intermediate_size"] = spec.mlp_dim
        if not spec.qkv_bias:
            raise ValueError(
                'The format "huggingface" has SigLIP with biases on queries, keys and values only. Use "timm" or "keras".'
            )
    else:
        inner["qkv_bias"] = spec.qkv_bias
        inner.update(_dinov2(spec) if kind.startswith("dinov2") else {"intermediate_size": spec.mlp_dim})
    labels = _id_labels(model)
    if architecture == "SiglipForImageClassification":
        vision = {**inner, "model_type": "siglip_vision_model", "vision_use_head": False}
        return kind, {
            "architectures": [architecture],
            "model_type": "siglip",
            "vision_config": vision,
            "text_config": {},
            **labels,
        }
    return kind, {"architectures": [architecture], "model_type": kind, **inner, **labels}


def _id_labels(model):
    """Hugging Face's two maps between class numbers and names; {} without head."""
    if model.classes is None:
        return {}
    names = model.class_names or [f"LABEL_{i}" for i in range(model.classes)]
    return {"id2label": {str(i): name for i, name in enumerate(names)}, "label2id": {name: i for i, name in enumerate(names)}}


def _dinov2(spec):
    """DINOv2's own words: the hidden width follows from mlp_ratio.

    Raises:
        ValueError: if no ratio gives it.
    """
    words = {
        "use_swiglu_ffn": spec.mlp_form == "swiglu",
        "layerscale_value": spec.layer_scale,
        "mlp_ratio": spec.mlp_dim / spec.width,
    }
    if spec.registers:
        words["num_register_tokens"] = spec.registers
    if words["use_swiglu_ffn"]:
        # There the hidden width is two thirds of ratio * width, rounded up to a multiple of 8.
        ratios = (ratio for ratio in range(1, 17) if (int(int(spec.width * ratio) * 2 / 3) + 7) // 8 * 8 == spec.mlp_dim)
        words["mlp_ratio"] = next(ratios, None)
    if words["mlp_ratio"] is None or (not words["use_swiglu_ffn"] and int(spec.width * words["mlp_ratio"]) != spec.mlp_dim):
        raise ValueError(
            f'The format "huggingface" has no DINOv2 {spec.width} wide with mlp_dim={spec.mlp_dim}. Use "timm" or "keras".'
        )
    if not words["use_swiglu_ffn"] and words["mlp_ratio"].is_integer():
        words["mlp_ratio"] = int(words["mlp_ratio"])
    return words


def preprocessor(model):
    """Hugging Face's preprocessor_config.json: a plain resize to the model's input."""
    constants = _constants(model.spec, model.channels)
    return {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": {"height": model.image_size[0], "width": model.image_size[1]},
        "resample": 2,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": constants["mean"],
        "image_std": constants["std"],
    }
