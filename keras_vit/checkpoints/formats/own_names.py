"""State dicts of torch models with custom names, read by rules that rewrite these to timm's.

Common names need no rule: see `known_name` and `_sequential`. docs/checkpoints.md lists the target names and has a
worked example.
"""

import collections
import dataclasses
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from keras_vit.checkpoints.formats import timm
from keras_vit.checkpoints.formats.name_map import summary
from keras_vit.checkpoints.formats.parsed import ParsedCheckpoint
from keras_vit.checkpoints.formats.recognise import LONGEST_NAME

# Defaults of nn.LayerNorm and nn.GELU.
_EPSILON, _ACTIVATION = 1e-5, "gelu"
_PARAMETER = re.compile(r"(.*)\.(weight|bias)$")
_BLOCK = re.compile(
    r"(?:.*?\.)?(?:blocks|layers?|encoder|transformer|encoder_layers|transformer_encoder|transformer_blocks|resblocks)"
    r"\.(?:[a-z_]+_)?(\d+)\.(.+)"
)
_ATTENTION = r"(?:.*\.)?(?:\w*att\w*|msa|mha)"
# Names within a block, without ".weight" and ".bias", and timm's.
_IN_BLOCK = (
    (r"(?:.*\.)?(?:layer_?)?(?:ln|norm)_?([12])", r"norm\1"),
    (r"(?:.*\.)?out_proj", "attn.proj"),
    (rf"{_ATTENTION}\.(?:proj|projection|out|o_proj|to_out|to_out\.0)", "attn.proj"),
    (r"(?:.*\.)?(?:to_)?qkv(?:_proj)?", "attn.qkv"),
    (r"(?:.*\.)?(?:to_|w_?)?([qkv])(?:_proj)?", r"attn.\1"),
    (r"(?:.*\.)?(?:(q)uer(?:y|ies)|(k)eys?|(v)alues?)", r"attn.\1\2\3"),
    (r"(?:.*\.)?(?:linear_?|fc_?)([12])", r"mlp.fc\1"),
)
# Names outside the blocks: of arrays without ".weight", normalisations and heads.
_TOKEN = re.compile(r"(?:.*\.)?(?:cls|cls_token|class_token|cls_embedding|class_embedding)")
_TABLE = re.compile(r"(?:.*\.)?(?:pos|position|positional)_(?:emb|embed|embedding|embeddings|encoding)(?:\.weight)?")
_NORM = re.compile(
    r"(?:.*\.)?(?:norm|ln|layer_?norm|(?:final|last|encoder|post)_(?:layer_?)?norm|(?:norm|ln)_(?:f|final|post))"
)
_HEAD = re.compile(r"(?:.*\.)?(?:\w*head|heads|classifier|fc)")
# Target names: timm's, and arrays in another order, which `_attention` and `_patches` convert.
_VOCABULARY = re.compile(
    r"cls_token|reg_token|dist_token|pos_embed"
    r"|patch_embed\.(?:proj|proj_chw|proj_hwc)\.(?:weight|bias)"
    r"|blocks\.\d+\.(?:norm1|norm2|attn\.(?:[qkv]{1,3}|[qkv]{3}_per_head|q_norm|k_norm|proj)|mlp\.fc[12])\.(?:weight|bias)"
    r"|blocks\.\d+\.ls[12]\.gamma"
    r"|(?:norm|fc_norm|pre_logits|head|head_dist)\.(?:weight|bias)"
)
_FUSED = re.compile(r"(blocks\.\d+\.attn)\.([qkv]{1,3})(_per_head)?\.(weight|bias)")


def _is_rule(rule):
    is_pair = isinstance(rule, (list, tuple)) and len(rule) == 2
    return is_pair and isinstance(rule[0], str) and isinstance(rule[1], str | None)


def _checked_rules(rules):
    """The rules with compiled patterns; ValueError unless they are pairs (regular expression, replacement or None)."""
    if not isinstance(rules, (list, tuple)) or not all(map(_is_rule, rules)):
        example = r'names=[(r"^encoder\.(\d+)\.", r"blocks.\1."), (r"^decoder\.", None)]'
        raise ValueError(
            f"names should be a list of pairs (pattern, replacement; None leaves arrays out), such as {example}, got"
            f" {rules!r}."
        )
    try:
        return [(re.compile(pattern), new) for pattern, new in rules]
    except re.error as error:
        raise ValueError(f"The pattern {error.pattern!r} in names is not a regular expression: {error}.") from None


