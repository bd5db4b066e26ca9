"""Swin's weights of both versions: timm's names, the original repository's, and Hugging Face's, old and new."""

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_vit.checkpoints.formats import huggingface_config, timm_config
from keras_vit.checkpoints.formats.capabilities import Capabilities, any_of
from keras_vit.checkpoints.formats.name_map import NameMap, Names, pack, same, spellings
from keras_vit.checkpoints.formats.parsed import IMAGENET, ParsedCheckpoint, known_heads, normalisation
from keras_vit.checkpoints.formats.settings import (
    Settings,
    check_agreement,
    check_implemented,
    constants,
    model_facts,
    plain_pair,
    section,
    setting,
    stated_pair,
)
from keras_vit.checkpoints.formats.shown import depth, need, renamed, rewriter
from keras_vit.layers.attention.windows import padding
from keras_vit.layers.embedding.patches import pair
from keras_vit.models.swin_spec import EPSILON, SwinSpec, make_stages

_OUTER = Names(
    """
    {patch}  patch_encoder  convolution
    {stem}   stem_norm      norm
    {last}   norm           norm
    {head}   head           dense        if classes
    """
)
# A merging is the beginning of its stage in timm, and the end of the stage before in Hugging Face's names.
_BLOCK = Names(
    """
    {merging}.reduction                      merging_{block}/reduction               matrix  if merges
    {merging}.norm                           merging_{block}/norm                    norm    if merges
    {inner}.relative_position_bias_table     {ours}/attention/relative2d/bias        table   if version=v1
    {inner}.logit_scale                      {ours}/attention/scale                  same    if version=v2
    {inner}.{continuous}.0.weight            {ours}/attention/continuous/hidden      linear  if version=v2
    {inner}.{continuous}.0.bias              {ours}/attention/continuous/hidden_bias  same   if version=v2
    {inner}.{continuous}.2.weight            {ours}/attention/continuous/out         linear  if version=v2
    {theirs}.{out}                           {ours}/attention/out                    dense
    {theirs}.{norm1}                         {ours}/attention_norm                   norm
    {theirs}.{norm2}                         {ours}/mlp_norm                         norm
    {theirs}.{fc1}                           {ours}/mlp/hidden                       dense
    {theirs}.{fc2}                           {ours}/mlp/out                          dense
    """,
    {"table": lambda fields, ours: same(ours, (-1, fields["stage_heads"]))},
)
_QUERY_KEY_VALUE = {
    "timm": Names(
        """
        {inner}.qkv     {ours}/attention/<query,key,value>  matrix
        {inner}.qkv     {ours}/attention/<query,key,value>  bias    if qkv_bias, version=v1
        {inner}.q_bias  {ours}/attention/query/bias         same    if qkv_bias, version=v2
        {inner}.v_bias  {ours}/attention/value/bias         same    if qkv_bias, version=v2
        """
    ),
    "huggingface": Names(
        """
        {inner}.<query,key,value>  {ours}/attention/<query,key,value>  matrix
        {inner}.<query,value>      {ours}/attention/<query,value>      bias    if qkv_bias
        {inner}.key                {ours}/attention/key                bias    if qkv_bias, version=v1
        """
    ),
}
_WORDS = spellings(
    """
    word        timm              huggingface
    patch       patch_embed.proj  {root}.embeddings.patch_embeddings.projection
    stem        patch_embed.norm  {root}.embeddings.norm
    stages      layers            {root}.encoder.layers
    inner       {theirs}.attn     {theirs}.attention.self
    continuous  cpb_mlp           continuous_position_bias_mlp
    out         attn.proj         attention.output.dense
    norm1       norm1             layernorm_before
    norm2       norm2             layernorm_after
    fc1         mlp.fc1           intermediate.dense
    fc2         mlp.fc2           output.dense
    last        norm              {root}.layernorm
    head        head.fc           classifier
    """
)
# When each library rolls a map, and so the format's field `roll`.
_ROLLS = {"timm": "before_padding", "huggingface": "after_padding"}
_KINDS = {"v1": "swin", "v2": "swinv2"}  # Hugging Face's model types
_QKV = {"q": "query", "k": "key", "v": "value"}
# Names in memory since transformers 5.24, and those in files.
_FORMER = [
    (r"\.attention\.([qkv])_proj\.", lambda m: f".attention.self.{_QKV[m[1]]}."),
    (r"\.attention\.relative_position_bias\.", ".attention.self."),
    (r"\.attention\.o_proj\.", ".attention.output.dense."),
    (r"\.mlp\.fc1\.", ".intermediate.dense."),
    (r"\.mlp\.fc2\.", ".output.dense."),
]
# Buffers that the original saves, computed again here.
_BUFFERS = re.compile(r"(?:^|\.)(?:relative_position_index|relative_coords_table|attn_mask)$")
_OTHERS = re.compile(r"(?:^|\.)(?:mask_token|decoder\..*|pooler\..*)$")
_ARCHITECTURE = re.compile(r"swin(?:v2)?_\w+?_window(\d+)(?:to(\d+))?_(?:\d+to)?(\d+)")
_CONFIG = Settings(
    """
    image_size    image_size   pair
    patch_size    patch_size   pair
    num_channels  channels     int
    embed_dim     width        int
    depths        depths       numbers
    num_heads     stage_heads  numbers
    window_size   window       int
    mlp_ratio     mlp_ratio    number
    qkv_bias      qkv_bias     bool
    """
)
_FIXED = {"hidden_act": "gelu", "layer_norm_eps": EPSILON, "use_absolute_embeddings": False}


