"""State dicts of torch models with custom names, read by rules that rewrite these to timm's.

Common names need no rule, see common_names.py. docs/checkpoints.md lists the target names and has a worked example. A
state dict does not show what its model computes: one error asks for everything missing.
"""

import collections
import dataclasses
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from keras_vit.checkpoints.formats import asked, timm
from keras_vit.checkpoints.formats.common_names import timm_names
from keras_vit.checkpoints.formats.name_map import LONGEST_NAME, summary
from keras_vit.checkpoints.formats.parsed import ParsedCheckpoint
from keras_vit.checkpoints.formats.questions import Options


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


def _check_one_model(first, second, names):
    """Refuses names of two models that differ in one module around them: ValueError with the keys to choose from."""
    parts, others = first.split("."), second.split(".")
    i = next(i for i, (part, other) in enumerate(zip([*parts, ""], [*others, ""])) if part != other)
    keys = [".".join(p[: i + 1]) for p in (parts, others)]
    counts = [sum(name.startswith(f"{key}.") for name in names) for key in keys]
    if parts[i + 1 :] == others[i + 1 :] and counts[0] == counts[1] > 10 and not any(map(str.isdecimal, parts[:i])):
        listed = ", ".join(f'key="{key}"' for key in keys)
        raise ValueError(f"There are several models among the arrays. Pass one of these to load: {listed}.")


def _translated(arrays, rules):
    """({timm's name: (name in the file, array)}, {name in the file: name by the rules}, names left out).

    Raises:
        ValueError: if names collide.
    """
    new = {name: now for name, now in rewritten(rules, arrays).items() if now is not None}
    known = timm_names({now: arrays[name].ndim for name, now in new.items()})
    result = {}
    for name, now in new.items():
        now = known[now]
        if now in result:
            _check_one_model(result[now][0], name, arrays)
            raise ValueError(
                f'"{result[now][0]}" and "{name}" would both be read as "{now}". Add a rule to names= that'
                " distinguishes them."
            )
        result[now] = name, arrays[name]
    return result, new, [name for name in arrays if name not in new]


def _place_norm(arrays, options):
    """Names a head's normalisation as timm does: "norm" for a class token, else "fc_norm"; ValueError for two."""
    inside = {name for name in arrays if name.startswith("head_norm.")}
    if not inside:
        return arrays
    if "norm.weight" in arrays:
        raise ValueError(
            f'The file has two normalisations before the head, "{arrays["norm.weight"][0]}" and'
            f' "{arrays["head_norm.weight"][0]}". A ViT of this package has one: this model cannot be expressed.'
        )
    pooled = "token" if "cls_token" in arrays else "gap"
    new = "norm" if options.get("pool", pooled) == "token" else "fc_norm"
    return {name.replace("head_norm", new) if name in inside else name: value for name, value in arrays.items()}


def _heads(k, arrays):
    """The number of attention heads; ValueError unless it is a positive integer, or if the file shows another."""
    if type(k) is not int or k < 1:
        raise ValueError(f"heads must be a positive integer, got {k!r}.")
    if (shown := asked.shown_heads(arrays)) and shown != k:
        raise ValueError(f"heads={k} was passed, but the file's queries have {shown} heads.")
    return k


def _by_head(parts, name, width):
    """One array of all heads' rows from one array per head; [(number of the head, array)].

    A weight that takes only its head's share of a token becomes a block of a block-diagonal matrix.
    """
    numbers, arrays = zip(*sorted(parts, key=lambda part: part[0]))
    if numbers != tuple(range(len(numbers))) or len({array.shape for array in arrays}) != 1:
        raise ValueError(f'"{name}" should have one array of the same shape per head, numbered from 0, got {numbers}.')
    joined = np.concatenate(arrays)  # (d, d or c), or (d,) of biases
    if joined.ndim == 2 and joined.shape[1] * len(arrays) == width:
        result = np.zeros((len(joined), width), joined.dtype)
        for i, array in enumerate(arrays):
            c, m = array.shape
            result[i * c : (i + 1) * c, i * m : (i + 1) * m] = array
        return result
    return joined


