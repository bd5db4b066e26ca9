"""timm's config.json: how it describes a model and its evaluation, and which models only it tells from a ViT."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from keras_vit.checkpoints.formats import parsed
from keras_vit.checkpoints.formats.evaluation_steps import METHODS, UsualSteps
from keras_vit.checkpoints.formats.parsed import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    check_agreement,
    constants,
    setting,
    stated_pair,
)

# Architectures with the tanh form of GELU in timm.
_TANH = re.compile(r"patch32_siglip|large_patch16_siglip(_gap)?_512|so400m_patch16_siglip|giantopt")
# {act_layer: our activation}.
ACTIVATIONS = {
    **{name: name for name in ("gelu", "gelu_tanh", "quick_gelu", "relu", "silu")},
    "swish": "silu",
}

# {pooling in config.json: ours}; without one the arrays decide.
_POOLS = {None: None, "token": "token", "avg": "gap", "map": "map"}
# Architectures that may have a ViT's arrays but compute something unsupported.
_OTHERS = [
    (re.compile(r"rope|^eva02|dinov3|_pe_(core|lang|spatial)_|lingbot|sapiens2"), "rotary positions"),
    (re.compile(r"_rpn_"), "normalisations after attention and MLP"),
    (re.compile(r"^test_vit3"), "pooling that includes registers"),
]
# Settings that reveal this in any architecture.
_OTHER_SETTINGS = {"use_rot_pos_emb": "rotary positions", "pool_include_prefix": "pooling that includes registers"}


def section(config, name):
    """config[name], an object; {} if missing."""
    return setting(config, name, dict) or {}


def is_named(config: Mapping) -> bool:
    """Whether a config.json is timm's: the code of the architecture that it names has all values that it omits."""
    return setting(config, "architecture", str) is not None


def activation(config, options):
    """The activation in config.json, or that of its architecture; without one it is asked for.

    Raises:
        ValueError: for an unknown one.
    """
    architecture = str(config.get("architecture"))
    act = setting(section(config, "model_args"), "act_layer", str)
    usual = "quick_gelu" if "quickgelu" in architecture else "gelu_tanh" if _TANH.search(architecture) else "gelu"
    if act is None:
        return options.value("mlp_activation", usual, certain=is_named(config))
    if act not in ACTIVATIONS:
        raise ValueError(
            f"config.json has the activation {act!r}, which is not implemented. Implemented: {', '.join(ACTIVATIONS)}."
        )
    return ACTIVATIONS[act]


def input_size(config):
    """(height, width) of the images in config.json, or None."""
    size = stated_pair(section(config, "model_args"), "img_size")
    if size is None:
        cfg = setting(section(config, "pretrained_cfg"), "input_size", list)
        size = tuple(cfg[1:]) if cfg and len(cfg) == 3 else None
    return size


def pool(arrays, fields, config, options):
    """The pooling, from the arrays or config.json, or else asked for.

    Raises:
        ValueError: if it is unsupported or contradicts the arrays.
    """
    is_map = "attn_pool.latent" in arrays
    arguments = section(config, "model_args")
    stated = setting(arguments, "global_pool", str) or setting(config, "global_pool", str) or None
    if stated not in _POOLS:
        raise ValueError(
            f"config.json has global_pool={stated!r}, which is not implemented. Implemented: token, avg, map."
        )
    if stated and ((stated == "map") != is_map or (stated == "token" and not fields["class_token"])):
        part = "class token" if stated == "token" else "attention pooling"
        raise ValueError(
            f'global_pool is "{stated}" in config.json, but the arrays contain {"an" if is_map else "no"} {part}. Load'
            " the weights with the config.json that belongs to them, or correct it."
        )
    if stated:
        return _POOLS[stated]
    if is_map or "fc_norm.weight" in arrays or not fields["class_token"]:
        return "map" if is_map else "gap"
    # A new head reads what the user chooses; a head of two tokens reads these.
    certain = is_named(config) or options.get("head") == "reset" or fields.get("distillation_token", False)
    return options.value("pool", "token", certain=certain)


