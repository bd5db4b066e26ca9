"""Swin's weights of both versions: timm's names, the original repository's, and Hugging Face's, old and new."""

import dataclasses
import math
import re
from collections.abc import Mapping

from keras_vit.checkpoints.formats import huggingface_config
from keras_vit.checkpoints.formats.capabilities import ANY, Capabilities
from keras_vit.checkpoints.formats.name_map import (
    NameMap,
    conv,
    linear,
    same,
    stacked_bias,
    stacked_linear,
    torch_dense,
    torch_norm,
)
from keras_vit.checkpoints.formats.parsed import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    ParsedCheckpoint,
    check_agreement,
    constants,
    depth,
    known_heads,
    need,
    normalisation,
    renamed,
    setting,
    stated_pair,
)
from keras_vit.checkpoints.formats.timm_config import evaluation_config, label_names
from keras_vit.checkpoints.formats.timm_config import preprocessing as timm_preprocessing
from keras_vit.layers.attention.windows import padding
from keras_vit.layers.embedding.patches import pair
from keras_vit.models.swin_spec import EPSILON, ROLLS, SwinSpec, make_stages

# When each library rolls a map, and so the format's field `roll`.
_ROLLS = {"timm": "before_padding", "huggingface": "after_padding"}
# Names in memory since transformers 5.24, and those in files.
_FORMER = [
    (r"\.attention\.([qkv])_proj\.", lambda m: f".attention.self.{_QKV[m[1]]}."),
    (r"\.attention\.relative_position_bias\.", ".attention.self."),
    (r"\.attention\.o_proj\.", ".attention.output.dense."),
    (r"\.mlp\.fc1\.", ".intermediate.dense."),
    (r"\.mlp\.fc2\.", ".output.dense."),
]
_QKV = {"q": "query", "k": "key", "v": "value"}
# Buffers that the original saves, computed again here.
_BUFFERS = re.compile(r"(?:^|\.)(?:relative_position_index|relative_coords_table|attn_mask)$")
_OTHERS = re.compile(r"(?:^|\.)(?:mask_token|decoder\..*|pooler\..*)$")
_ARCHITECTURE = re.compile(r"swin(?:v2)?_\w+?_window(\d+)(?:to(\d+))?_(?:\d+to)?(\d+)")


def _is_padded(spec, image_size):
    return any(any(padding(stage.size, stage.window)) for stage in make_stages(spec, image_size))


def _rolls_like(format):
    """A rule: the format's library computes another model of maps that are padded, or smaller than a window."""

    def rule(model):
        spec, size = model.spec, model.image_size
        other = dataclasses.replace(spec, roll=_ROLLS[format])
        if other == spec or not (_is_padded(spec, size) or make_stages(other, size) != make_stages(spec, size)):
            return None
        return f'roll="{spec.roll}" for images of {size[0]}x{size[1]} (its models have roll="{other.roll}")'

    return rule


def _one_table(model):
    spec = model.spec
    smaller = [stage.window for stage in make_stages(spec, model.image_size) if stage.window != (spec.window,) * 2]
    if spec.version == "v1" and smaller:
        return f"windows of {smaller[0]} in a Swin with window={spec.window} (transformers has one in all stages)"
    return None


_FIELDS = {
    **dict.fromkeys(("width", "depths", "heads", "window", "patch_size", "mlp_ratio", "mean", "std"), ANY),
    "version": ("v1", "v2"),
    "pretrained_windows": ANY,
    "qkv_bias": (True, False),
    "roll": ROLLS,
}
CAPABILITIES = {
    "timm": Capabilities("timm", _FIELDS, rules=(_rolls_like("timm"),)),
    "huggingface": Capabilities("huggingface", _FIELDS, rules=(_rolls_like("huggingface"), _one_table)),
}


def _timm_attention(theirs, ours, spec):
    """A block's attention in timm's and the original's names."""
    stacked = [f"{ours}/{part}" for part in ("query", "key", "value")]
    entries = {f"{theirs}.qkv.weight": stacked_linear(*(f"{part}/kernel" for part in stacked))}
    if spec.qkv_bias and spec.version == "v1":
        entries[f"{theirs}.qkv.bias"] = stacked_bias(*(f"{part}/bias" for part in stacked))
    elif spec.qkv_bias:
        entries |= {f"{theirs}.{part}_bias": same(f"{ours}/{_QKV[part]}/bias") for part in "qv"}
    return {**entries, **torch_dense(f"{theirs}.proj", f"{ours}/out")}


