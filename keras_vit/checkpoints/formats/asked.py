"""One error asks for everything that the file of a custom model does not show: arguments, and rules for names."""

import re
from collections.abc import Collection, Mapping
from typing import Any, NoReturn

import numpy as np

from keras_vit.checkpoints.formats.common_names import VOCABULARY
from keras_vit.checkpoints.formats.name_map import summary

EPSILON = 1e-5  # the default of nn.LayerNorm
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
# Arguments that a file does not state: their meaning, and the value that is assumed, if any.
ASKED = {
    "heads": ("the number of attention heads", None),
    "mean": (
        "with std, how pixels 0..255 are normalised: mean=0, std=255 if they are only divided by 255; mean=127.5,"
        " std=127.5 for [-1, 1]; mean=(123.675, 116.28, 103.53), std=(58.395, 57.12, 57.375) for ImageNet's",
        None,
    ),
    "std": ("see mean", None),
    "norm_first": (
        "True for x + attention(norm(x)); False for norm(x + attention(x)), the default of nn.TransformerEncoderLayer",
        None,
    ),
    "mlp_activation": (
        '"gelu", "gelu_tanh", "quick_gelu", "silu" or "relu", the default of nn.TransformerEncoderLayer',
        None,
    ),
    "pre_logits_activation": ('between the two dense layers of the head: "tanh", "gelu", "relu"...', None),
    "pool": ('what the head reads: "token", "gap" (the mean of the patches) or "mean" (of all tokens)', "token"),
    "epsilon": ("of the normalisations; nn.LayerNorm's default is 1e-05", EPSILON),
}


def _problem_of_names(arrays, files):
    """(sentences on missing and unknown names, rules that may fix them); ([], []) if all names fit."""
    names = {re.sub(r"proj_(?:hwc|chw)", "proj", FUSED.sub(r"\1.qkv.\5", name)) for name in arrays}
    numbers = [int(match[1]) for match in (re.match(r"blocks\.(\d+)\.", name) for name in names) if match]
    in_block = ["norm1", "attn.qkv", "norm2", "mlp.fc1", "mlp.fc2"]
    in_block += ["attn.proj"] * any(name.endswith("attn.proj.weight") for name in names)
    expected = {"patch_embed.proj.weight", "pos_embed"}
    for i in range(min(max(numbers, default=0) + 1, len(arrays))):
        expected |= {f"blocks.{i}.{layer}.weight" for layer in in_block}
    missing = expected - names
    over = [name for name in arrays if not VOCABULARY.fullmatch(name)]
    parts = [f"Missing: {summary(missing)}."] if missing else []
    if over:
        shown = [files[name] if name == files[name] else f"{files[name]} (read as {name})" for name in over]
        parts.append(f"Left over: {summary(shown)}.")
    parts += [
        f'"{files[name]}" is a normalisation before the blocks, which cannot be expressed.'
        for name in over
        if _PRE_NORM.fullmatch(name)
    ]
    norm = arrays.get("blocks.0.norm1.weight")
    return parts, [] if norm is None else _rules(missing, over, arrays, files, norm.size)


def _rules(missing, over, arrays, files, width):
    """Rules for arrays left over that can only be the patches, positions or head of a model of this width, or are
    outside the module that contains all others.
    """
    found = {}
    for name in over:
        array, stem = arrays[name], re.escape(files[name].removesuffix(".weight"))
        if name.endswith(".weight") and array.ndim == 2 and not name.startswith("blocks."):
            if "patch_embed.proj.weight" in missing and array.shape[0] == width:
                found["patches"] = (rf"^{stem}\.", "patch_embed.proj_?.")
            elif "head.weight" not in arrays and array.shape[1] == width:
                found["head"] = (rf"^{stem}\.", "head.")
        if "pos_embed" in missing and array.ndim in (2, 3) and array.shape[-1] == width and "patches" not in found:
            found["positions"] = (f"^{re.escape(files[name])}$", "pos_embed")
    rules = list(found.values())
    roots = {files[name].partition(".")[0] for name in arrays if name not in over}
    outside = [files[name] for name in over if not any(re.search(pattern, files[name]) for pattern, _ in rules)]
    beside = dict.fromkeys(name.partition(".")[0] for name in outside) if len(roots) == 1 else {}  # losses, metrics
    return rules + [(rf"^{re.escape(root)}\.", None) for root in beside if root not in roots]


_WORDS = (
    "cls_token, pos_embed, patch_embed.proj (of a dense layer proj_hwc if a patch's values are row, column, channel;"
    " proj_chw if channel, row, column), blocks.0.norm1, blocks.0.attn.qkv, blocks.0.attn.proj, blocks.0.norm2,"
    " blocks.0.mlp.fc1, blocks.0.mlp.fc2, norm, pre_logits, head"
)


def shown_heads(arrays: Mapping[str, np.ndarray]) -> int:
    """The number of heads if each has its own layer of queries, or its own axis (d, k, c); else 0."""
    query = arrays.get("blocks.0.attn.q.weight")
    if query is not None and query.ndim == 3:
        return query.shape[1]
    return sum(bool(re.fullmatch(r"blocks\.0\.attn\.q\.\d+\.weight", name)) for name in arrays)