def _is_padded(spec, image_size):
    return any(any(padding(stage.size, stage.window)) for stage in make_stages(spec, image_size))


def _unlike(format):
    """The rules of a library: it computes another model of maps that are padded, or smaller than a window."""

    def rules(model):
        spec, (h, w) = model.spec, model.image_size
        other = dataclasses.replace(spec, roll=_ROLLS[format])
        stages = make_stages(spec, (h, w))
        differs = other != spec and (_is_padded(spec, (h, w)) or make_stages(other, (h, w)) != stages)
        yield differs, f'roll="{spec.roll}" for images of {h}x{w} (its models have roll="{other.roll}")'
        smaller = [stage.window for stage in stages if stage.window != (spec.window,) * 2]
        if format == "huggingface" and spec.version == "v1" and smaller:
            text = f"windows of {smaller[0]} in a Swin with window={spec.window}"
            yield True, f"{text} (transformers has one in all stages)"

    return rules


_FIELDS = any_of("width depths heads window patch_size mlp_ratio mean std version pretrained_windows qkv_bias roll")
CAPABILITIES = {format: Capabilities(format, _FIELDS, _unlike(format)) for format in _ROLLS}


def name_map(spec: SwinSpec, classes: int | None, style: str) -> NameMap:
    """{name: Entry} in "timm" names, or "huggingface" names in files."""
    root, facts, words = _KINDS[spec.version], vars(spec), _WORDS[style]
    entries = _OUTER.spelled(**words).spelled(root=root).map(classes=classes)
    names = (_BLOCK + _QUERY_KEY_VALUE[style]).spelled(**words)
    for i, stage in enumerate(spec.stage_of_block):
        j = i - sum(spec.depths[:stage])
        stages, merged = words["stages"].format(root=root), stage if style == "timm" else stage - 1
        place = {"theirs": f"{stages}.{stage}.blocks.{j}", "ours": f"block_{i:02d}", "block": f"{i:02d}"}
        own = {"merges": stage > 0 and not j, "stage_heads": spec.heads * 2**stage}
        entries |= names.spelled(merging=f"{stages}.{merged}.downsample", **place).map(facts, **own)
    return entries