def _huggingface_attention(theirs, ours, spec):
    """A block's attention in Hugging Face's names in files."""
    entries = torch_dense(f"{theirs}.output.dense", f"{ours}/out")
    for part in _QKV.values():
        entries[f"{theirs}.self.{part}.weight"] = linear(f"{ours}/{part}/kernel")
        if spec.qkv_bias and not (spec.version == "v2" and part == "key"):
            entries[f"{theirs}.self.{part}.bias"] = same(f"{ours}/{part}/bias")
    return entries


def _positions(theirs, mlp, ours, spec, stage):
    """A block's relative position bias."""
    if spec.version == "v1":
        shape = (-1, spec.heads * 2**stage)
        return {f"{theirs}.relative_position_bias_table": same(f"{ours}/relative2d/bias", shape)}
    return {
        f"{theirs}.logit_scale": same(f"{ours}/scale"),
        f"{theirs}.{mlp}.0.weight": linear(f"{ours}/continuous/hidden"),
        f"{theirs}.{mlp}.0.bias": same(f"{ours}/continuous/hidden_bias"),
        f"{theirs}.{mlp}.2.weight": linear(f"{ours}/continuous/out"),
    }


def _merging(theirs, ours, spec):
    reduction = {f"{theirs}.reduction.weight": linear(f"{ours}/reduction/kernel")}
    return {**reduction, **torch_norm(f"{theirs}.norm", f"{ours}/norm")}


def timm_map(spec: SwinSpec, classes: int | None) -> NameMap:
    """{name: Entry} in timm's names: a stage begins with its merging."""
    entries = {"patch_embed.proj.weight": conv("patch_encoder/kernel")}
    entries["patch_embed.proj.bias"] = same("patch_encoder/bias")
    entries |= torch_norm("patch_embed.norm", "stem_norm")
    for i, stage in enumerate(spec.stage_of_block):
        j = i - sum(spec.depths[:stage])
        theirs, ours = f"layers.{stage}.blocks.{j}", f"block_{i:02d}"
        if stage and not j:
            entries |= _merging(f"layers.{stage}.downsample", f"merging_{i:02d}", spec)
        entries |= _timm_attention(f"{theirs}.attn", f"{ours}/attention", spec)
        entries |= _positions(f"{theirs}.attn", "cpb_mlp", f"{ours}/attention", spec, stage)
        for n, part in ((1, "attention"), (2, "mlp")):
            entries |= torch_norm(f"{theirs}.norm{n}", f"{ours}/{part}_norm")
        for n, part in ((1, "hidden"), (2, "out")):
            entries |= torch_dense(f"{theirs}.mlp.fc{n}", f"{ours}/mlp/{part}")
    entries |= torch_norm("norm", "norm")
    return entries if classes is None else {**entries, **torch_dense("head.fc", "head")}


def huggingface_map(spec: SwinSpec, classes: int | None) -> NameMap:
    """{name: Entry} in Hugging Face's names in files: a stage ends with the next one's merging."""
    root = find_kind(spec)
    entries = {f"{root}.embeddings.patch_embeddings.projection.weight": conv("patch_encoder/kernel")}
    entries[f"{root}.embeddings.patch_embeddings.projection.bias"] = same("patch_encoder/bias")
    entries |= torch_norm(f"{root}.embeddings.norm", "stem_norm")
    for i, stage in enumerate(spec.stage_of_block):
        j = i - sum(spec.depths[:stage])
        theirs, ours = f"{root}.encoder.layers.{stage}.blocks.{j}", f"block_{i:02d}"
        if stage and not j:
            entries |= _merging(f"{root}.encoder.layers.{stage - 1}.downsample", f"merging_{i:02d}", spec)
        entries |= _huggingface_attention(f"{theirs}.attention", f"{ours}/attention", spec)
        mlp = "continuous_position_bias_mlp"
        entries |= _positions(f"{theirs}.attention.self", mlp, f"{ours}/attention", spec, stage)
        for name, part in (("before", "attention"), ("after", "mlp")):
            entries |= torch_norm(f"{theirs}.layernorm_{name}", f"{ours}/{part}_norm")
        for name, part in (("intermediate", "hidden"), ("output", "out")):
            entries |= torch_dense(f"{theirs}.{name}.dense", f"{ours}/mlp/{part}")
    entries |= torch_norm(f"{root}.layernorm", "norm")
    return entries if classes is None else {**entries, **torch_dense("classifier", "head")}


_MAPS = {"timm": timm_map, "huggingface": huggingface_map}


def find_kind(spec: SwinSpec) -> str:
    """Hugging Face's model type."""
    return {"v1": "swin", "v2": "swinv2"}[spec.version]