def rewritten(rules: Iterable[tuple[str, str | None]], names: Iterable[str]) -> dict[str, str | None]:
    """{name in the file: new name, or None to leave it out}, by the rules in order; ValueError for a useless rule."""
    result = {name: name for name in names}
    for pattern, new in _checked_rules(rules):
        matched = [name for name, now in result.items() if now is not None and pattern.search(now)]
        if not matched:
            left = [now for now in result.values() if now is not None]
            raise ValueError(
                f"The rule ({pattern.pattern!r}, {new!r}) in names matches none of the names, as the rules before it"
                f" left them: {summary(left, 50)}."
            )
        for name in matched:
            try:
                result[name] = None if new is None else pattern.sub(new, result[name])
            except (re.error, IndexError) as error:
                raise ValueError(
                    f"The replacement {new!r} of the rule with {pattern.pattern!r} is not valid: {error}."
                ) from None
    return result


def _known_in_block(tail):
    """timm's name, after "blocks.0.", of an array in a block; an unknown name stays."""
    in_proj = re.fullmatch(r"(?:.*\.)?in_proj_(weight|bias)", tail)  # nn.MultiheadAttention
    if in_proj:
        return f"attn.qkv.{in_proj[1]}"
    parameter = _PARAMETER.fullmatch(tail)
    for pattern, new in _IN_BLOCK if parameter else ():
        match = re.fullmatch(pattern, parameter[1])
        if match:
            return f"{match.expand(new)}.{parameter[2]}"
    return tail


def known_name(name: str, rank: int) -> str:
    """timm's name of a commonly named array, whatever its prefix; an unknown name stays.

    Args:
        name: in the file, after the rules.
        rank: number of axes.
    """
    if _VOCABULARY.fullmatch(name):
        return name
    block = _BLOCK.fullmatch(name)
    if block:
        return f"blocks.{block[1]}.{_known_in_block(block[2])}"
    if _TOKEN.fullmatch(name):
        return "cls_token"
    if _TABLE.fullmatch(name):
        return "pos_embed"
    parameter = _PARAMETER.fullmatch(name)
    if parameter and rank == 1 and _NORM.fullmatch(parameter[1]):
        in_head = _HEAD.fullmatch(parameter[1].rpartition(".")[0])
        return f"{'head_norm' if in_head else 'norm'}.{parameter[2]}"
    if parameter and _HEAD.fullmatch(parameter[1]):
        return f"head.{parameter[2]}"
    return name


def _sequential(names, ranks):
    """{name: timm's name} of numbered nn.Sequential layers: a block's MLP and the head.

    An MLP's dense layers are fc1 and fc2, a normalisation before them norm2. A head's dense layer is the head, a
    normalisation before it comes after the pooling.

    Args:
        names: after `known_name`.
        ranks: {name: number of axes}.
    """
    layers = collections.defaultdict(dict)  # {the Sequential's name: {its layer's number: axes of the weight}}
    for name in names:
        match = re.fullmatch(r"(.+)\.(\d+)\.weight", name)
        if match and not _VOCABULARY.fullmatch(name):
            layers[match[1]][int(match[2])] = ranks[name]
    found = {}
    for parent, weights in layers.items():
        block = re.match(r"blocks\.\d+\.", parent)
        if not block and not _HEAD.fullmatch(parent):
            continue
        dense = sorted(number for number, rank in weights.items() if rank == 2)
        norms = [number for number, rank in weights.items() if rank == 1]
        targets = [f"{block[0]}mlp.fc1", f"{block[0]}mlp.fc2"] if block else ["head"]
        if len(dense) != len(targets) or len(norms) > 1 or any(number > dense[0] for number in norms):
            continue
        targets = {**dict(zip(dense, targets)), **dict.fromkeys(norms, f"{block[0]}norm2" if block else "head_norm")}
        found.update(
            {f"{parent}.{i}.{kind}": f"{new}.{kind}" for i, new in targets.items() for kind in ("weight", "bias")}
        )
    return {name: found[name] for name in names if name in found}


def _patch_names(names, ranks):
    """{name: timm's name} of the patch embedding: the only array with four axes, and its bias."""
    kernels = [name for name in names if ranks[name] == 4]
    if len(kernels) != 1 or not kernels[0].endswith(".weight"):
        return {}
    kernel = kernels[0].removesuffix("weight")
    return {f"{kernel}{kind}": f"patch_embed.proj.{kind}" for kind in ("weight", "bias")}


