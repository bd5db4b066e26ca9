"""What the file of a custom model shows; one error asks for the rest: arguments, and rules for names."""

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_vit.checkpoints.formats.common_names import VOCABULARY
from keras_vit.checkpoints.formats.name_map import summary
from keras_vit.checkpoints.formats.questions import Options, Unanswered

# Names of queries, keys and values in any order: of a block, which of them, how their rows are grouped, one head's.
FUSED = re.compile(r"(blocks\.\d+\.attn)\.([qkv]{1,3})(?:_per_(head|channel)|\.(\d+))?\.(weight|bias)")
# What torchvision's code computes, with names that only its models have.
_TORCHVISION = re.compile(r"encoder\.layers\.encoder_layer_\d+\.self_attention\.in_proj_weight")
_OF_TORCHVISION = {
    "norm_first": True,
    "mlp_activation": "gelu",
    "pre_logits_activation": "tanh",
    "epsilon": 1e-6,
    "pool": "token",
}
# {pattern of array names: (the code that they come from and how it differs from our ViT, a rule for other code)}.
_OTHER_CODE = {
    r"(?:.*\.)?\d+\.\d+\.0\.fn\.1\.(?:qkv|queries)\.weight": (
        "FrancescoSaverioZuppichini/ViT, which divides by sqrt(width) after the softmax of attention, and not before",
        (r"\.0\.fn\.1\.", ".0.attention."),
    ),
    r"(?:.*\.)?\d+\.la1\.weight": (
        "omihub777/ViT-CIFAR, which has GELU after both dense layers of an MLP, and scales attention otherwise",
        (r"\.la([12])\.", r".norm\1."),
    ),
    r"(?:.*\.)?classification_head\.0\.weight": (
        'MONAI, which has tanh after the head unless post_activation=""',
        (r"classification_head\.0\.", "head."),
    ),
}
_PRE_NORM = re.compile(r"(?!blocks\.)(?:.*\.)?(?:(?:ln|(?:layer_?)?norm)_?pre|pre_?(?:ln|(?:layer_?)?norm))\.weight")
_PATCH_NORM = re.compile(r"(?:.*\.)?patch_?embed\w*\.(?:.*\.)?(?:layer_?norm|norm|ln|bn)\w*\.weight")
# {argument that a file does not state: (its usual value, the array that it is about or None)}.
_QUESTIONS = {
    "heads": (1, None),
    "mean": (127.5, None),
    "std": (127.5, None),
    "norm_first": (True, None),
    "mlp_activation": ("gelu", None),
    "pre_logits_activation": ("tanh", "pre_logits.weight"),
    "pool": ("token", "cls_token"),
    "epsilon": (1e-5, None),
}


def _problem_of_names(arrays, files, after):
    """(sentences on missing and unknown names, {name: rule} that may fix them); ([], {}) if all names fit."""
    names = {re.sub(r"proj_(?:hwc|chw)", "proj", FUSED.sub(r"\1.qkv.\5", name)) for name in arrays}
    numbers = [int(match[1]) for match in (re.match(r"blocks\.(\d+)\.", name) for name in names) if match]
    in_block = ["norm1", "attn.qkv", "norm2", "mlp.fc1", "mlp.fc2"]
    in_block += ["attn.proj"] * any(name.endswith("attn.proj.weight") for name in names)
    expected = {"patch_embed.proj.weight", "pos_embed"}
    for i in range(min(max(numbers, default=0) + 1, len(arrays))):
        expected |= {f"blocks.{i}.{layer}.weight" for layer in in_block}
    missing = expected - names
    over = [name for name in arrays if not VOCABULARY.fullmatch(name)]
    norm = arrays.get("blocks.0.norm1.weight")
    rules = {} if norm is None else _rules(missing, over, arrays, after, norm.size)
    parts = [f"Missing: {summary(missing)}."] if missing else []
    if over:
        shown = [files[name] if name == files[name] else f"{files[name]} (read as {name})" for name in over]
        parts.append(f"Left over: {summary(shown)}.")
    parts += [
        f'"{files[name]}" is a normalisation before the blocks, which cannot be expressed.'
        for name in over
        if _PRE_NORM.fullmatch(name)
    ]
    if (name := "patch_embed.proj.weight") in rules:
        parts.append(
            f'"{files[name]}" is a dense layer on flattened patches: rewrite its name to patch_embed.proj_hwc if the'
            " values of a patch are row, column, channel (einops' (p1 p2 c)), or to patch_embed.proj_chw if they are"
            " channel, row, column (nn.Unfold, flatten of channels first)."
        )
    parts += [
        f'"{files[name]}" normalises patches after their embedding; without a normalisation before it, too, as in'
        " vit-pytorch, this cannot be expressed."
        for name in over
        if _PATCH_NORM.fullmatch(name) and name not in rules and f"{name.removesuffix('weight')}bias" in over
    ]
    return parts, rules


