"""BiT's weights: Google's .npz files and timm's names (resnetv2)."""

import re

from keras_vit.checkpoints.layout import conv, pointwise, same, torch_norm
from keras_vit.checkpoints.source import IMAGENET_MEAN, Source, constants, need, renamed, setting
from keras_vit.layers.patches import pair

_UNIT = {"google": r"resnet/block(\d+)/unit(\d+)/", "timm": r"stages\.(\d+)\.blocks\.(\d+)\."}


def matches(names, config):
    return any(name.startswith("resnet/root_block/") for name in names) or {"stem.conv.weight", "norm.weight"} <= set(names)


def _units(names, style):
    """Residual units a stage.

    Raises:
        ValueError: if stages or units are not numbered without a gap.
    """
    found = {tuple(map(int, m.groups())) for m in map(re.compile(_UNIT[style]).match, names) if m}
    first = 1 if style == "google" else 0
    stages = sorted({stage for stage, _ in found})
    units = tuple(sum(stage == s for s, _ in found) for stage in stages)
    expected = {(stage + first, unit + first) for stage, n in enumerate(units) for unit in range(n)}
    if found != expected or not found:
        raise ValueError(f"Expected residual units numbered without a gap, found {sorted(found)[:20]}.")
    return units


def layout(units, classes, style):
    """{name: Entry} of a BiT with those units a stage, in the "google" or the "timm" style."""
    return {"google": _google, "timm": _timm}[style](units, classes)


def _numbered(units):
    """(stage, unit, our block's path) of each unit, stages and units from 0."""
    pairs = [(stage, unit) for stage, n in enumerate(units) for unit in range(n)]
    return [(stage, unit, f"block_{number:02d}") for number, (stage, unit) in enumerate(pairs)]


def _google(units, classes):
    entries = {"resnet/root_block/standardized_conv2d/kernel": same("stem_conv/kernel")}
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
        entries["resnet/head/conv2d/bias"] = same("head/bias")
    return entries


def _timm(units, classes):
    entries = {"stem.conv.weight": conv("stem_conv/kernel")}
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
        entries["head.fc.bias"] = same("head/bias")
    return entries


def understand(contents, options):
    """The Source of a BiT; see google.understand for arguments and errors."""
    arrays = renamed(contents.arrays, lambda name: re.sub(r"standardized_conv2d_\d+/", "standardized_conv2d/", name))
    style = "google" if "resnet/root_block/standardized_conv2d/kernel" in arrays else "timm"
    root, head = {
        "google": ("resnet/root_block/standardized_conv2d/kernel", "resnet/head/conv2d/bias"),
        "timm": ("stem.conv.weight", "head.fc.bias"),
    }[style]
    kernel = need(arrays, root, 4)
    width, channels = (kernel.shape[3], kernel.shape[2]) if style == "google" else kernel.shape[:2]
    units = _units(arrays, style)
    classes = need(arrays, head, 1).shape[0] if head in arrays else None
    cfg = (setting(contents.config, "pretrained_cfg", dict) or {}) if style == "timm" else {}
    size = setting(cfg, "input_size", list) or (channels, 224, 224)
    size = pair(
        (options.get("own_size") or options.get("image_size")) or size[1:], "image_size"
    )  # convolutions: any size will do
    fields = {"units": units, "width_factor": width / 64 if width % 64 else width // 64, "mean": 127.5, "std": 127.5}
    found = constants(cfg, ("mean", "std"))
    if found is not None and abs(found[0][0] - IMAGENET_MEAN[0]) < 1:
        fields.update(mean=found[0], std=found[1])
    return Source("bit", fields, size, layout(units, classes, style), arrays, classes, channels)
