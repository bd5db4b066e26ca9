"""State dicts of lucidrains' vit-pytorch (`vit_pytorch.ViT`, `SimpleViT`): no q, k, v biases, heads of any width.

Read only.
"""

import math
import re
from collections.abc import Mapping

import numpy as np

from keras_vit.checkpoints.formats.name_map import (
    Entry,
    NameMap,
    positions,
    same,
    stacked_linear,
    torch_dense,
    torch_norm,
)
from keras_vit.checkpoints.formats.parsed import (
    ParsedCheckpoint,
    depth,
    grid,
    heads,
    hint_grid,
    need,
    normalisation,
    pixels,
    renamed,
)

# Names of older releases (normalisations in wrappers, the head's in a Sequential), and present ones.
_ALIASES = [
    (r"(transformer\.layers\.\d+\.[01])\.fn\.(norm|fn)\.", r"\1.\2."),  # Residual(PreNorm(...)) of the first releases
    (r"(transformer\.layers\.\d+\.0)\.fn\.", r"\1."),
    (r"(transformer\.layers\.\d+\.1)\.norm\.", r"\1.net.0."),
    (r"(transformer\.layers\.\d+\.1)\.fn\.net\.0\.", r"\1.net.1."),
    (r"(transformer\.layers\.\d+\.1)\.fn\.net\.3\.", r"\1.net.4."),
    (r"^mlp_head\.0\.", "transformer.norm."),
    (r"^mlp_head\.1\.", "mlp_head."),
    # SimpleViT, without dropout.
    (r"(transformer\.layers\.\d+\.1)\.net\.3\.", r"\1.net.4."),
    (r"(transformer\.layers\.\d+\.0)\.to_out\.weight", r"\1.to_out.0.weight"),
    (r"^linear_head\.0\.", "transformer.norm."),
    (r"^linear_head\.(?:1\.)?", "mlp_head."),
]


def _normalise(arrays):
    """The arrays under the present names."""

    def new_name(name):
        for pattern, new in _ALIASES:
            name = re.sub(pattern, new, name)
        return name

    return renamed(arrays, new_name)