def _query_key_value(parts, name, k):
    """The rows of timm's attn.qkv, all queries, then keys, then values: (3d, d), or (3d,) for biases.

    Args:
        parts: [(letters such as "qkv" or "q", None or by what rows are grouped: "head" or "channel", array)] of one
            block.
        name: "blocks.0.attn", for messages.
        k: heads.

    Raises:
        ValueError: unless they are one query, key and value with divisible rows.
    """
    letters = "".join(part for part, _, _ in parts)
    if sorted(letters) != ["k", "q", "v"]:
        raise ValueError(f'"{name}" should have one each of q, k and v, got {", ".join(part for part, _, _ in parts)}.')
    rows = {}
    for part, grouped, array in parts:
        count = array.shape[0] if array.ndim else 0
        groups = {None: 1, "head": k, "channel": max(count // len(part), 1)}[grouped]
        if not count or count % (groups * len(part)):
            raise ValueError(
                f'"{name}.{part}" has shape {array.shape}, which does not divide into {len(part)} parts of {groups}'
                " heads."
            )
        split = array.reshape(groups, len(part), -1, *array.shape[1:])  # (k or 1, parts, c, d)
        for i, letter in enumerate(part):
            rows[letter] = split[:, i].reshape(-1, *array.shape[1:])
    return np.concatenate([rows[letter] for letter in "qkv"])


def _without_head_axis(arrays):
    """The arrays with torch's axes of attention instead of (d, k, c), biases (k, c) and, for its output, (k, c, d)."""
    result = {}
    for name, array in arrays.items():
        match = re.fullmatch(r"blocks\.\d+\.attn\.([qkv]|proj)\.(weight|bias)", name)
        if match and array.ndim == 3:
            array = array.reshape((-1, array.shape[2]) if match[1] == "proj" else (len(array), -1)).T
        elif match and array.ndim == 2 and match[2] == "bias":
            array = array.reshape(-1)  # (k * c,)
        result[name] = array
    return result


def _attention(arrays, k):
    """The arrays with timm's attn.qkv instead of separate or differently ordered queries, keys and values."""
    result, parts, apart = {}, collections.defaultdict(list), collections.defaultdict(list)
    width = arrays["blocks.0.norm1.weight"].size
    for name, array in arrays.items():
        match = asked.FUSED.fullmatch(name)
        if not match:
            result[name] = array
        elif match[4]:
            apart[match[1], match[2], match[5]].append((int(match[4]), array))
        else:
            parts[match[1], match[5]].append((match[2], match[3], array))
    for (name, letter, kind), found in apart.items():
        parts[name, kind].append((letter, None, _by_head(found, f"{name}.{letter}", width)))
    for (name, kind), found in parts.items():
        result[f"{name}.qkv.{kind}"] = _query_key_value(found, name, k)
    return result


def _patches(arrays, channels):
    """The arrays with timm's convolution instead of a dense layer on flattened patches.

    Raises:
        ValueError: if the order of its inputs is not given, or they are not a square of `channels`.
    """
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
    if order == "chw":  # (c * h * w,) of the inputs' normalisation -> (h * w * c,)
        norm = {name: array for name, array in renamed.items() if name.startswith("patch_embed.pixel_norm.")}
        renamed |= {name: a.reshape(channels, side, side).transpose(1, 2, 0).reshape(-1) for name, a in norm.items()}
    return {**renamed, "patch_embed.proj.weight": kernel}


def _complete(arrays):
    """The arrays with timm's axes, zeros for biases that the model lacks, and the identity for attn.proj."""
    if arrays["pos_embed"].ndim == 3 and arrays["pos_embed"].shape[1] == 1:  # (n, 1, d), for tokens before batches
        arrays["pos_embed"] = arrays["pos_embed"].swapaxes(0, 1)
    for name, rank in (("cls_token", 3), ("dist_token", 3), ("reg_token", 3), ("pos_embed", 3)):
        if name in arrays and 0 < arrays[name].ndim < rank:
            arrays[name] = arrays[name].reshape((1,) * (rank - arrays[name].ndim) + arrays[name].shape)
    kernel = arrays["patch_embed.proj.weight"]
    zeros = {"patch_embed.proj.bias": len(kernel)}
    blocks = {re.match(r"blocks\.\d+\.", name)[0] for name in arrays if name.startswith("blocks.")}
    projected = any(f"{block}attn.proj.weight" in arrays for block in blocks)
    if not projected:
        arrays |= {f"{block}attn.proj.weight": np.eye(len(kernel), dtype="float32") for block in blocks}
    if not projected or not any(f"{block}attn.{part}.bias" in arrays for block in blocks for part in ("qkv", "proj")):
        zeros |= {f"{block}attn.proj.bias": len(kernel) for block in blocks}
    for fc in ("mlp.fc1", "mlp.fc2"):
        if not any(name.endswith(f"{fc}.bias") for name in arrays):
            zeros |= {f"{block}{fc}.bias": len(arrays[f"{block}{fc}.weight"]) for block in blocks}
    zeros |= {
        f"{name}.bias": len(arrays[f"{name}.weight"]) for name in ("pre_logits", "head") if f"{name}.weight" in arrays
    }
    zeros = {name: np.zeros(size, "float32") for name, size in zeros.items() if name not in arrays}
    return {**arrays, **zeros}


def parse(contents, options: Mapping[str, Any]) -> ParsedCheckpoint:
    """Parses a state dict by rules and by common names.

    Args:
        contents: from files.read.
        options: an Options of arguments of `load`, with the rules under "names".

    Raises:
        ValueError: if a rule matches nothing, names collide, are missing or unexpected, or an argument is missing.
    """
    longest = max(contents.arrays, key=len)
    if len(longest) > LONGEST_NAME:
        raise ValueError(f'The name "{longest[:50]}..." has {len(longest):,} characters, more than {LONGEST_NAME}.')
    translated, new, dropped = _translated(contents.arrays, options.get("names") or ())
    translated = _place_norm(translated, options)
    arrays = {name: array for name, (_, array) in translated.items()}
    files = {name: file for name, (file, _) in translated.items()}
    shown = asked.shown(arrays, files, contents.config)
    after = {name: new[file] for name, file in files.items()}
    answers = asked.check(contents.path, arrays, files, after, shown, options)
    heads = _heads(answers["heads"], arrays)
    arrays = _patches(_attention(_without_head_axis(arrays), heads), options.get("channels") or 3)
    arrays = _complete(arrays)
    # Other channels than the file's belong to the adapted model; mean and std describe the file.
    known = {name: value for name, value in options.items() if name != "channels"}
    constants = {name: answers.pop(name) for name in ("mean", "std")}
    if "pretrained_cfg" not in contents.config:
        known |= constants
    parsed = timm.parse(dataclasses.replace(contents, arrays=arrays), Options({**known, **answers}, asks=False))
    return dataclasses.replace(
        parsed,
        fields={**parsed.fields, **answers},
        dropped=dropped,
        assumptions=[*asked.assumed(answers, files), *parsed.assumptions],
        preprocessing=parsed.preprocessing if "pretrained_cfg" in contents.config else None,
    )
