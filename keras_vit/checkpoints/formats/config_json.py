"""The JSON files next to the weights, from which timm and Hugging Face build the same model.

Each function takes a model that the format can express: see CAPABILITIES in the format's module.
"""

import numpy as np
from absl import logging

from keras_vit.checkpoints.formats.bit_files import timm_size
from keras_vit.checkpoints.formats.evaluation_steps import nearest_steps
from keras_vit.checkpoints.formats.huggingface import VERSION, model_type
from keras_vit.checkpoints.formats.huggingface_config import (
    ACTIVATIONS,
    SEVERAL_LABELS,
    dinov2_mlp_ratio,
    to_preprocessor,
)
from keras_vit.checkpoints.formats.timm import HYBRIDS
from keras_vit.checkpoints.formats.timm_config import to_evaluation


def _constants(spec, channels):
    """mean and std, lists with one number per channel, on the 0..1 scale."""
    return {name: (np.broadcast_to(getattr(spec, name), (channels,)) / 255).tolist() for name in ("mean", "std")}


def _steps(model, format):
    """The model's evaluation preprocessing as the format can state it; a warning names what differs."""
    steps, exact = nearest_steps(model.preprocessing, model.image_size)
    if not exact:
        logging.warning(
            'Readers of the format "%s" other than keras_vit will prepare images differently from this model: its'
            ' preprocessing is "%s", they read "%s".',
            format,
            model.preprocessing,
            steps.text,
        )
    return steps


def _plain_pair(sides):
    """A number, or (height, width) if they differ."""
    return sides[0] if sides[0] == sides[1] else list(sides)


def _labels(model):
    return {} if model.class_names is None else {"label_names": list(model.class_names)}


def _pretrained(model):
    """timm's description of how a model is evaluated."""
    size = [model.channels, *model.image_size]
    evaluation = {"input_size": size, **to_evaluation(_steps(model, "timm")), "num_classes": model.classes or 0}
    return {**evaluation, **_constants(model.spec, model.channels), **_labels(model)}


def _timm(model, architecture, features, pool, arguments):
    """timm's config.json: the function that builds the model and its arguments, width and pooling of the features."""
    channels = {} if model.channels == 3 else {"in_chans": model.channels}
    return {
        "architecture": architecture,
        "num_classes": model.classes or 0,
        "num_features": features,
        "global_pool": pool,
        "model_args": {**arguments, **channels},
        "pretrained_cfg": _pretrained(model),
    }


def _architecture(spec):
    """The timm function that builds the model when given all sizes."""
    if spec.stem is not None:
        return HYBRIDS[spec.stem]
    if spec.distillation_token:
        return "deit_base_distilled_patch16_224"
    if spec.mlp_form == "swiglu":
        return "vit_giant_patch14_dinov2"
    return "vit_base_patch16_siglip_224" if spec.pool == "map" else "vit_base_patch16_224"


def timm_vit(model, no_embed_class: bool) -> dict:
    """timm's config.json of a ViT; with `no_embed_class` the position table covers the patches only."""
    spec = model.spec
    pool = {"token": "token", "gap": "avg", "map": "map"}[spec.pool]
    arguments = {
        "img_size": list(model.image_size),
        "embed_dim": spec.width,
        "depth": spec.depth,
        "num_heads": spec.heads,
        # timm rounds width * ratio down; the extra half keeps rounding errors from losing a unit.
        "mlp_ratio": (spec.mlp_dim * (2 if spec.mlp_form == "swiglu" else 1) + 0.5) / spec.width,
        "qkv_bias": spec.qkv_bias,
        "global_pool": pool,
        "class_token": spec.class_token,
        "no_embed_class": no_embed_class,
        "fc_norm": spec.fc_norm,
    }
    if spec.stem is None:
        arguments["patch_size"] = _plain_pair(spec.patch_size)
    optional = {"reg_tokens": spec.registers, "init_values": spec.layer_scale, "qk_norm": spec.qk_norm}
    arguments.update({name: value for name, value in optional.items() if value})
    if spec.mlp_activation != "gelu" and spec.mlp_form == "plain":
        arguments["act_layer"] = spec.mlp_activation
    return _timm(model, _architecture(spec), spec.width, pool, arguments)


def _eva_architecture(spec):
    """The timm function that builds the Eva when given all sizes."""
    if spec.rope is not None:
        return "eva02_tiny_patch14_224" if spec.rope == "rope2d_cells" else "vit_pe_core_base_patch16_224"
    return "vit_small_patch16_dinov3_qkvb" if spec.qkv_bias else "vit_small_patch16_dinov3"