def _in_huggingface_files(arrays):
    """The arrays under Hugging Face's names in files, whichever spelling they have, with the module around them."""
    first = next(name for name in arrays if name.endswith("embeddings.patch_embeddings.projection.weight"))
    prefix = first.removesuffix("embeddings.patch_embeddings.projection.weight")
    root, former = f"{_KINDS['v2' if _is_v2(arrays) else 'v1']}.", rewriter(_FORMER, prefix)
    return renamed(arrays, lambda name: name if name.startswith("classifier.") else root + former(name))


def _is_v2(arrays):
    return any(name.endswith(".logit_scale") for name in arrays)


def _in_timm(arrays):
    """(the arrays under timm's names, whether they are the original's, where a stage ends with a merging)."""
    original = "layers.0.downsample.reduction.weight" in arrays
    later = (r"^layers\.(\d+)\.downsample\.", lambda m: f"layers.{int(m[1]) + 1}.downsample.")
    return renamed(arrays, rewriter([later] * original + [(r"^head\.(weight|bias)$", r"head.fc.\1")])), original


def _fields(arrays, style, options):
    """(fields of the spec that the arrays show, classes, channels, the side of each stage's window in v1)."""
    version = "v2" if _is_v2(arrays) else "v1"
    words = {word: text.replace("{root}", _KINDS[version]) for word, text in _WORDS[style].items()}
    stages, head = words["stages"], f"{words['head']}.weight"
    count = depth(arrays, rf"{re.escape(stages)}\.(\d+)\.blocks\.")
    depths = tuple(depth(arrays, rf"{re.escape(stages)}\.{i}\.blocks\.(\d+)\.") for i in range(count))
    attention = [words["inner"].format(theirs=f"{stages}.{i}.blocks.0") for i in range(count)]
    kernel = need(arrays, f"{words['patch']}.weight", 4)
    hidden = need(arrays, f"{stages}.0.blocks.0.{words['fc1']}.weight", 2)
    biases = {f"{attention[0]}.{name}" for name in ("qkv.bias", "q_bias", "query.bias")}
    shown, sides = [], []
    for place in attention:
        if version == "v2":
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
        "version": version,
        "width": kernel.shape[0],
        "depths": depths,
        "heads": known_heads(options, shown[0]),
        "patch_size": kernel.shape[2:],
        "mlp_ratio": int(ratio) if ratio.is_integer() else ratio,
        "qkv_bias": not biases.isdisjoint(arrays),
    }
    return fields, (need(arrays, head, 2).shape[0] if head in arrays else None), kernel.shape[1], sides


