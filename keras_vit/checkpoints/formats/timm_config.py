"""timm's config.json: how it describes a model and its evaluation, and which models only it tells from a ViT."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from keras_vit.checkpoints.formats import parsed
from keras_vit.checkpoints.formats.evaluation_steps import METHODS, UsualSteps, steps_to_write, unit_constants
from keras_vit.checkpoints.formats.parsed import IMAGENET_MEAN, IMAGENET_STD
from keras_vit.checkpoints.formats.settings import (
    Settings,
    check_agreement,
    constants,
    model_facts,
    section,
    setting,
    stated_pair,
)
from keras_vit.checkpoints.formats.shown import Shown

# Architectures with the tanh form of GELU in timm.
_TANH = re.compile(r"patch32_siglip|large_patch16_siglip(_gap)?_512|so400m_patch16_siglip|giantopt")
# {act_layer: our activation}.
ACTIVATIONS = {
    **{name: name for name in ("gelu", "gelu_tanh", "quick_gelu", "relu", "silu")},
    "swish": "silu",
}
POOLS = {"token": "token", "gap": "avg", "map": "map"}  # {our pooling: timm's}
_ARGUMENTS = Settings(
    """
    embed_dim    width        int
    depth        depth        int
    patch_size   patch_size   pair
    class_token  class_token  bool
    in_chans     channels     int
    qkv_bias     qkv_bias     bool
    """
)
_WRITTEN = Settings(
    """
    img_size     image_size   numbers
    embed_dim    width        int
    depth        depth        int
    patch_size   patch_size   pair
    num_heads    heads        int
    class_token  class_token  bool
    qkv_bias     qkv_bias     bool
    global_pool  pooling      text
    """
)
# Architectures that may have a ViT's arrays but compute something unsupported.
_OTHERS = [
    (re.compile(r"rope|^eva02|dinov3|_pe_(core|lang|spatial)_|lingbot|sapiens2"), "rotary positions"),
    (re.compile(r"_rpn_"), "normalisations after attention and MLP"),
    (re.compile(r"^test_vit3"), "pooling that includes registers"),
]
# Settings that reveal this in any architecture.
_OTHER_SETTINGS = {"use_rot_pos_emb": "rotary positions", "pool_include_prefix": "pooling that includes registers"}


def is_named(config: Mapping[str, Any]) -> bool:
    """Whether a config.json is timm's: the code of the architecture that it names has all values that it omits."""
    return setting(config, "architecture", str) is not None


def activation(config: Mapping[str, Any], options: Any) -> str:
    """The activation in config.json, or that of its architecture; else asked for. ValueError for an unknown one."""
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


def input_size(config: Mapping[str, Any]) -> tuple[int, int] | None:
    """(height, width) of the images in config.json, or None."""
    size = stated_pair(section(config, "model_args"), "img_size")
    if size is None:
        cfg = setting(section(config, "pretrained_cfg"), "input_size", list)
        size = tuple(cfg[1:]) if cfg and len(cfg) == 3 else None
    return size


def pool(shown: Shown, fields: Mapping[str, Any], config: Mapping[str, Any], options: Any) -> str:
    """The pooling, from the arrays or config.json, or else asked for.

    Raises:
        ValueError: if it is unsupported or contradicts the arrays.
    """
    is_map, ours = "pool/probe" in shown, {theirs: name for name, theirs in POOLS.items()}
    stated = setting(section(config, "model_args"), "global_pool", str) or setting(config, "global_pool", str)
    if stated and stated not in ours:
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
        return ours[stated]
    if is_map or fields["fc_norm"] or not fields["class_token"]:
        return "map" if is_map else "gap"
    # A new head reads what the user chooses; a head of two tokens reads these.
    certain = is_named(config) or options.get("head") == "reset" or fields["distillation_token"]
    return options.value("pool", "token", certain=certain)


def stated_rows(config: Mapping, fields: Mapping, size: tuple, classes: int | None, channels: int) -> list[tuple]:
    """Rows for `check_agreement`: config.json's values for any ViT, and those of the arrays.

    Args:
        config: timm's config.json.
        fields, size, classes, channels: of the spec, image size, labels and channels by the arrays.
    """
    labels = setting(config, "num_classes", int)
    labels = setting(section(config, "pretrained_cfg"), "num_classes", int) if labels is None else labels
    return [
        *_ARGUMENTS.compared(section(config, "model_args"), {**fields, "channels": channels}),
        ("num_features", setting(config, "num_features", int), fields["width"]),
        ("num_classes", None if classes is None else labels, classes),
        ("input_size", input_size(config), size),
    ]