def _patch_norms(over, arrays, after, kernel):
    """{name: rule} for the two normalisations of a dense patch embedding (d, p * p * c): of its inputs, and outputs."""
    module = after[kernel].rpartition(".")[0].rpartition(".")[0]
    found = {}
    for name in over:
        inside = name.endswith(".weight") and arrays[name].ndim == 1 and after[name].startswith(f"{module}.")
        new = {size: new for size, new in zip(arrays[kernel].shape[::-1], ("pixel_norm", "embedding_norm"))}
        if inside and module and arrays[name].size in new:
            stem = re.escape(after[name].removesuffix(".weight"))
            found[name] = (rf"^{stem}\.", f"patch_embed.{new[arrays[name].size]}.")
    return found if len(found) == 2 else {}


def _rules(missing, over, arrays, after, width):
    """{name: rule for its name after the user's rules} for arrays that can only be the patches, positions or head of a
    model of this width, or are outside the module that contains all others.
    """
    found, places = {}, {}
    if "patch_embed.proj.weight" in arrays and arrays["patch_embed.proj.weight"].ndim == 2:
        places["patches"] = "patch_embed.proj.weight"
    for name in over:
        array = arrays[name]
        if name.endswith(".weight") and array.ndim == 2 and not name.startswith("blocks."):
            if "patch_embed.proj.weight" in missing and array.shape[0] == width:
                places["patches"] = name
            elif "head.weight" not in arrays and array.shape[1] == width:
                found[name] = (rf"^{re.escape(after[name].removesuffix('.weight'))}\.", "head.")
        if "pos_embed" in missing and array.ndim in (2, 3) and array.shape[-1] == width and "patches" not in places:
            found[name] = (f"^{re.escape(after[name])}$", "pos_embed")
    if name := places.get("patches"):
        found[name] = (rf"^{re.escape(after[name].removesuffix('.weight'))}\.", "patch_embed.proj_?.")
    dense = [
        n for n in ("patch_embed.proj_hwc.weight", "patch_embed.proj_chw.weight", places.get("patches")) if n in arrays
    ]
    found |= _patch_norms(over, arrays, after, dense[0]) if dense and arrays[dense[0]].ndim == 2 else {}
    rules = list(found.values())
    roots = {after[name].partition(".")[0] for name in arrays if name not in over}
    outside = [after[name] for name in over if not any(re.search(pattern, after[name]) for pattern, _ in rules)]
    beside = dict.fromkeys(name.partition(".")[0] for name in outside) if len(roots) == 1 else {}  # losses, metrics
    return found | {root: (rf"^{re.escape(root)}\.", None) for root in beside if root not in roots}


_WORDS = (
    "cls_token, pos_embed, patch_embed.proj (of a dense layer proj_hwc if a patch's values are row, column, channel;"
    " proj_chw if channel, row, column; with two normalisations, pixel_norm and embedding_norm), blocks.0.norm1,"
    " blocks.0.attn.qkv, blocks.0.attn.proj, blocks.0.norm2, blocks.0.mlp.fc1, blocks.0.mlp.fc2, norm, pre_logits, head"
)


def shown_heads(arrays: Mapping[str, np.ndarray]) -> int:
    """The number of heads if each has its own layer of queries, or its own axis (d, k, c); else 0."""
    query = arrays.get("blocks.0.attn.q.weight")
    if query is not None and query.ndim == 3:
        return query.shape[1]
    return sum(bool(re.fullmatch(r"blocks\.0\.attn\.q\.\d+\.weight", name)) for name in arrays)


def shown(arrays: Mapping[str, np.ndarray], files: Mapping[str, str], config: Mapping[str, Any]) -> dict[str, Any]:
    """{argument: value} of all that the arrays, their names or timm's config.json show."""
    arguments, pretrained = (config.get(name) for name in ("model_args", "pretrained_cfg"))
    found = dict(_OF_TORCHVISION) if any(map(_TORCHVISION.search, files.values())) else {}
    found["heads"] = arguments.get("num_heads") if isinstance(arguments, dict) else None
    if isinstance(pretrained, dict):
        found |= {name: pretrained.get(name) for name in ("mean", "std")}
    if count := shown_heads(arrays):
        found["heads"] = count
    return {name: value for name, value in found.items() if value is not None}


