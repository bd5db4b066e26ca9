"""Hugging Face's config.json and preprocessor_config.json: checked against the arrays, used where these are silent."""

from collections.abc import Callable, Mapping
from typing import Any

from keras_vit.checkpoints.formats import parsed
from keras_vit.checkpoints.formats.evaluation_steps import UsualSteps, steps_to_write, unit_constants
from keras_vit.checkpoints.formats.questions import Options
from keras_vit.checkpoints.formats.settings import Settings, check_agreement, constants, setting

VERSION = "4.57.6"  # of transformers, declared in config.json: the files that we write have its names
# {hidden_act: our activation}; the first of several is written.
ACTIVATIONS = {
    **{"gelu": "gelu", "gelu_python": "gelu"},
    **{f"gelu_{form}": "gelu_tanh" for form in ("pytorch_tanh", "python_tanh", "new", "fast", "accurate")},
    **{"quick_gelu": "quick_gelu", "relu": "relu", "silu": "silu", "swish": "silu"},
}
RESAMPLE = {"bilinear": 2, "bicubic": 3}  # Pillow's numbers
SEVERAL_LABELS = "multi_label_classification"  # problem_type of a model with one sigmoid per class
# Valid "model_type" values in config.json, by the type of the arrays.
_MODEL_TYPES = {
    "vit": ("vit", "vit_mae", "vit_msn", "ijepa"),
    "deit": ("deit",),
    "dinov2": ("dinov2",),
    "dinov2_with_registers": ("dinov2_with_registers",),
    "dinov3_vit": ("dinov3_vit",),
    "siglip_vision_model": ("siglip", "siglip_vision_model", "siglip2", "siglip2_vision_model"),
    "clip_vision_model": ("clip", "clip_vision_model"),
}
# {type: its number of heads where config.json does not say}; 12 for others.
_USUAL_HEADS = {"dinov3_vit": 6, "eomt": 16, "clip_text_model": 8}
# {type: its hidden_act where config.json does not say}; "gelu" for others.
_USUAL_ACTIVATIONS = {"siglip_vision_model": "gelu_pytorch_tanh", "clip_vision_model": "quick_gelu"}
# Of every model; those that follow are compared, too.
SIZES = Settings(
    """
    hidden_size          width       int
    num_hidden_layers    depth       int
    num_attention_heads  heads       int
    image_size           image_size  pair
    patch_size           patch_size  pair
    num_channels         channels    int
    layer_norm_eps       epsilon     number
    hidden_act           act         text
    """
)
_COMPARED = ("width", "depth", "patch_size")


def is_named(config: Mapping[str, Any]) -> bool:
    """Whether a config.json is Hugging Face's: the class that it names has a default for all that it omits."""
    return bool(config.get("model_type") or config.get("architectures"))


def check_whole(config: Mapping[str, Any], unshown: str) -> None:
    """ValueError for a head without config.json; `unshown` is in that alone."""
    if not is_named(config):
        raise ValueError(
            f"The arrays do not show {unshown}: put the model's config.json and preprocessor_config.json next to the"
            " file, or pass the folder of save_pretrained."
        )


def stated_heads(config: Mapping[str, Any], kind: str) -> int | None:
    """The number of heads in a config.json that names a class, whose default it may leave out; else None."""
    stated = setting(config, "num_attention_heads", int)
    return _USUAL_HEADS.get(kind, 12) if stated is None and is_named(config) else stated


def mlp_activation(config: Mapping[str, Any], kind: str, options: Options | None = None, certain: bool = True) -> str:
    """The activation that hidden_act names, or the type's, asked for unless `certain`; ValueError if unknown."""
    usual = _USUAL_ACTIVATIONS.get(kind, "gelu")
    act = setting(config, "hidden_act", str)
    if act is None and options is not None:
        return options.value("mlp_activation", ACTIVATIONS[usual], certain=certain)
    act = act or usual
    if act not in ACTIVATIONS:
        raise ValueError(
            f"config.json has hidden_act={act!r}, which is not implemented. Implemented: {', '.join(ACTIVATIONS)}."
        )
    return ACTIVATIONS[act]


def hidden_act(spec: Any) -> str:
    """The hidden_act of a spec's mlp_activation."""
    return next(act for act, ours in ACTIVATIONS.items() if ours == spec.mlp_activation)