def stated_rows(config: Mapping, fields: Mapping, size: tuple, classes: int | None, channels: int) -> list[tuple]:
    """Rows for `check_agreement`: config.json's values for any ViT, and those of the arrays.

    Args:
        config: timm's config.json.
        fields, size, classes, channels: of the spec, image size, labels and channels by the arrays.
    """
    arguments = section(config, "model_args")
    labels = setting(config, "num_classes", int)
    labels = setting(section(config, "pretrained_cfg"), "num_classes", int) if labels is None else labels
    return [
        ("embed_dim", setting(arguments, "embed_dim", int), fields["width"]),
        ("num_features", setting(config, "num_features", int), fields["width"]),
        ("depth", setting(arguments, "depth", int), fields["depth"]),
        ("patch_size", stated_pair(arguments, "patch_size"), tuple(fields["patch_size"])),
        ("class_token", setting(arguments, "class_token", bool), fields["class_token"]),
        ("in_chans", setting(arguments, "in_chans", int), channels),
        ("num_classes", None if classes is None else labels, classes),
        ("input_size", input_size(config), size),
    ]


def label_names(config: Mapping, classes: int | None) -> tuple[str, ...] | None:
    """The class names in timm's config.json, or None; ValueError unless there are `classes` of them."""
    names = setting(config, "label_names", list) or setting(section(config, "pretrained_cfg"), "label_names", list)
    if names is None or classes is None:
        return None
    check_agreement([("the number of label_names", len(names), classes)])
    if not all(type(name) in (str, int) for name in names):
        raise ValueError('"label_names" in config.json should be a list of text.')
    return tuple(map(str, names))


def evaluation_config(config: Mapping) -> Mapping:
    """The evaluation section of timm's config.json, or all of an older file. ValueError unless it is an object."""
    return section(config, "pretrained_cfg") or config


def normalisation(config, channels, options):
    """mean and std on the 0..255 scale, from config.json, or else asked for."""
    stated = constants(evaluation_config(config), ("mean", "std"))
    return parsed.normalisation(stated, (IMAGENET_MEAN, IMAGENET_STD), channels, options)


def preprocessing(config: Mapping) -> Callable[[int, int], str]:
    """timm's evaluation as a function (h, w) -> text: resize the shorter side to size / crop_pct, crop the centre.

    With crop_mode "squash" and crop_pct 1 the whole picture is resized. ValueError for settings of another type.
    """
    cfg = evaluation_config(config)
    part, method = setting(cfg, "crop_pct", float, int) or 0.875, setting(cfg, "interpolation", str) or "bicubic"
    if not 0.1 <= part <= 1 or method not in METHODS:
        part, method = 0.875, "bicubic"
    squashes = setting(cfg, "crop_mode", str) == "squash" and part == 1

    def text(height, width):
        return UsualSteps(height, width, method, None if squashes else int(min(height, width) / part)).text

    return text


def to_evaluation(steps: UsualSteps) -> dict:
    """The settings of these steps; `preprocessing` reads them back."""
    if steps.shorter is None:
        return {"interpolation": steps.method, "crop_pct": 1.0, "crop_mode": "squash"}
    side = min(steps.height, steps.width)
    # timm rounds side / crop_pct down; the half keeps rounding errors from losing a pixel.
    part = side / steps.shorter if int(side / (side / steps.shorter)) == steps.shorter else side / (steps.shorter + 0.5)
    return {"interpolation": steps.method, "crop_pct": part, "crop_mode": "center"}


def check_architecture(config: Mapping[str, Any]) -> None:
    """Refuses models that only config.json distinguishes from a ViT: ValueError with the unsupported part."""
    architecture, arguments = str(config.get("architecture")), setting(config, "model_args", dict) or {}
    other = next((what for pattern, what in _OTHERS if pattern.search(architecture)), None)
    other = other or next((what for name, what in _OTHER_SETTINGS.items() if setting(arguments, name, bool)), None)
    if other is not None:
        raise ValueError(
            f"By config.json, the architecture {architecture!r} has {other}, which is not implemented: the same arrays"
            " in a ViT would compute something else."
        )


def look_alikes(arrays: Collection[str], config: Mapping[str, Any]) -> Iterator[str]:
    """Sentences on other models that could have these arrays; config.json rules them out."""
    if is_named(config):
        return
    if any(name.endswith(".gamma_1") for name in arrays):
        yield (
            "Assuming a DeiT III: timm's models with rotary and learned positions (rope_ape) have the same arrays, and"
            " cannot be expressed. Their config.json distinguishes them."
        )