def _in_huggingface_files(arrays):
    """The arrays under Hugging Face's names in files, whichever spelling they have, with the module around them."""
    first = next(name for name in arrays if name.endswith("embeddings.patch_embeddings.projection.weight"))
    prefix = first.removesuffix("embeddings.patch_embeddings.projection.weight")
    root = "swinv2." if any(name.endswith(".logit_scale") for name in arrays) else "swin."

    def new_name(name):
        if name.startswith("classifier."):
            return name
        name = root + name.removeprefix(prefix)
        for pattern, new in _FORMER:
            name = re.sub(pattern, new, name)
        return name

    return renamed(arrays, new_name)


def _in_timm(arrays):
    """(the arrays under timm's names, whether they are the original's, where a stage ends with a merging)."""
    original = "layers.0.downsample.reduction.weight" in arrays

    def new_name(name):
        if original:
            name = re.sub(r"^layers\.(\d+)\.downsample\.", lambda m: f"layers.{int(m[1]) + 1}.downsample.", name)
        return re.sub(r"^head\.(weight|bias)$", r"head.fc.\1", name)

    return renamed(arrays, new_name), original


# {style: (patch embedding, first stage, a block's attention, its MLP's first layer, head)}.
_PLACES = {
    "timm": ("patch_embed.proj.weight", "layers", "attn", "mlp.fc1", "head.fc.weight"),
    "huggingface": (
        "{root}.embeddings.patch_embeddings.projection.weight",
        "{root}.encoder.layers",
        "attention.self",
        "intermediate.dense",
        "classifier.weight",
    ),
}