def epsilon(config: Mapping[str, Any], default: float, options: Options | None = None, certain: bool = True) -> float:
    """Epsilon of the normalisations, asked for unless `certain`; ValueError unless it is a small positive number."""
    stated = setting(config, "layer_norm_eps", float, int)
    default = 1e-6 if config.get("model_type") == "vit_msn" else default
    if stated is None:
        return default if options is None else options.value("epsilon", default, certain=certain)
    if not 0 < stated < 1:
        raise ValueError(f"config.json has layer_norm_eps={stated!r}, expected a small positive number.")
    return stated


def _dinov2_mlp_dim(width, mlp_form, ratio):
    """mlp_dim as DINOv2 computes it from mlp_ratio; None without one."""
    if ratio is None:
        return None
    hidden = int(width * ratio)
    # For SwiGLU it is two thirds of that, rounded up to a multiple of 8.
    return (int(hidden * 2 / 3) + 7) // 8 * 8 if mlp_form == "swiglu" else hidden


def dinov2_mlp_ratio(spec: Any) -> float | None:
    """The mlp_ratio from which DINOv2 computes mlp_dim; None if there is none."""
    exact = spec.mlp_dim / spec.width
    ratios = range(1, 17) if spec.mlp_form == "swiglu" else [int(exact) if exact.is_integer() else exact]
    fitting = (ratio for ratio in ratios if _dinov2_mlp_dim(spec.width, spec.mlp_form, ratio) == spec.mlp_dim)
    return next(fitting, None)


def check_type(config: Mapping[str, Any], kind: str) -> None:
    """ValueError if config.json names another type of model than `kind`, that of the arrays."""
    stated, supported = setting(config, "model_type", str), sum(_MODEL_TYPES.values(), ())
    if stated is not None and stated not in supported:
        raise ValueError(
            f"config.json has model_type={stated!r}, which is not implemented. Implemented: {', '.join(supported)}."
        )
    check_agreement([("model_type", stated, stated if stated in _MODEL_TYPES[kind] else kind)])


def label_rows(config: Mapping[str, Any], classes: int | None) -> list[tuple]:
    """Rows for `check_agreement` on the number of classes; none without a head."""
    if classes is None:
        return []
    labels = setting(config, "id2label", dict)
    rows = [("the number of labels in id2label", None if labels is None else len(labels), classes)]
    return [*rows, ("num_labels", setting(config, "num_labels", int), classes)]


def check_config(
    outer: Mapping[str, Any],
    config: Mapping[str, Any],
    kind: str,
    fields: Mapping[str, Any],
    size: tuple[int, int],
    classes: int | None,
    channels: int,
) -> None:
    """Compares config.json with the arrays, which alone determine the sizes.

    Args:
        outer, config: config.json, and the part that describes the image model.
        kind, fields, size, classes, channels: type, spec, image size, labels and channels by the arrays.

    Raises:
        ValueError: with each difference.
    """
    facts = {name: fields[name] for name in _COMPARED} | {"image_size": size, "channels": channels}
    rows = SIZES.compared(config, facts)
    if kind.startswith("dinov2"):
        ratio, form = setting(config, "mlp_ratio", int, float), fields["mlp_form"]
        rows.append(("use_swiglu_ffn", setting(config, "use_swiglu_ffn", bool), form == "swiglu"))
        stated = _dinov2_mlp_dim(fields["width"], form, ratio)
        rows.append(("the MLP's width, by mlp_ratio,", stated, fields["mlp_dim"]))
    else:
        rows.append(("intermediate_size", setting(config, "intermediate_size", int), fields["mlp_dim"]))
    if kind not in _USUAL_ACTIVATIONS:
        rows.append(("qkv_bias", setting(config, "qkv_bias", bool), fields["qkv_bias"]))
    check_agreement([*rows, *label_rows(outer, classes)])


def _rescaling(preprocessor):
    """The pixel value that preprocessor_config.json rescales to 1, by default 255; ValueError unless positive."""
    if preprocessor.get("do_rescale", True) is False:
        return 1.0
    factor = setting(preprocessor, "rescale_factor", float, int)
    factor = 1 / 255 if factor is None else factor
    if not 1e-6 < factor < 1e6:
        raise ValueError(f"rescale_factor in the config should be a positive number, such as 1/255, got {factor!r}.")
    return 1 / factor