def timm_eva(model) -> dict:
    """timm's config.json of a ViT with the structure of DINOv3, EVA-02 or Perception Encoder."""
    spec, dinov3 = model.spec, model.spec.positions == "rope2d"
    pooling = {"token": "token", "gap": "avg", "map": "map"}[spec.pool]
    arguments = {
        "img_size": list(model.image_size),
        "patch_size": _plain_pair(spec.patch_size),
        "embed_dim": spec.width,
        "depth": spec.depth,
        "num_heads": spec.heads,
        "mlp_ratio": (spec.mlp_dim + 0.5) / spec.width,  # timm rounds width * ratio down
        "swiglu_mlp": spec.mlp_form == "swiglu",
        "swiglu_align_to": 1 if dinov3 else 0,
        "qkv_bias": spec.qkv_bias,
        "init_values": spec.layer_scale,
        "class_token": spec.class_token,
        "num_reg_tokens": spec.registers,
        "global_pool": pooling,
        "use_fc_norm": spec.fc_norm,
    }
    if not dinov3:
        arguments |= {
            "ref_feat_shape": [spec.rope_grid] * 2,
            "use_post_transformer_norm": spec.final_norm and not spec.fc_norm,
        }
        arguments |= {"scale_mlp": spec.hidden_norm, "qkv_fused": not spec.hidden_norm}
    if spec.pool == "map":
        arguments |= {"attn_pool_num_heads": spec.pool_heads or spec.heads}
        arguments["attn_pool_mlp_ratio"] = arguments["mlp_ratio"]
    if spec.rope_rescale > 1:
        arguments["rope_rescale_coords"] = spec.rope_rescale
    return _timm(model, _eva_architecture(spec), spec.width, pooling, arguments)


def timm_bit(model) -> dict:
    """timm's config.json of a BiT."""
    spec = model.spec
    return _timm(model, f"resnetv2_{timm_size(spec)}_bit", 2048 * int(spec.width_factor), "avg", {})


def timm_swin(model) -> dict:
    """timm's config.json of a Swin."""
    spec = model.spec
    v2 = spec.version == "v2"
    arguments = {
        "img_size": list(model.image_size),
        "patch_size": _plain_pair(spec.patch_size),
        "embed_dim": spec.width,
        "depths": list(spec.depths),
        "num_heads": [spec.heads * 2**stage for stage in range(len(spec.depths))],
        "window_size": spec.window,
        "mlp_ratio": spec.mlp_ratio,
        "qkv_bias": spec.qkv_bias,
    }
    if v2:
        arguments["pretrained_window_sizes"] = list(map(_plain_pair, spec.pretrained_windows))
    return _timm(
        model,
        "swinv2_tiny_window8_256" if v2 else "swin_tiny_patch4_window7_224",
        spec.width * 2 ** (len(spec.depths) - 1),
        "avg",
        arguments,
    )


def huggingface_swin(model) -> dict:
    """Hugging Face's config.json of a Swin."""
    spec = model.spec
    v2 = spec.version == "v2"
    head = "ForImageClassification" if model.classes is not None else "Model"
    config = {
        "architectures": [f"{'Swinv2' if v2 else 'Swin'}{head}"],
        "transformers_version": VERSION,
        "model_type": "swinv2" if v2 else "swin",
        "image_size": _plain_pair(model.image_size),
        "patch_size": _plain_pair(spec.patch_size),
        "num_channels": model.channels,
        "embed_dim": spec.width,
        "depths": list(spec.depths),
        "num_heads": [spec.heads * 2**stage for stage in range(len(spec.depths))],
        "window_size": spec.window,
        "mlp_ratio": spec.mlp_ratio,
        "qkv_bias": spec.qkv_bias,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-5,
        "use_absolute_embeddings": False,
    }
    if v2:
        config["pretrained_window_sizes"] = list(map(_plain_pair, spec.pretrained_windows))
    return {**config, **id_labels(model)}


def _hf_architecture(model):
    """The Hugging Face class of the model."""
    kind, has_head = model_type(model.spec), model.classes is not None
    if kind == "clip_vision_model":
        return "CLIPVisionModel"
    if kind == "siglip_vision_model":
        return "SiglipForImageClassification" if has_head else "SiglipVisionModel"
    if kind == "deit":
        return "DeiTForImageClassificationWithTeacher" if has_head else "DeiTModel"
    name = {"vit": "ViT", "dinov2": "Dinov2", "dinov2_with_registers": "Dinov2WithRegisters"}[kind]
    return name + ("ForImageClassification" if has_head else "Model")


