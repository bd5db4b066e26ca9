"""State dicts of lucidrains' vit-pytorch (`vit_pytorch.ViT`, `SimpleViT`): no q, k, v biases, heads of any width.

Read only.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_vit.checkpoints.formats.name_map import Entry, NameMap, Names, positions, same
from keras_vit.checkpoints.formats.parsed import HALF, ParsedCheckpoint, grid, heads, hint_grid, normalisation, pixels
from keras_vit.checkpoints.formats.shown import depth, need, renamed, rewriter

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


def _pixels(fields, ours):
    """(d, p*p*c) where ours is (p, q, c, d): the same order of pixels."""
    return Entry((ours,), lambda a: a.reshape(-1, a.shape[-1]).T, lambda a, shapes: [a.T.reshape(shapes[0])])


# {index} is that of the patch embedding in its Sequential; token and table may lack a batch axis.
_NAMES = Names(
    """
    to_patch_embedding.{index}.weight    patch_encoder/kernel          pixels
    to_patch_embedding.{index}.bias      patch_encoder/bias            same
    to_patch_embedding.1                 patch_encoder/pixel_norm      norm    if patch_norm
    to_patch_embedding.3                 patch_encoder/embedding_norm  norm    if patch_norm
    cls_token                            class_token/tokens            token   if class_token
    pos_embedding                        position_embedding/embedding  table   if positions=learned
    transformer.layers.{i}.0.norm        block_{i:02d}/attention_norm  norm
    transformer.layers.{i}.0.to_qkv      block_{i:02d}/attention/<query,key,value>  matrix
    transformer.layers.{i}.0.to_out.0    block_{i:02d}/attention/out   dense
    transformer.layers.{i}.1.net.0       block_{i:02d}/mlp_norm        norm
    transformer.layers.{i}.1.net.1       block_{i:02d}/mlp/hidden      dense
    transformer.layers.{i}.1.net.4       block_{i:02d}/mlp/out         dense
    transformer.norm                     fc_norm                       norm    if fc_norm
    transformer.norm                     encoder_norm                  norm    if not fc_norm
    mlp_head                             head                          dense   if classes
    """,
    {
        "pixels": _pixels,
        "token": lambda fields, ours: same(ours, fields["token_shape"]),
        "table": lambda fields, ours: positions(ours, 0, fields["table_shape"]),
    },
)


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


def _grid(arrays, options, side, width, tokens, is_simple):
    """The patch grid (h, w): SimpleViT's by image_size, others' by the position table after `tokens`."""
    hint, table = hint_grid(options, (side, side)), arrays.get("pos_embedding")
    if is_simple and hint is None:  # positions are computed
        options.value("image_size", None)
        return 1, 1
    if is_simple:
        return hint.h, hint.w
    if table is None or table.ndim not in (2, 3) or table.shape[:-2] not in ((), (1,)) or table.shape[-1] != width:
        raise ValueError(
            f'The array "pos_embedding" of shape (1, tokens, {width}), or without the first axis, is missing.'
        )
    return grid(table.shape[-2] - tokens, hint, options)


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


def parse(contents: Any, options: Any) -> ParsedCheckpoint:
    """Parses a state dict with these names; arguments and errors as in timm.parse."""
    norm_first = _norm_first(contents.arrays, options)
    arrays = renamed(contents.arrays, rewriter(_ALIASES))
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
        **normalisation(None, HALF, channels, options),
    }
    classes = need(arrays, "mlp_head.weight", 2).shape[0] if "mlp_head.weight" in arrays else None
    dropped = [name for name in arrays if name == "cls_token" and not token]
    arrays = {name: a for name, a in arrays.items() if name not in dropped}
    entries = _name_map(fields, classes, index, arrays)
    size = pixels(shape, (side, side))
    return ParsedCheckpoint(
        "ViT", fields, size, entries, arrays, classes, channels, dropped=dropped, resample="bicubic"
    )


def _name_map(fields: Mapping[str, Any], classes: int | None, index: int, arrays: Mapping[str, np.ndarray]) -> NameMap:
    """{name: Entry} of a model, its token and table shaped as in the file."""
    shapes = {name: arrays[name].shape if name in arrays else None for name in ("cls_token", "pos_embedding")}
    token = fields["class_token"] and (1,) * (len(shapes["cls_token"]) - 1) + (fields["width"],)
    names = _NAMES.spelled(index=index)
    return names.map(fields, classes=classes, token_shape=token, table_shape=shapes["pos_embedding"])