def normalisation(
    preprocessor: Mapping[str, Any], channels: int, options: Options, usual: tuple = parsed.IMAGENET
) -> dict[str, Any]:
    """mean and std on the 0..255 scale, from preprocessor_config.json, or else asked for; `usual` for the type."""
    scale = _rescaling(preprocessor)
    stated = constants(preprocessor, ("image_mean", "image_std"), scale)
    if preprocessor.get("do_normalize", True) is False:
        stated = (0.0,) * channels, (scale,) * channels
    return parsed.normalisation(stated, usual, channels, options)


def preprocessing(preprocessor: Mapping[str, Any]) -> Callable[[int, int], str] | None:
    """The steps of preprocessor_config.json as a function (h, w) -> text; None for an unsupported form."""
    size, crop = (setting(preprocessor, name, dict, int, list) for name in ("size", "crop_size"))
    method = {number: name for name, number in RESAMPLE.items()}.get(setting(preprocessor, "resample", int))
    if not isinstance(size, dict) or method is None:
        return None
    sides = [setting(crop, name, int) for name in ("height", "width")] if isinstance(crop, dict) else []
    edge, side = setting(size, "shortest_edge", int), min(filter(None, sides), default=None)
    if edge and side and preprocessor.get("do_center_crop"):
        if not (0 < side < 2**16 and 0 < edge < 2**16):
            raise ValueError(
                f"The images' shortest_edge of {edge} and crop_size of {side} in the config are not sizes in pixels."
            )
        ratio = edge / side
        return lambda h, w: UsualSteps(h, w, method, round(min(h, w) * ratio)).text
    return lambda h, w: UsualSteps(h, w, method).text


def to_steps(steps: UsualSteps) -> dict[str, Any]:
    """The settings of an image processor that follows these steps; `preprocessing` reads them back."""
    shape = {"height": steps.height, "width": steps.width}
    resize = {"do_resize": True, "resample": RESAMPLE[steps.method]}
    if steps.shorter is None:
        return {"image_processor_type": "ViTImageProcessor", **resize, "size": shape}
    cropped = {"do_center_crop": True, "crop_size": shape}
    return {"image_processor_type": "BitImageProcessor", **resize, "size": {"shortest_edge": steps.shorter}, **cropped}


def to_preprocessor(model: Any, kind: str | None = None) -> dict[str, Any]:
    """preprocessor_config.json, of the image processor `kind`, or one for classes."""
    mean, std = unit_constants(model)
    return {
        **to_steps(steps_to_write(model, "huggingface")),
        **({} if kind is None else {"image_processor_type": kind}),
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": mean,
        "image_std": std,
    }


def files(model: Any, config: Mapping[str, Any], kind: str | None = None) -> dict[str, Any]:
    """{config file: content} of a model with this config.json; `kind` as in `to_preprocessor`."""
    return {"config.json": config, "preprocessor_config.json": to_preprocessor(model, kind)}


def activation(config: Mapping[str, Any]) -> str | None:
    """From logits to probabilities, by problem_type; None if unstated or not for classes."""
    stated = setting(config, "problem_type", str)
    return {SEVERAL_LABELS: "sigmoid", "single_label_classification": "softmax"}.get(stated)


def labels(config: Mapping[str, Any], classes: int | None) -> tuple[str, ...] | None:
    """The class names in id2label; None if missing or placeholders."""
    labels = setting(config, "id2label", dict)
    if labels is None or classes is None:
        return None
    names = tuple(labels.get(str(i)) for i in range(classes))
    if not all(type(name) in (str, int) for name in names):
        raise ValueError(f'"id2label" in the config should name the classes "0" to "{classes - 1}".')
    return None if str(names[0]).startswith("LABEL_") else tuple(map(str, names))


def to_labels(model: Any) -> dict[str, Any]:
    """The settings of a head: class numbers to names and back, and whether it is multi-label."""
    if model.classes is None:
        return {}
    names = model.class_names or [f"LABEL_{i}" for i in range(model.classes)]
    labels = {
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {name: i for i, name in enumerate(names)},
    }
    return {**labels, "problem_type": SEVERAL_LABELS} if model.activation == "sigmoid" else labels