def stated(
    arrays: Mapping[str, np.ndarray], files: Mapping[str, str], options: Mapping[str, Any], config: Mapping[str, Any]
) -> dict[str, Any]:
    """{argument: value} of all that the user, the names or timm's config.json state."""
    arguments, pretrained = (config.get(name) for name in ("model_args", "pretrained_cfg"))
    found = dict(_OF_TORCHVISION) if any(map(_TORCHVISION.search, files.values())) else {}
    found["heads"] = arguments.get("num_heads") if isinstance(arguments, dict) else None
    if isinstance(pretrained, dict):
        found |= {name: pretrained.get(name) for name in ("mean", "std")}
    if shown := shown_heads(arrays):
        found["heads"] = shown
    found |= {name: options[name] for name in ASKED if options.get(name) is not None}
    return {name: value for name, value in found.items() if value is not None}


def _of_other_code(names):
    """Sentences on names of code that computes something else."""
    known = [text for pattern, text in _OTHER_CODE.items() if any(re.fullmatch(pattern, name) for name in names)]
    return [
        f"The names are those of {what}. Here attention is softmax(q k / sqrt(width / heads)), and no activation"
        f" follows an MLP's or a model's last dense layer. If your code computes that, too, add the rule {rule} to"
        " names=; otherwise this model cannot be expressed."
        for what, rule in known
    ]


def ask(
    path: object,
    sentences: list[str],
    missing: Collection[str],
    values: Mapping[str, Any],
    source: str = "model's code",
) -> NoReturn:
    """Raises the ValueError that names errors and missing values, with a line to paste.

    Args:
        path: of the file.
        sentences: on the errors.
        missing: arguments of ASKED.
        values: {argument: value} to show in the line; None for a question mark.
        source: where the user finds the missing values.
    """
    text = list(sentences)
    if missing:
        text.append(f"The file does not say what its model computes. Look up in the {source}:")
        text += [f"  {name}: {ASKED[name][0]}" for name in missing]
    line = ", ".join(f"{name}={'?' if value is None else repr(value)}" for name, value in values.items())
    text += ["Then call, with your values for each question mark:", f'  keras_vit.load("{path}", {line})']
    raise ValueError("\n".join(text))


def check(
    path: object,
    arrays: Mapping[str, np.ndarray],
    files: Mapping[str, str],
    names: Collection[str],
    stated: Mapping[str, Any],
    options: Mapping[str, Any],
) -> None:
    """Refuses names that are not a ViT's, and missing arguments: one ValueError for both.

    Args:
        path: of the file.
        arrays: {timm's name, or an unknown one: array}.
        files: {name: name in the file}.
        names: all names, after the rules.
        stated: from `stated`.
        options: arguments of `load`.
    """
    wrong, rules = _problem_of_names(arrays, files)
    only_with = {"pre_logits_activation": "pre_logits.weight", "pool": "cls_token"}
    missing = [n for n in ASKED if n not in stated and (n not in only_with or only_with[n] in arrays)]
    sentences = _of_other_code(names)
    if not sentences and not wrong and all(ASKED[name][1] is not None for name in missing):
        return
    if wrong:
        sentences.append(
            f"The names are not those of a ViT. {' '.join(wrong)} names=[(pattern, replacement), ...] rewrites them to"
            f" {_WORDS}; (pattern, None) leaves arrays out. See docs/checkpoints.md."
        )
    values = {name: ASKED[name][1] for name in missing} | {name: stated[name] for name in ASKED if name in stated}
    if options.get("names") is not None or rules or wrong:
        values = {"names": [*(options.get("names") or ()), *rules], **values}
    if options.get("channels"):
        values["channels"] = options["channels"]
    ask(path, sentences, missing, values)


def assumed(stated: Mapping[str, Any], files: Mapping[str, str]) -> list[str]:
    """A sentence on assumptions, or []; `files` is {name: name in the file}."""
    found = [] if "epsilon" in stated else [f"epsilon={EPSILON} (nn.LayerNorm's default)"]
    if not files.get("blocks.0.attn.qkv.weight", "in_proj_weight").endswith("in_proj_weight"):
        found.append(
            'all queries, then keys, then values (if they are head by head, rewrite "qkv" to "qkv_per_head"; if channel'
            ' by channel, as of "(h d qkv)", to "qkv_per_channel")'
        )
    if not any(name.endswith("in_proj_weight") for name in files.values()):
        found.append("attention by softmax(q k / sqrt(width / heads)), nothing after an MLP's last dense layer")
    if "cls_token" in files and "pool" not in stated:
        found.append('a head on the class token (pool="token")')
    if "cls_token" in files and stated.get("pool") == "gap":
        found.append('a mean of the patches alone, without the class token (pool="mean" includes it)')
    pool = stated.get("pool", "token" if "cls_token" in files else "gap")
    if pool in ("gap", "mean") and "norm.weight" in files:
        found.append(
            'the last normalisation before the mean of the tokens (if it comes after, rewrite its name to "fc_norm")'
        )
    if not {"norm.weight", "fc_norm.weight"} & files.keys():
        found.append("no normalisation after the blocks (final_norm=False), since it has no array of one")
    return [f"The file does not say, and is assumed to have: {'; '.join(found)}."] if found else []