def _translated(arrays, rules):
    """({timm's name: (name in the file, array)}, names left out by the rules); ValueError for colliding names."""
    new = {name: now for name, now in rewritten(rules, arrays).items() if now is not None}
    ranks = {now: arrays[name].ndim for name, now in new.items()}
    patch = _patch_names(ranks, ranks)
    new = {name: patch.get(now) or known_name(now, ranks[now]) for name, now in new.items()}
    ranks = {now: arrays[name].ndim for name, now in new.items()}
    numbered = _sequential(ranks, ranks)
    new = {name: numbered.get(now, now) for name, now in new.items()}
    result = {}
    for name, now in new.items():
        if now in result:
            raise ValueError(
                f'"{result[now][0]}" and "{name}" would both be read as "{now}". Add a rule to names= that tells them'
                " apart."
            )
        result[now] = name, arrays[name]
    return result, [name for name in arrays if name not in new]


def _place_norm(arrays, options):
    """Names a head's normalisation as timm does: "norm" for a class token, else "fc_norm"; ValueError for two."""
    inside = {name for name in arrays if name.startswith("head_norm.")}
    if not inside:
        return arrays
    if "norm.weight" in arrays:
        raise ValueError(
            f'The file has two normalisations before the head, "{arrays["norm.weight"][0]}" and'
            f' "{arrays["head_norm.weight"][0]}". A ViT of this package has one.'
        )
    pooled = "token" if "cls_token" in arrays else "gap"
    new = "norm" if options.get("pool", pooled) == "token" else "fc_norm"
    return {name.replace("head_norm", new) if name in inside else name: value for name, value in arrays.items()}