def _foreign_code(names):
    """Sentences on names of code that computes something else."""
    known = [text for pattern, text in _OTHER_CODE.items() if any(re.fullmatch(pattern, name) for name in names)]
    return [
        f"The names are those of {what}. Here attention is softmax(q k / sqrt(width / heads)), and no activation"
        f" follows an MLP's or a model's last dense layer. If your code computes that, too, add the rule {rule} to"
        " names=; otherwise this model cannot be expressed."
        for what, rule in known
    ]


def _ask_sizes(arrays, options, rules):
    """Asks for the channels of dense patches and for the size of images that are not square."""
    names = [name for name in arrays if re.fullmatch(r"patch_embed\.proj(?:_hwc|_chw)?\.weight", name)]
    dense = [arrays[name].shape[1] for name in names if arrays[name].ndim == 2]
    dense += [arrays[name].shape[1] for name, (_, new) in rules.items() if new == "patch_embed.proj_?."]
    if any(math.isqrt(inputs // 3) ** 2 * 3 != inputs for inputs in dense):
        options.value("channels", 1)
    table = arrays.get("pos_embed", np.zeros(0))
    tokens = sum(name in arrays for name in ("cls_token", "dist_token"))
    rows = table.size // table.shape[-1] if table.size else 1
    if math.isqrt(max(rows - tokens, 0)) ** 2 != rows - tokens:
        options.value("image_size", None)


def check(
    path: object,
    arrays: Mapping[str, np.ndarray],
    files: Mapping[str, str],
    after: Mapping[str, str],
    stated: Mapping[str, Any],
    options: Options,
) -> dict[str, Any]:
    """{argument: value} of all that the arrays do not show.

    Args:
        path: of the file.
        arrays: {timm's name, or an unknown one: array}.
        files: {name: name in the file}.
        after: {name: name in the file, after the rules}.
        stated: from `shown`.
        options: arguments of `load`.

    Raises:
        ValueError: for names that are not a ViT's, and for missing arguments: one for both.
    """
    wrong, rules = _problem_of_names(arrays, files, after)
    result = {
        name: options.value(name, usual, None if name in options else stated.get(name))
        for name, (usual, about) in _QUESTIONS.items()
        if about is None or about in arrays
    }
    _ask_sizes(arrays, options, rules)
    sentences = _foreign_code(after.values())
    if wrong:
        sentences.append(
            f"The names are not those of a ViT. {' '.join(wrong)} names=[(pattern, replacement), ...] rewrites them to"
            f" {_WORDS}; (pattern, None) leaves arrays out. See docs/checkpoints.md."
        )
    if sentences or rules or options.open:
        values = {"names": [*(options.get("names") or ()), *rules.values()]} if rules else {}
        raise Unanswered(path, sentences, options.open, values)
    return result


def assumed(answers: Mapping[str, Any], files: Mapping[str, str]) -> list[str]:
    """A sentence on assumptions, or []; `files` is {name: name in the file}."""
    found = []
    if not files.get("blocks.0.attn.qkv.weight", "in_proj_weight").endswith("in_proj_weight"):
        found.append(
            'all queries, then keys, then values (if they are head by head, rewrite "qkv" to "qkv_per_head"; if channel'
            ' by channel, as of "(h d qkv)", to "qkv_per_channel")'
        )
    if not any(name.endswith("in_proj_weight") for name in files.values()):
        found.append("attention by softmax(q k / sqrt(width / heads)), nothing after an MLP's last dense layer")
    if "cls_token" in files and answers.get("pool") == "gap":
        found.append('a mean of the patches alone, without the class token (pool="mean" includes it)')
    pool = answers.get("pool", "gap")
    if pool in ("gap", "mean") and "norm.weight" in files:
        found.append(
            'the last normalisation before the mean of the tokens (if it comes after, rewrite its name to "fc_norm")'
        )
    if not {"norm.weight", "fc_norm.weight"} & files.keys():
        found.append("no normalisation after the blocks (final_norm=False), since it has no array of one")
    return [f"The file does not say, and is assumed to have: {'; '.join(found)}."] if found else []