def label_names(config: Mapping[str, Any], classes: int | None) -> tuple[str, ...] | None:
    """The class names in timm's config.json, or None; ValueError unless there are `classes` of them."""
    names = setting(config, "label_names", list) or setting(section(config, "pretrained_cfg"), "label_names", list)
    if names is None or classes is None:
        return None
    check_agreement([("the number of label_names", len(names), classes)])
    if not all(type(name) in (str, int) for name in names):
        raise ValueError('"label_names" in config.json should be a list of text.')
    return tuple(map(str, names))


def evaluation_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The evaluation section of timm's config.json, or all of an older file. ValueError unless it is an object."""
    return section(config, "pretrained_cfg") or config


def normalisation(config: Mapping[str, Any], channels: int, options: Any) -> dict[str, Any]:
    """mean and std on the 0..255 scale, from config.json, or else asked for."""
    stated = constants(evaluation_config(config), ("mean", "std"))
    return parsed.normalisation(stated, (IMAGENET_MEAN, IMAGENET_STD), channels, options)


def preprocessing(config: Mapping[str, Any]) -> Callable[[int, int], str]:
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


def to_evaluation(steps: UsualSteps) -> dict[str, Any]:
    """The settings of these steps; `preprocessing` reads them back."""
    if steps.shorter is None:
        return {"interpolation": steps.method, "crop_pct": 1.0, "crop_mode": "squash"}
    side = min(steps.height, steps.width)
    # timm rounds side / crop_pct down; the half keeps rounding errors from losing a pixel.
    part = side / steps.shorter if int(side / (side / steps.shorter)) == steps.shorter else side / (steps.shorter + 0.5)
    return {"interpolation": steps.method, "crop_pct": part, "crop_mode": "center"}


def description(
    model: Any, architecture: str, arguments: Mapping[str, Any], features: int, pool: str = "avg"
) -> dict[str, Any]:
    """config.json: the function that builds a model and its arguments, width and pooling of its features."""
    evaluation = to_evaluation(steps_to_write(model, "timm"))
    size, labels = [model.channels, *model.image_size], {"num_classes": model.classes or 0}
    mean, std = unit_constants(model)
    names = {} if model.class_names is None else {"label_names": list(model.class_names)}
    return {
        "architecture": architecture,
        **labels,
        "num_features": features,
        "global_pool": pool,
        "model_args": {**arguments, **({} if model.channels == 3 else {"in_chans": model.channels})},
        "pretrained_cfg": {"input_size": size, **evaluation, **labels, "mean": mean, "std": std, **names},
    }


def of_vit(model: Any, architecture: str, arguments: Mapping[str, Any], factor: int = 1) -> dict[str, Any]:
    """`description` of a ViT or Eva, with the arguments that both have; `factor` is that of mlp_dim in mlp_ratio."""
    spec, pooling = model.spec, POOLS[model.spec.pool]
    # timm rounds width * ratio down; the extra half keeps rounding errors from losing a unit.
    ratio = {"mlp_ratio": (factor * spec.mlp_dim + 0.5) / spec.width}
    common = _WRITTEN.written(model_facts(model, pooling=pooling))
    return description(model, architecture, {**common, **ratio, **arguments}, spec.width, pooling)


def check_architecture(config: Mapping[str, Any]) -> None:
    """Refuses models that only config.json distinguishes from a ViT: ValueError with the unsupported part."""
    architecture, arguments = str(config.get("architecture")), section(config, "model_args")
    other = next((what for pattern, what in _OTHERS if pattern.search(architecture)), None)
    other = other or next((what for name, what in _OTHER_SETTINGS.items() if setting(arguments, name, bool)), None)
    if other is not None:
        raise ValueError(
            f"By config.json, the architecture {architecture!r} has {other}, which is not implemented: the same arrays"
            " in a ViT would compute something else."
        )


def look_alikes(arrays: Collection[str], config: Mapping[str, Any]) -> Iterator[str]:
    """Sentences on other models that could have these arrays; config.json rules them out."""
    if not is_named(config) and any(name.endswith(".gamma_1") for name in arrays):
        yield (
            "Assuming a DeiT III: timm's models with rotary and learned positions (rope_ape) have the same arrays, and"
            " cannot be expressed. Their config.json distinguishes them."
        )