def _check_names(arrays, files):
    """Compares the names with those that a ViT must and may have.

    Args:
        arrays: {name: array}.
        files: {name: name in the file}.

    Raises:
        ValueError: with the missing and unexpected names, as in the file.
    """
    numbers = [int(match[1]) for match in (re.match(r"blocks\.(\d+)\.", name) for name in arrays) if match]
    expected = {"patch_embed.proj.weight", "pos_embed"}
    for i in range(min(max(numbers, default=0) + 1, len(arrays))):
        layers = ("norm1", "attn.qkv", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2")
        expected |= {f"blocks.{i}.{layer}.weight" for layer in layers}
    missing = expected - arrays.keys()
    over = {name: files[name] for name in arrays if not _VOCABULARY.fullmatch(name)}
    if not {"norm.weight", "fc_norm.weight"} & arrays.keys():
        missing.add("norm.weight")
    if not missing and not over:
        return
    shown = [file if name == file else f"{file} (read as {name})" for name, file in over.items()]
    parts = [f"Missing: {summary(missing)}."] * bool(missing) + [f"Left over: {summary(shown)}."] * bool(over)
    if missing == {"norm.weight"} and not over:
        parts.append(
            "A model without a normalisation after its blocks, such as nn.TransformerEncoderLayer with"
            " norm_first=False, is none that this package has."
        )
    if any(ending in name for name in over for ending in ("head", "classifier")):
        parts.append(
            "Of a head with two dense layers and a tanh between them the first is pre_logits; others are none that this"
            " package has."
        )
    raise ValueError(
        f"The names do not make a ViT. {' '.join(parts)} names=[(pattern, replacement), ...] rewrites them to {_WORDS};"
        " (pattern, None) leaves arrays out. See docs/checkpoints.md."
    )


_WORDS = (
    "cls_token, pos_embed, patch_embed.proj, blocks.0.norm1, blocks.0.attn.qkv, blocks.0.attn.proj, blocks.0.norm2,"
    " blocks.0.mlp.fc1, blocks.0.mlp.fc2, norm, head"
)


def _query_key_value(parts, name, k):
    """The rows of timm's attn.qkv, all queries, then keys, then values: (3d, d), or (3d,) for biases.

    Args:
        parts: [(letters such as "qkv" or "q", whether rows are grouped by head, array)] of one block.
        name: "blocks.0.attn", for messages.
        k: heads.

    Raises:
        ValueError: unless they are one query, key and value with divisible rows.
    """
    letters = "".join(part for part, _, _ in parts)
    if sorted(letters) != ["k", "q", "v"]:
        raise ValueError(f'"{name}" should have one each of q, k and v, got {", ".join(part for part, _, _ in parts)}.')
    rows = {}
    for part, per_head, array in parts:
        groups = k if per_head else 1
        if not array.ndim or array.shape[0] % (groups * len(part)):
            raise ValueError(
                f'"{name}.{part}" has shape {array.shape}, which does not divide into {len(part)} parts of {groups}'
                " heads."
            )
        split = array.reshape(groups, len(part), -1, *array.shape[1:])  # (k or 1, parts, c, d)
        for i, letter in enumerate(part):
            rows[letter] = split[:, i].reshape(-1, *array.shape[1:])
    return np.concatenate([rows[letter] for letter in "qkv"])


def _attention(arrays, k):
    """The arrays with timm's attn.qkv instead of separate or differently ordered queries, keys and values."""
    result, parts = {}, collections.defaultdict(list)
    for name, array in arrays.items():
        match = _FUSED.fullmatch(name)
        if match:
            parts[match[1], match[4]].append((match[2], bool(match[3]), array))
        else:
            result[name] = array
    for (name, kind), found in parts.items():
        result[f"{name}.qkv.{kind}"] = _query_key_value(found, name, k)
    return result


def _patches(arrays, channels):
    """The arrays with timm's convolution instead of a dense layer on flattened patches.

    Raises:
        ValueError: if the order of its inputs is not given, or they are not a square of `channels`.
    """
    if "patch_embed.proj.weight" in arrays and arrays["patch_embed.proj.weight"].ndim == 2:
        raise ValueError(
            'The patch embedding "patch_embed.proj.weight" is a dense layer on flattened patches: rewrite its name to'
            " patch_embed.proj_hwc if the values of a patch are row, column, channel (einops' (p1 p2 c)), or to"
            " patch_embed.proj_chw if they are channel, row, column (nn.Unfold, flatten of channels first)."
        )
    order = next((order for order in ("hwc", "chw") if f"patch_embed.proj_{order}.weight" in arrays), None)
    if order is None:
        return arrays
    weight = arrays[f"patch_embed.proj_{order}.weight"]
    inputs = weight.shape[-1] if weight.ndim == 2 else 0
    side = math.isqrt(inputs // channels)
    if not inputs or side * side * channels != inputs:
        raise ValueError(
            f'"patch_embed.proj_{order}.weight" has shape {weight.shape}; expected (width, {channels} * side * side):'
            " pass channels=... if there are more or fewer."
        )
    shape = (-1, side, side, channels) if order == "hwc" else (-1, channels, side, side)
    kernel = weight.reshape(shape)
    kernel = kernel.transpose(0, 3, 1, 2) if order == "hwc" else kernel  # (d, c, h, w)
    renamed = {name.replace(f"proj_{order}", "proj"): array for name, array in arrays.items()}
    return {**renamed, "patch_embed.proj.weight": kernel}


def _complete(arrays, assumptions):
    """The arrays with timm's axes, and zeros for biases that the model lacks."""
    for name, rank in (("cls_token", 3), ("dist_token", 3), ("reg_token", 3), ("pos_embed", 3)):
        if name in arrays and 0 < arrays[name].ndim < rank:
            arrays[name] = arrays[name].reshape((1,) * (rank - arrays[name].ndim) + arrays[name].shape)
    kernel = arrays["patch_embed.proj.weight"]
    zeros = {"patch_embed.proj.bias": len(kernel)}
    blocks = {re.match(r"blocks\.\d+\.", name)[0] for name in arrays if name.startswith("blocks.")}
    if not any(f"{block}attn.{part}.bias" in arrays for block in blocks for part in ("qkv", "proj")):
        zeros |= {f"{block}attn.proj.bias": len(kernel) for block in blocks}
    zeros = {name: np.zeros(size, "float32") for name, size in zeros.items() if name not in arrays}
    if zeros:
        assumptions.append(f"The model has no {summary(zeros, 3)}: they are zeros here, which is the same.")
    return {**arrays, **zeros}


def _heads(options, config):
    """The number of heads, from the user or timm's config.json; None if neither states it."""
    arguments = config.get("model_args")
    return options.get("heads") or (arguments.get("num_heads") if isinstance(arguments, dict) else None)


def _check_told(options, config):
    """Refuses post-norm models, and missing or invalid heads, mean and std: ValueError with the arguments to pass."""
    if options.get("norm_first") is False:
        raise ValueError(
            "norm_first=False: this model normalises after attention and MLP (post-norm), as the Transformer of 2017. A"
            " ViT normalises before them, and the same weights compute something else: it cannot be loaded."
        )
    pretrained = config.get("pretrained_cfg")
    pretrained = pretrained if isinstance(pretrained, dict) else {}
    stated = {
        "heads": _heads(options, config),
        **{name: options.get(name, pretrained.get(name)) for name in ("mean", "std")},
    }
    untold = [name for name, value in stated.items() if value is None]
    if untold:
        raise ValueError(
            f"A state dict with names of its own does not say {', '.join(untold)}: pass"
            f" {', '.join(f'{name}=...' for name in untold)}. mean and std are on the 0..255 scale: mean=0, std=255 for"
            " images that were only divided by 255, mean=127.5, std=127.5 for [-1, 1], mean=(123.675, 116.28, 103.53),"
            " std=(58.395, 57.12, 57.375) for ImageNet's."
        )
    if type(stated["heads"]) is not int or stated["heads"] < 1:
        raise ValueError(f"heads must be a positive integer, got {stated['heads']!r}.")


def _assumed(options, files):
    """A sentence on torch's defaults that are assumed, or []; `files` is {name: name in the file}."""
    parts = {
        "norm_first": (
            "normalisation before attention and MLP (norm_first=True; False is nn.TransformerEncoderLayer's default,"
            " and refused)"
        ),
        "mlp_activation": (
            'GELU in its exact form (mlp_activation="gelu"; nn.TransformerEncoderLayer computes ReLU unless it is given'
            ' activation="gelu")'
        ),
        "epsilon": f"epsilon={_EPSILON} (nn.LayerNorm's default)",
    }
    assumed = [text for name, text in parts.items() if options.get(name) is None]
    if not files.get("blocks.0.attn.qkv.weight", "in_proj_weight").endswith("in_proj_weight"):
        assumed.append(
            'all queries, then keys, then values (if they are head by head, rewrite "qkv" to "qkv_per_head")'
        )
    pool = options.get("pool", "token" if "cls_token" in files else "gap")
    if pool == "gap" and "cls_token" in files:
        assumed.append("a mean of the patches alone, without the class token")
    if pool == "gap" and "norm.weight" in files:
        assumed.append(
            'the last normalisation before the mean of the tokens (if it comes after, rewrite its name to "fc_norm")'
        )
    return [f"The file does not say, and is assumed to have: {'; '.join(assumed)}."] if assumed else []


def parse(contents, options: Mapping[str, Any]) -> ParsedCheckpoint:
    """Parses a state dict by rules and by common names.

    Args:
        contents: from files.read.
        options: arguments of `load`: the rules under "names"; heads, mean and std, which are required; epsilon,
            mlp_activation, pool, norm_first, channels of a dense patch embedding, image_size of a rectangular
            checkpoint.

    Raises:
        ValueError: if a rule matches nothing, names collide, are missing or unexpected, or an argument is missing.
    """
    longest = max(contents.arrays, key=len)
    if len(longest) > LONGEST_NAME:
        raise ValueError(f'The name "{longest[:50]}..." has {len(longest):,} characters, more than {LONGEST_NAME}.')
    _check_told(options, contents.config)
    translated, dropped = _translated(contents.arrays, options.get("names") or ())
    translated = _place_norm(translated, options)
    arrays = _attention({name: array for name, (_, array) in translated.items()}, _heads(options, contents.config))
    arrays = _patches(arrays, options.get("channels") or 3)
    files = {name: file for name, (file, _) in translated.items()}
    _check_names(arrays, files)
    assumptions = _assumed(options, files)
    arrays = _complete(arrays, assumptions)
    # Other channels than the file's belong to the adapted model; mean and std describe the file.
    known = {name: value for name, value in options.items() if name != "channels"}
    parsed = timm.parse(dataclasses.replace(contents, arrays=arrays), known)
    told = {name: options[name] for name in ("epsilon", "mlp_activation", "pool") if options.get(name) is not None}
    return dataclasses.replace(
        parsed,
        fields={**parsed.fields, "epsilon": _EPSILON, "mlp_activation": _ACTIVATION, **told},
        dropped=dropped,
        assumptions=[*assumptions, *parsed.assumptions],
        preprocessing=parsed.preprocessing if "pretrained_cfg" in contents.config else None,
    )