def _stated(config, style):
    """(window, pretrained windows, image size) in config.json, each None if missing."""
    if style == "huggingface":
        windows = setting(config, "pretrained_window_sizes", list)
        return setting(config, "window_size", int), windows, stated_pair(config, "image_size")
    arguments = section(config, "model_args")
    named = _ARCHITECTURE.fullmatch(str(config.get("architecture") or ""))
    window, size = setting(arguments, "window_size", int), stated_pair(arguments, "img_size")
    windows = setting(arguments, "pretrained_window_sizes", list)
    if named:
        before, after, side = named.groups()
        window = window or int(after or before)
        windows = windows or ([int(before)] * 3 + [int(before) // 2] if after else None)
        size = size or (int(side), int(side))
    stated = setting(timm_config.evaluation_config(config), "input_size", list)
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


def _check(config, fields, style, classes, channels):
    """Compares config.json with the arrays; refuses other settings."""
    if style == "timm":
        labels = setting(config, "num_classes", int)
        return check_agreement([("num_classes", None if classes is None else labels, classes)])
    check_implemented(config, _FIXED)
    stages = tuple(fields["heads"] * 2**i for i in range(len(fields["depths"])))
    facts = {name: fields[name] for name in ("width", "depths")} | {"stage_heads": stages, "channels": channels}
    kind = ("model_type", setting(config, "model_type", str), _KINDS[fields["version"]])
    check_agreement([kind, *_CONFIG.compared(config, facts), *huggingface_config.label_rows(config, classes)[:1]])


def _described(config, contents, style, classes, channels, options):
    """(mean and std, {class_names, preprocessing, activation}) from the config files of the format."""
    if style == "huggingface":
        return huggingface_config.normalisation(contents.preprocessor, channels, options), {
            "class_names": huggingface_config.labels(config, classes),
            "preprocessing": contents.preprocessor and huggingface_config.preprocessing(contents.preprocessor) or None,
            "activation": huggingface_config.activation(config),
        }
    stated = constants(timm_config.evaluation_config(config), ("mean", "std"))
    return normalisation(stated, IMAGENET, channels, options), {
        "class_names": timm_config.label_names(config, classes),
        "preprocessing": timm_config.preprocessing(config) if config else None,
    }


def parse(contents: Any, options: Any) -> ParsedCheckpoint:
    """The parsed checkpoint of a Swin; see google.parse for arguments and errors."""
    dropped = [name for name in contents.arrays if _OTHERS.search(name)]
    arrays = {n: a for n, a in contents.arrays.items() if n not in dropped and not _BUFFERS.search(n)}
    style = "timm" if "patch_embed.proj.weight" in arrays else "huggingface"
    arrays, original = _in_timm(arrays) if style == "timm" else (_in_huggingface_files(arrays), False)
    config: Mapping = contents.config
    fields, classes, channels, sides = _fields(arrays, style, options)
    _check(config, fields, style, classes, channels)
    windows, size = _windows(fields, config, style, sides, options, _shown_side(contents.arrays))
    normal, described = _described(config, contents, style, classes, channels, options)
    fields |= windows | normal | {"roll": "after_padding" if original else _ROLLS[style]}
    return ParsedCheckpoint(
        "Swin",
        fields,
        size,
        name_map(SwinSpec(**fields), classes, style),
        arrays,
        classes,
        channels,
        dropped=dropped,
        resample="bicubic",
        **described,
    )


def _facts(model):
    heads = tuple(model.spec.heads * 2**stage for stage in range(len(model.spec.depths)))
    windows = model.spec.pretrained_windows if model.spec.version == "v2" else None
    pretrained = {} if windows is None else {"pretrained_window_sizes": list(map(plain_pair, windows))}
    return model_facts(model, stage_heads=heads), pretrained


def to_timm_config(model: Any) -> dict[str, Any]:
    """timm's config.json."""
    spec, (facts, pretrained) = model.spec, _facts(model)
    written = {key: value for key, value in _CONFIG.written(facts).items() if key not in ("image_size", "num_channels")}
    arguments = {"img_size": list(model.image_size), **written, **pretrained}
    name = "swinv2_tiny_window8_256" if spec.version == "v2" else "swin_tiny_patch4_window7_224"
    return timm_config.description(model, name, arguments, spec.width * 2 ** (len(spec.depths) - 1))


def to_huggingface_config(model: Any) -> dict[str, Any]:
    """Hugging Face's config.json."""
    (facts, pretrained), kind = _facts(model), _KINDS[model.spec.version]
    head = "ForImageClassification" if model.classes is not None else "Model"
    return {
        "architectures": [f"{kind.capitalize()}{head}"],
        "transformers_version": huggingface_config.VERSION,
        "model_type": kind,
        **_CONFIG.written(facts),
        **_FIXED,
        **pretrained,
        **huggingface_config.to_labels(model),
    }


def write_timm(model: Any, weights: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """(arrays, {config file: content}) of a model; ValueError for one that the format cannot express."""
    CAPABILITIES["timm"].check(model)
    return pack(name_map(model.spec, model.classes, "timm"), weights), {"config.json": to_timm_config(model)}


def write_huggingface(model: Any, weights: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """(arrays, {config file: content}) of a model; ValueError for one that the format cannot express."""
    CAPABILITIES["huggingface"].check(model)
    arrays = pack(name_map(model.spec, model.classes, "huggingface"), weights)
    return arrays, huggingface_config.files(model, to_huggingface_config(model))