def _patch(arrays, options):
    """(index of the patch embedding in its Sequential, patch size, channels), from a weight (d, p*p*c)."""
    ranks = {
        i: arrays[f"to_patch_embedding.{i}.weight"].ndim for i in (2, 1) if f"to_patch_embedding.{i}.weight" in arrays
    }
    index = next((i for i, rank in ranks.items() if rank == 2), None)
    if index is None:
        raise ValueError('The array "to_patch_embedding.2.weight" (or .1.) of 2 axes is missing.')
    inputs = arrays[f"to_patch_embedding.{index}.weight"].shape[1]
    if math.isqrt(inputs // 3) ** 2 * 3 == inputs:
        return index, math.isqrt(inputs // 3), 3
    channels = options.value("channels", inputs)
    side = math.isqrt(inputs // channels)
    if side * side * channels != inputs:
        raise ValueError(
            f"{inputs} values per patch are not a square of {channels} channels: pass channels=... if there are more or"
            " fewer."
        )
    return index, side, channels


# PreNorm and PostNorm have the same arrays; in later releases the normalisation is the first layer of a branch.
_WRAPPED = re.compile(r"transformer\.layers\.\d+\.0\.fn\.")


def _norm_first(names, options):
    """Whether the blocks normalise first, by the names or, where these show nothing, as answered."""
    if any(map(_WRAPPED.search, names)):
        return options.value("norm_first", True)
    if options.get("norm_first") is False:
        raise ValueError(
            "norm_first=False was passed, but a normalisation is the first layer of each branch: leave it out."
        )
    return True


def _positions(arrays, width):
    """The number of tokens in the position table."""
    table = arrays.get("pos_embedding")
    if table is None or table.ndim not in (2, 3) or table.shape[:-2] not in ((), (1,)) or table.shape[-1] != width:
        raise ValueError(
            f'The array "pos_embedding" of shape (1, tokens, {width}), or without the first axis, is missing.'
        )
    return table.shape[-2]


def _grid(arrays, options, side, width, tokens, is_simple):
    """The patch grid (h, w): SimpleViT's by image_size, others' by the position table after `tokens`."""
    hint = hint_grid(options, (side, side))
    if not is_simple:
        return grid(_positions(arrays, width) - tokens, hint, options)
    if hint is None:  # positions are computed
        options.value("image_size", None)
        return 1, 1
    return hint.h, hint.w


def _pooling(arrays, names, options, token):
    """The fields of the pooling, by the arrays, the file's names and whether it has a class token."""
    # Since November 2025 only pool="cls" has a class token, soon afterwards without its first axis.
    certain = token and (arrays["cls_token"].ndim < 3 or options.get("head") == "reset")
    pool = options.value("pool", "token", certain=certain) if token else "gap"
    averages = token and pool in ("mean", "gap")
    return {
        "class_token": token,
        "pool": pool,
        "fc_norm": (averages and "mlp_head.0.weight" in names) or "linear_head.0.weight" in names,
    }


def parse(contents, options: dict) -> ParsedCheckpoint:
    """Parses a state dict with names that `matches` accepts.

    Args:
        contents: from files.read.
        options: an Options of arguments of `load`, for values that the file does not state.

    Raises:
        ValueError: if the file is not in this format after all.
    """
    norm_first = _norm_first(contents.arrays, options)
    arrays = _normalise(contents.arrays)
    index, side, channels = _patch(arrays, options)
    width = arrays[f"to_patch_embedding.{index}.weight"].shape[0]
    inner = need(arrays, "transformer.layers.0.0.to_qkv.weight", 2).shape[0] // 3
    k, head_dim = heads(width, options, inner=inner)
    token = arrays["cls_token"].size > 0 if "cls_token" in arrays else False
    is_simple = "pos_embedding" not in arrays and "transformer.layers.0.0.to_out.weight" in contents.arrays
    shape = _grid(arrays, options, side, width, int(token), is_simple)
    blocks = depth(arrays, r"transformer\.layers\.(\d+)\.")
    if is_simple:
        bias = np.zeros(width, "float32")
        arrays = {f"transformer.layers.{i}.0.to_out.0.bias": bias for i in range(blocks)} | arrays
    fields = {
        "patch_size": (side, side),
        "depth": blocks,
        "width": width,
        "heads": k,
        "head_dim": head_dim,
        "mlp_dim": need(arrays, "transformer.layers.0.1.net.1.weight", 2).shape[0],
        **_pooling(arrays, contents.arrays, options, token),
        "positions": "sincos2d" if is_simple else "learned",
        "qkv_bias": False,
        "patch_norm": index == 2,
        "epsilon": options.value("epsilon", 1e-5),
        "mlp_activation": options.value("mlp_activation", "gelu"),
        "norm_first": norm_first,
    }
    fields.update(normalisation(None, (127.5, 127.5), channels, options))
    classes = need(arrays, "mlp_head.weight", 2).shape[0] if "mlp_head.weight" in arrays else None
    dropped = [name for name in arrays if name == "cls_token" and not token]
    arrays = {name: a for name, a in arrays.items() if name not in dropped}
    return ParsedCheckpoint(
        "ViT",
        fields,
        pixels(shape, (side, side)),
        name_map(fields, classes, index, arrays),
        arrays,
        classes,
        channels,
        dropped=dropped,
        resample="bicubic",
    )


def name_map(spec: Mapping, classes: int | None, index: int, arrays: Mapping) -> NameMap:
    """{name: Entry} of a model.

    Args:
        spec: dict of ViTSpec's fields.
        classes: of the head; None without one.
        index: of the patch embedding in its Sequential.
        arrays: {name: array} of the file; class token and position table may lack a batch axis.
    """
    patch = f"to_patch_embedding.{index}"
    # (d, p*p*c) where ours is (p, q, c, d): the same order of pixels.
    kernel = Entry(
        ("patch_encoder/kernel",), lambda a: a.reshape(-1, a.shape[-1]).T, lambda a, shapes: [a.T.reshape(shapes[0])]
    )
    entries = {f"{patch}.weight": kernel, f"{patch}.bias": same("patch_encoder/bias")}
    if spec["patch_norm"]:
        entries.update(torch_norm("to_patch_embedding.1", "patch_encoder/pixel_norm"))
        entries.update(torch_norm("to_patch_embedding.3", "patch_encoder/embedding_norm"))
    if spec["class_token"]:
        entries["cls_token"] = same("class_token/tokens", (1,) * (arrays["cls_token"].ndim - 1) + (spec["width"],))
    if spec["positions"] == "learned":
        entries["pos_embedding"] = positions("position_embedding/embedding", 0, arrays["pos_embedding"].shape)
    for i in range(spec["depth"]):
        theirs, ours = f"transformer.layers.{i}", f"block_{i:02d}"
        entries.update(torch_norm(f"{theirs}.0.norm", f"{ours}/attention_norm"))
        qkv = (f"{ours}/attention/{name}/kernel" for name in ("query", "key", "value"))
        entries[f"{theirs}.0.to_qkv.weight"] = stacked_linear(*qkv)
        entries.update(torch_dense(f"{theirs}.0.to_out.0", f"{ours}/attention/out"))
        entries.update(torch_norm(f"{theirs}.1.net.0", f"{ours}/mlp_norm"))
        entries.update(torch_dense(f"{theirs}.1.net.1", f"{ours}/mlp/hidden"))
        entries.update(torch_dense(f"{theirs}.1.net.4", f"{ours}/mlp/out"))
    entries.update(torch_norm("transformer.norm", "fc_norm" if spec["fc_norm"] else "encoder_norm"))
    if classes is not None:
        entries.update(torch_dense("mlp_head", "head"))
    return entries
