"""BiT's weights: Google's .npz files, and timm's names (resnetv2)."""

import re

from keras_vit.checkpoints.formats.capabilities import ANY, Capabilities
from keras_vit.checkpoints.formats.name_map import NameMap, conv, pointwise, same, torch_norm
from keras_vit.checkpoints.formats.parsed import (
    ParsedCheckpoint,
    any_size,
    check_agreement,
    constants,
    need,
    normalisation,
    renamed,
    setting,
)
from keras_vit.checkpoints.formats.timm_config import evaluation_config, is_named, label_names, preprocessing
from keras_vit.models.bit import DEPTHS

# How each style names a residual unit, the root convolution, and the head's bias.
_UNIT = {"google": r"resnet/block(\d+)/unit(\d+)/", "timm": r"stages\.(\d+)\.blocks\.(\d+)\."}
_ROOT = {"google": "resnet/root_block/standardized_conv2d/kernel", "timm": "stem.conv.weight"}
_HEAD_BIAS = {"google": "resnet/head/conv2d/bias", "timm": "head.fc.bias"}
_TIMM_SIZES = ("50x1", "50x3", "101x1", "101x3", "152x2", "152x4")


def timm_size(spec) -> str:
    """timm's name of a size, such as "50x1"."""
    depth = {units: number for number, units in DEPTHS.items()}.get(spec.units)
    return f"{depth}x{spec.width_factor:g}"


def _a_size_of_timm(model):
    spec = model.spec
    if timm_size(spec) not in _TIMM_SIZES:
        return (
            f"a BiT with units={spec.units}, width_factor={spec.width_factor} (timm has {', '.join(_TIMM_SIZES)}; "
            'format="google" has all sizes)'
        )


_FIELDS = {"units": ANY, "width_factor": ANY, "mean": ANY, "std": ANY}
CAPABILITIES = {
    "google": Capabilities("google", _FIELDS, conventions={"mean": 127.5, "std": 127.5}),
    "timm": Capabilities("timm", _FIELDS, rules=(_a_size_of_timm,)),
}


def _units(names, style):
    """Residual units per stage; ValueError if stages or units are not numbered consecutively."""
    pairs = {tuple(map(int, m.groups())) for m in map(re.compile(_UNIT[style]).match, names) if m}
    first = 1 if style == "google" else 0
    stages = sorted({stage for stage, _ in pairs})
    units = tuple(sum(stage == s for s, _ in pairs) for stage in stages)
    expected = {(stage + first, unit + first) for stage, n in enumerate(units) for unit in range(n)}
    if pairs != expected or not pairs:
        raise ValueError(f"Expected (stage, unit) numbers of residual units without a gap, got {sorted(pairs)[:20]}.")
    return units


def name_map(units: tuple, classes: int | None, style: str) -> NameMap:
    """{name: Entry} of a BiT with those units per stage, in "google" or "timm" style."""
    return {"google": _google, "timm": _timm}[style](units, classes)


def _numbered(units):
    """(stage, unit, path of our block) of each unit; stages and units count from 0."""
    pairs = [(stage, unit) for stage, n in enumerate(units) for unit in range(n)]
    return [(stage, unit, f"block_{number:02d}") for number, (stage, unit) in enumerate(pairs)]


def _google(units, classes):
    entries = {_ROOT["google"]: same("stem_conv/kernel")}
    for stage, unit, ours in _numbered(units):
        theirs = f"resnet/block{stage + 1}/unit{unit + 1:02d}"
        for i, part in enumerate("abc", 1):
            entries[f"{theirs}/{part}/standardized_conv2d/kernel"] = same(f"{ours}/conv{i}/kernel")
            for name in ("gamma", "beta"):
                entries[f"{theirs}/{part}/group_norm/{name}"] = same(f"{ours}/norm{i}/{name}")
        if unit == 0:
            entries[f"{theirs}/a/proj/standardized_conv2d/kernel"] = same(f"{ours}/proj/kernel")
    for name in ("gamma", "beta"):
        entries[f"resnet/group_norm/{name}"] = same(f"norm/{name}")
    if classes is not None:
        entries["resnet/head/conv2d/kernel"] = same("head/kernel", (1, 1, -1, classes))
        entries[_HEAD_BIAS["google"]] = same("head/bias")
    return entries


def _timm(units, classes):
    entries = {_ROOT["timm"]: conv("stem_conv/kernel")}
    for stage, unit, ours in _numbered(units):
        theirs = f"stages.{stage}.blocks.{unit}"
        for i in (1, 2, 3):
            entries[f"{theirs}.conv{i}.weight"] = conv(f"{ours}/conv{i}/kernel")
            entries.update(torch_norm(f"{theirs}.norm{i}", f"{ours}/norm{i}"))
        if unit == 0:
            entries[f"{theirs}.downsample.conv.weight"] = conv(f"{ours}/proj/kernel")
    entries.update(torch_norm("norm", "norm"))
    if classes is not None:
        entries["head.fc.weight"] = pointwise("head/kernel")
        entries[_HEAD_BIAS["timm"]] = same("head/bias")
    return entries


def _plain(values):
    """One number instead of equal ones per channel."""
    return values[0] if isinstance(values, tuple) and len(set(values)) == 1 else values


def parse(contents, options: dict) -> ParsedCheckpoint:
    """The parsed checkpoint of a BiT; see google.parse for arguments and errors."""
    arrays = renamed(contents.arrays, lambda name: re.sub(r"standardized_conv2d_\d+/", "standardized_conv2d/", name))
    style = "google" if _ROOT["google"] in arrays else "timm"
    kernel = need(arrays, _ROOT[style], 4)
    width, channels = (kernel.shape[3], kernel.shape[2]) if style == "google" else kernel.shape[:2]
    units = _units(arrays, style)
    classes = need(arrays, _HEAD_BIAS[style], 1).shape[0] if _HEAD_BIAS[style] in arrays else None
    config = contents.config if style == "timm" else {}
    cfg = evaluation_config(config)
    if classes is not None:
        check_agreement([("num_classes", setting(config, "num_classes", int), classes)])
    # The weights are convolutions, which fit any image size.
    shape = setting(cfg, "input_size", list)
    size = any_size(None if shape is None else shape[1:], options, 224, style == "google" or is_named(config))
    fields = {"units": units, "width_factor": width / 64 if width % 64 else width // 64}
    stated = constants(cfg, ("mean", "std")) if style == "timm" else ((127.5,) * channels, (127.5,) * channels)
    normal = normalisation(stated, (127.5, 127.5), channels, options)
    fields.update({name: _plain(values) for name, values in normal.items()})
    return ParsedCheckpoint(
        "BiT",
        fields,
        size,
        name_map(units, classes, style),
        arrays,
        classes,
        channels,
        label_names(config, classes),
        preprocessing=preprocessing(config) if config else None,
    )
