"""BiT's weights: Google's .npz files, and timm's names (resnetv2)."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_vit.checkpoints.formats import timm_config
from keras_vit.checkpoints.formats.capabilities import Capabilities, any_of
from keras_vit.checkpoints.formats.name_map import NameMap, Names, pack, same
from keras_vit.checkpoints.formats.parsed import HALF, ParsedCheckpoint, any_size, normalisation
from keras_vit.checkpoints.formats.settings import check_agreement, constants, setting
from keras_vit.checkpoints.formats.shown import need, renamed, rewriter
from keras_vit.models.bit import DEPTHS

# How each style names a residual unit, the root convolution, and the head's bias.
_UNIT = {"google": r"resnet/block(\d+)/unit(\d+)/", "timm": r"stages\.(\d+)\.blocks\.(\d+)\."}
_ROOT = {"google": "resnet/root_block/standardized_conv2d/kernel", "timm": "stem.conv.weight"}
_HEAD_BIAS = {"google": "resnet/head/conv2d/bias", "timm": "head.fc.bias"}
_TIMM_SIZES = ("50x1", "50x3", "101x1", "101x3", "152x2", "152x4")
_UNIT_NAMES = {
    "google": Names(
        """
        {theirs}/a/standardized_conv2d/kernel       {ours}/conv1/kernel        same
        {theirs}/a/group_norm/<gamma,beta>          {ours}/norm1/<gamma,beta>  same
        {theirs}/b/standardized_conv2d/kernel       {ours}/conv2/kernel        same
        {theirs}/b/group_norm/<gamma,beta>          {ours}/norm2/<gamma,beta>  same
        {theirs}/c/standardized_conv2d/kernel       {ours}/conv3/kernel        same
        {theirs}/c/group_norm/<gamma,beta>          {ours}/norm3/<gamma,beta>  same
        {theirs}/a/proj/standardized_conv2d/kernel  {ours}/proj/kernel         same  if first
        """
    ),
    "timm": Names(
        """
        {theirs}.conv<1,2,3>      {ours}/conv<1,2,3>  kernel
        {theirs}.norm<1,2,3>      {ours}/norm<1,2,3>  norm
        {theirs}.downsample.conv  {ours}/proj         kernel  if first
        """
    ),
}
_END_NAMES = {
    "google": Names(
        """
        resnet/group_norm/<gamma,beta>  norm/<gamma,beta>  same
        resnet/head/conv2d/kernel       head/kernel        head  if classes
        resnet/head/conv2d/bias         head/bias          same  if classes
        """,
        {"head": lambda fields, ours: same(ours, (1, 1, -1, fields["classes"]))},
    ),
    "timm": Names(
        """
        norm     norm  norm
        head.fc  head  pixelwise  if classes
        """
    ),
}


def _timm_size(spec):
    """timm's name of a size, such as "50x1"."""
    depth = {units: number for number, units in DEPTHS.items()}.get(spec.units)
    return f"{depth}x{spec.width_factor:g}"


def _sizes_of_timm(model):
    spec, sizes = model.spec, ", ".join(_TIMM_SIZES)
    text = f'a BiT with units={spec.units}, width_factor={spec.width_factor} (timm has {sizes}; format="google" has all'
    yield _timm_size(spec) not in _TIMM_SIZES, f"{text} sizes)"


_FIELDS = any_of("units width_factor mean std")
CAPABILITIES = {
    "google": Capabilities("google", _FIELDS, conventions={"mean": 127.5, "std": 127.5}),
    "timm": Capabilities("timm", _FIELDS, _sizes_of_timm),
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
    entries = Names(f"{_ROOT[style]} stem_conv/kernel {'same' if style == 'google' else 'conv'}").map()
    number = 0
    for stage, unit in ((stage, unit) for stage, n in enumerate(units) for unit in range(n)):
        google, timm = f"resnet/block{stage + 1}/unit{unit + 1:02d}", f"stages.{stage}.blocks.{unit}"
        place = {"theirs": google if style == "google" else timm, "ours": f"block_{number:02d}"}
        entries |= _UNIT_NAMES[style].spelled(**place).map(first=unit == 0)
        number += 1
    return entries | _END_NAMES[style].map(classes=classes)


def _plain(values):
    """One number instead of equal ones per channel."""
    return values[0] if isinstance(values, tuple) and len(set(values)) == 1 else values


def parse(contents: Any, options: Any) -> ParsedCheckpoint:
    """The parsed checkpoint of a BiT; see google.parse for arguments and errors."""
    arrays = renamed(contents.arrays, rewriter([(r"standardized_conv2d_\d+/", "standardized_conv2d/")]))
    style = "google" if _ROOT["google"] in arrays else "timm"
    kernel = need(arrays, _ROOT[style], 4)
    width, channels = (kernel.shape[3], kernel.shape[2]) if style == "google" else kernel.shape[:2]
    units = _units(arrays, style)
    classes = need(arrays, _HEAD_BIAS[style], 1).shape[0] if _HEAD_BIAS[style] in arrays else None
    config = contents.config if style == "timm" else {}
    cfg = timm_config.evaluation_config(config)
    if classes is not None:
        check_agreement([("num_classes", setting(config, "num_classes", int), classes)])
    # The weights are convolutions, which fit any image size.
    shape, certain = setting(cfg, "input_size", list), style == "google" or timm_config.is_named(config)
    size = any_size(None if shape is None else shape[1:], options, 224, certain)
    stated = constants(cfg, ("mean", "std")) if style == "timm" else ((127.5,) * channels, (127.5,) * channels)
    normal = normalisation(stated, HALF, channels, options)
    fields = {"units": units, "width_factor": width / 64 if width % 64 else width // 64}
    return ParsedCheckpoint(
        "BiT",
        fields | {name: _plain(values) for name, values in normal.items()},
        size,
        name_map(units, classes, style),
        arrays,
        classes,
        channels,
        class_names=timm_config.label_names(config, classes),
        preprocessing=timm_config.preprocessing(config) if config else None,
    )


def to_config(model: Any) -> dict[str, Any]:
    """timm's config.json."""
    features = 2048 * int(model.spec.width_factor)
    return timm_config.description(model, f"resnetv2_{_timm_size(model.spec)}_bit", {}, features)


def write_google(model: Any, weights: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict]:
    """(arrays of the .npz, {}) of a model; ValueError for one that the format cannot express."""
    CAPABILITIES["google"].check(model)
    return pack(name_map(model.spec.units, model.classes, "google"), weights), {}


def write_timm(model: Any, weights: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """(arrays, {config file: content}) of a model; ValueError for one that the format cannot express."""
    CAPABILITIES["timm"].check(model)
    return pack(name_map(model.spec.units, model.classes, "timm"), weights), {"config.json": to_config(model)}