def _fields(arrays, style, options):
    """(fields of the spec that the arrays show, classes, channels, the side of each stage's window in v1)."""
    v2 = any(name.endswith(".logit_scale") for name in arrays)
    patch, stages, attention, fc1, head = (place.format(root="swinv2" if v2 else "swin") for place in _PLACES[style])
    kernel, hidden = need(arrays, patch, 4), need(arrays, f"{stages}.0.blocks.0.{fc1}.weight", 2)
    count = depth(arrays, rf"{re.escape(stages)}\.(\d+)\.blocks\.")
    depths = tuple(depth(arrays, rf"{re.escape(stages)}\.{i}\.blocks\.(\d+)\.") for i in range(count))
    first = f"{stages}.0.blocks.0.{attention}"
    biases = (f"{first}.qkv.bias", f"{first}.q_bias", f"{first}.query.bias")
    shown, sides = [], []
    for i in range(count):
        place = f"{stages}.{i}.blocks.0.{attention}"
        if v2:
            shown.append(need(arrays, f"{place}.logit_scale", 3).shape[0])
        else:
            table = need(arrays, f"{place}.relative_position_bias_table", 2)
            shown, sides = [*shown, table.shape[1]], [*sides, (math.isqrt(len(table)) + 1) // 2]
    if shown != [shown[0] * 2**i for i in range(count)]:
        raise ValueError(
            f"The stages have {', '.join(map(str, shown))} attention heads. In a Swin of this package each stage has"
            " twice those of the stage before, so this model cannot be expressed."
        )
    ratio = hidden.shape[0] / kernel.shape[0]
    fields = {
        "version": "v2" if v2 else "v1",
        "width": kernel.shape[0],
        "depths": depths,
        "heads": known_heads(options, shown[0]),
        "patch_size": kernel.shape[2:],
        "mlp_ratio": int(ratio) if ratio.is_integer() else ratio,
        "qkv_bias": any(name in arrays for name in biases),
    }
    return fields, (need(arrays, head, 2).shape[0] if head in arrays else None), kernel.shape[1], sides


def _stated(config, style):
    """(window, pretrained windows, image size) in config.json, each None if missing."""
    if style == "huggingface":
        windows = setting(config, "pretrained_window_sizes", list)
        return setting(config, "window_size", int), windows, stated_pair(config, "image_size")
    arguments = setting(config, "model_args", dict) or {}
    named = _ARCHITECTURE.fullmatch(str(config.get("architecture") or ""))
    window, size = setting(arguments, "window_size", int), stated_pair(arguments, "img_size")
    windows = setting(arguments, "pretrained_window_sizes", list)
    if named:
        before, after, side = named.groups()
        window = window or int(after or before)
        windows = windows or ([int(before)] * 3 + [int(before) // 2] if after else None)
        size = size or (int(side), int(side))
    stated = setting(evaluation_config(config), "input_size", list)
    return window, windows, size or (tuple(stated[1:]) if stated and len(stated) == 3 else None)


def _shown_side(arrays):
    """Patches on a side of a square image, by the mask of its first shifted windows, which the original saves."""
    name = next((name for name in arrays if re.search(r"(?:^|\.)layers\.0\.blocks\.1\.attn_mask$", name)), None)
    if name is None or arrays[name].ndim != 3:
        return None
    windows, tokens, _ = arrays[name].shape
    side = math.isqrt(windows * tokens)
    return side if side * side == windows * tokens else None


def _windows(fields, config, style, sides, options, shown_side):
    """({window, pretrained_windows}, image size) of the weights; ValueError for a table that is not the config's."""
    window, pretrained, size = _stated(config, style)
    if sides:  # the first stage has the largest map
        check_agreement([("the window's size", window, sides[0])] if size is None or min(size) > 4 * sides[0] else [])
        window = max(sides[0], window or 0)
    elif window is None:
        window = options.value("window", 8)
        pretrained = options.value("pretrained_windows", (0,) * len(fields["depths"]))
    size = options.get("recorded_size") or size
    if size is None and shown_side:
        size = shown_side * fields["patch_size"][0]
    if size is None:  # the last stage's map is one window in v1's models
        size = options.value("image_size", 256 if fields["version"] == "v2" else 32 * sides[-1])
    found = {"window": window}
    if fields["version"] == "v2" and pretrained and all(pretrained):
        found["pretrained_windows"] = tuple(pretrained)
    return found, pair(size, "image_size")


def _check_huggingface(config, fields, classes, channels):
    """Compares config.json with the arrays; refuses other settings."""
    kind = {"v1": "swin", "v2": "swinv2"}[fields["version"]]
    for name, valid in (("use_absolute_embeddings", False), ("hidden_act", "gelu"), ("layer_norm_eps", EPSILON)):
        if config.get(name) not in (None, valid):
            raise ValueError(f"config.json has {name}={config[name]!r}, which is not implemented, only {valid!r}.")
    heads = [fields["heads"] * 2**i for i in range(len(fields["depths"]))]
    labels = setting(config, "id2label", dict)
    check_agreement(
        [
            ("model_type", setting(config, "model_type", str), kind),
            ("embed_dim", setting(config, "embed_dim", int), fields["width"]),
            ("depths", setting(config, "depths", list), list(fields["depths"])),
            ("num_heads", setting(config, "num_heads", list), heads),
            ("num_channels", setting(config, "num_channels", int), channels),
            ("the number of labels in id2label", None if labels is None or classes is None else len(labels), classes),
        ]
    )


def _head(config, contents, style, classes, channels, options):
    """(mean and std, {class_names, preprocessing, activation}) from the config files of the format."""
    usual = (IMAGENET_MEAN, IMAGENET_STD)
    if style == "huggingface":
        constants_ = huggingface_config.normalisation(contents.preprocessor, usual, channels, options)
        return constants_, {
            "class_names": huggingface_config.labels(config, classes),
            "preprocessing": huggingface_config.preprocessing(contents.preprocessor) if contents.preprocessor else None,
            "activation": huggingface_config.activation(config),
        }
    stated = constants(evaluation_config(config), ("mean", "std"))
    found = normalisation(stated, usual, channels, options)
    names = label_names(config, classes)
    return found, {"class_names": names, "preprocessing": timm_preprocessing(config) if config else None}


def parse(contents, options: Mapping) -> ParsedCheckpoint:
    """The parsed checkpoint of a Swin; see google.parse for arguments and errors."""
    dropped = [name for name in contents.arrays if _OTHERS.search(name)]
    arrays = {n: a for n, a in contents.arrays.items() if n not in dropped and not _BUFFERS.search(n)}
    style = "timm" if "patch_embed.proj.weight" in arrays else "huggingface"
    original = False
    if style == "timm":
        arrays, original = _in_timm(arrays)
    else:
        arrays = _in_huggingface_files(arrays)
    config: Mapping = contents.config
    fields, classes, channels, sides = _fields(arrays, style, options)
    if style == "huggingface":
        _check_huggingface(config, fields, classes, channels)
    else:
        labels = setting(config, "num_classes", int)
        check_agreement([("num_classes", None if classes is None else labels, classes)])
    windows, size = _windows(fields, config, style, sides, options, _shown_side(contents.arrays))
    fields |= windows | {"roll": "after_padding" if original else _ROLLS[style]}
    normal, head = _head(config, contents, style, classes, channels, options)
    spec = SwinSpec(**fields, **normal)
    entries = _MAPS[style](spec, classes)
    return ParsedCheckpoint(
        "Swin",
        {**fields, **normal},
        size,
        entries,
        arrays,
        classes,
        channels,
        dropped=dropped,
        resample="bicubic",
        **head,
    )