def huggingface(model) -> dict:
    """Hugging Face's config.json."""
    spec, kind, architecture = model.spec, model_type(model.spec), _hf_architecture(model)
    is_square = model.image_size[0] == model.image_size[1]
    inner = {
        "hidden_size": spec.width,
        "num_hidden_layers": spec.depth,
        "num_attention_heads": spec.heads,
        "image_size": model.image_size[0] if is_square else list(model.image_size),
        "patch_size": spec.patch_size[0],
        "num_channels": model.channels,
        "layer_norm_eps": spec.epsilon,
        "hidden_act": {ours: act for act, ours in reversed(ACTIVATIONS.items())}[spec.mlp_activation],
    }
    if not kind.startswith("dinov2"):
        inner["intermediate_size"] = spec.mlp_dim
    if kind == "siglip_vision_model":
        inner["vision_use_head"] = spec.pool == "map"
    elif kind != "clip_vision_model":  # attention in SigLIP and CLIP always has the biases
        inner["qkv_bias"] = spec.qkv_bias
    if kind.startswith("dinov2"):
        inner.update(_dinov2(spec))
    labels = id_labels(model)
    header = {"architectures": [architecture], "transformers_version": VERSION}
    if architecture == "SiglipForImageClassification":
        vision = {**inner, "model_type": kind}
        return {**header, "model_type": "siglip", "vision_config": vision, "text_config": {}, **labels}
    return {**header, "model_type": kind, **inner, **labels}


def huggingface_dinov3(model) -> dict:
    """Hugging Face's config.json of a DINOv3."""
    spec, gated = model.spec, model.spec.mlp_form == "swiglu"
    acts = {ours: act for act, ours in reversed(ACTIVATIONS.items())}
    return {
        "architectures": ["DINOv3ViTModel"],
        "transformers_version": VERSION,
        "model_type": "dinov3_vit",
        "hidden_size": spec.width,
        "intermediate_size": spec.mlp_dim,
        "num_hidden_layers": spec.depth,
        "num_attention_heads": spec.heads,
        "image_size": _plain_pair(model.image_size),
        "patch_size": _plain_pair(spec.patch_size),
        "num_channels": model.channels,
        "hidden_act": "silu" if gated else acts[spec.mlp_activation],
        "use_gated_mlp": gated,
        "layer_norm_eps": spec.epsilon,
        "layerscale_value": spec.layer_scale,
        "num_register_tokens": spec.registers,
        "rope_theta": 100.0,
        "pos_embed_rescale": spec.rope_rescale if spec.rope_rescale > 1 else None,
        "query_bias": spec.qkv_bias,
        "key_bias": spec.qkv_bias and spec.key_bias,
        "value_bias": spec.qkv_bias,
        "proj_bias": True,
        "mlp_bias": True,
    }


def masked_autoencoder(model) -> dict:
    """Hugging Face's config.json of a MaskedAutoencoder."""
    return {
        **huggingface(model.get_encoder()),
        "architectures": ["ViTMAEForPreTraining"],
        "model_type": "vit_mae",
        "decoder_hidden_size": model.decoder_width,
        "decoder_num_hidden_layers": model.decoder_depth,
        "decoder_num_attention_heads": model.decoder_heads,
        "decoder_intermediate_size": model.decoder_mlp_dim,
        "mask_ratio": model.mask_ratio,
        "norm_pix_loss": model.normalise_targets,
    }


def id_labels(model):
    """Hugging Face's settings of a head: class numbers to names and back, and whether it is multi-label."""
    if model.classes is None:
        return {}
    names = model.class_names or [f"LABEL_{i}" for i in range(model.classes)]
    labels = {
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {name: i for i, name in enumerate(names)},
    }
    return {**labels, "problem_type": SEVERAL_LABELS} if model.activation == "sigmoid" else labels


def _dinov2(spec):
    """The settings that only DINOv2 has."""
    settings = {
        "use_swiglu_ffn": spec.mlp_form == "swiglu",
        "layerscale_value": spec.layer_scale,
        "mlp_ratio": dinov2_mlp_ratio(spec),
    }
    if spec.registers:
        settings["num_register_tokens"] = spec.registers
    return settings


def preprocessor(model) -> dict:
    """Hugging Face's preprocessor_config.json."""
    constants = _constants(model.spec, model.channels)
    return {
        **to_preprocessor(_steps(model, "huggingface")),
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": constants["mean"],
        "image_std": constants["std"],
    }
