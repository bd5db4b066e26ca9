"""Google's .npz files: the original ViT and AugReg ("classic"), big_vision, and the hybrids.

`parse` brings all of them to one naming, big_vision's with the siblings of each class numbered from 0, and to the
classic position table, (1, 1 + n, d), which has a row for the class token.
"""

import collections
import re
from collections.abc import Iterable, Mapping

import numpy as np

from keras_vit.checkpoints.formats.capabilities import ANY, Capabilities
from keras_vit.checkpoints.formats.name_map import NameMap, positions, same
from keras_vit.checkpoints.formats.parsed import (
    ParsedCheckpoint,
    depth,
    grid,
    hint_grid,
    is_grid,
    need,
    pixels,
    renamed,
)
from keras_vit.models.spec import token_stride

_PREFIXES = ("opt/target/", "params/img/", "params/", "")
_TABLES = ("Transformer/posembed_input/pos_embedding", "Transformer/pos_embedding")
_MOST_SCANNED_BLOCKS = 1000
_NUMBERED = re.compile(r"(LayerNorm|MultiHeadDotProductAttention|MlpBlock|Dense)_(\d+)$")
_CLASSIC = {
    "MultiHeadDotProductAttention_0": "MultiHeadDotProductAttention_1",
    "LayerNorm_1": "LayerNorm_2",
    "MlpBlock_0": "MlpBlock_3",
}
# Fixed in the code that reads these files.
CONVENTIONS = {"mlp_activation": "gelu_tanh", "epsilon": 1e-6, "mean": 127.5, "std": 127.5}


def _no_class_token_beside_gap(model):
    if model.spec.pool == "gap" and model.spec.class_token:
        return "class_token=True with pool='gap' (the files pool the class token wherever there is one)"
    return None


CAPABILITIES = Capabilities(
    "google",
    {
        "patch_size": ANY,
        "depth": ANY,
        "width": ANY,
        "mlp_dim": ANY,
        "heads": ANY,
        "head_dim": ANY,
        "class_token": (True, False),
        "positions": ("learned", "sincos2d"),
        "pool": ("token", "gap", "map"),
        "pre_logits": ANY,
        "stem": ANY,
        "stem_width": ANY,
        # Conventions, not in the files; this package's metadata override them.
        "mlp_activation": ("gelu", "gelu_tanh"),
        "epsilon": ANY,
        "mean": ANY,
        "std": ANY,
    },
    rules=(_no_class_token_beside_gap,),
    conventions=CONVENTIONS,
)


def _strip(arrays):
    """(the image model's arrays without their prefix, the names left out, such as optimizer state or a text tower)."""
    prefix = next((p for p in _PREFIXES if f"{p}embedding/kernel" in arrays), None)
    if prefix is None:
        raise ValueError(
            f'The array "embedding/kernel" is missing. Known prefixes of its name: {", ".join(map(repr, _PREFIXES))}.'
        )
    kept = {name[len(prefix) :]: a for name, a in arrays.items() if name.startswith(prefix)}
    return kept, [name for name in arrays if not name.startswith(prefix)]


def renumber(names: Iterable[str]) -> dict[str, str]:
    """{name: name} with the siblings of each class numbered from 0, in order; idempotent.

    LayerNorm_0, MultiHeadDotProductAttention_1, LayerNorm_2, MlpBlock_3 become LayerNorm_0,
    MultiHeadDotProductAttention_0, LayerNorm_1, MlpBlock_0.
    """
    siblings = collections.defaultdict(set)
    for name in names:
        parts = name.split("/")
        for i, part in enumerate(parts):
            match = _NUMBERED.match(part)
            if match:
                siblings["/".join(parts[:i]), match.group(1)].add(int(match.group(2)))
    numbers = {key: {old: new for new, old in enumerate(sorted(old_numbers))} for key, old_numbers in siblings.items()}

    def new_name(name):
        parts = name.split("/")
        matched = [_NUMBERED.match(part) for part in parts]
        return "/".join(
            f"{m.group(1)}_{numbers['/'.join(parts[:i]), m.group(1)][int(m.group(2))]}" if m else part
            for i, (part, m) in enumerate(zip(parts, matched))
        )

    return {name: new_name(name) for name in names}


def _unroll(arrays):
    """Splits blocks stacked along a leading axis (scan)."""
    scanned = {name: a for name, a in arrays.items() if name.startswith("Transformer/encoderblock/")}
    depths = {a.shape[0] if a.ndim else 0 for a in scanned.values()}
    if len(depths) > 1:
        raise ValueError(f"The scanned blocks have different depths: {sorted(depths)}.")
    if depths and not 0 < max(depths) <= _MOST_SCANNED_BLOCKS:
        raise ValueError(f"The scanned blocks have a depth of {max(depths)}, expected 1 to {_MOST_SCANNED_BLOCKS}.")
    unrolled = [
        (name.replace("encoderblock/", f"encoderblock_{i}/"), array)
        for name, a in scanned.items()
        for i, array in enumerate(a)
    ]
    duplicates = sorted(name for name, _ in unrolled if name in arrays)
    if duplicates:
        raise ValueError(f'The array "{duplicates[0]}" occurs twice: scanned, and as a separate array.')
    return {**{name: a for name, a in arrays.items() if name not in scanned}, **dict(unrolled)}


def one_naming(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays of an encoder "Transformer", its blocks apart and the siblings of each class numbered from 0."""
    unrolled = _unroll(arrays)
    return renamed(unrolled, renumber(unrolled).get)


def _normalise(arrays):
    """(the arrays under one naming, the names left out)."""
    arrays, dropped = _strip(arrays)
    inlined = "probe MlpBlock_0 MultiHeadDotProductAttention_0 LayerNorm_0".split()
    if "probe" in arrays:
        arrays = renamed(arrays, lambda name: f"MAPHead_0/{name}" if name.split("/")[0] in inlined else name)
    arrays = one_naming(arrays)
    arrays = renamed(arrays, lambda name: "pos_embedding" if name in _TABLES else name)
    norm = re.compile(r"(^|/)gn(_root|_proj|\d)/(scale|bias)$")
    arrays = {name: a.reshape(-1) if norm.search(name) else a for name, a in arrays.items()}
    return arrays, dropped


def _stem(arrays):
    """The spec's fields for a hybrid's stem; {} without one."""
    if "conv_root/kernel" not in arrays:
        return {}
    units = collections.defaultdict(set)
    for name in arrays:
        match = re.match(r"block(\d+)/unit(\d+)/", name)
        if match:
            units[int(match.group(1))].add(int(match.group(2)))
    stages = tuple(len(units[b]) for b in sorted(units))
    return {"stem": stages, "stem_width": need(arrays, "conv_root/kernel", 4).shape[-1]}


def _grid(arrays, fields, stride, options):
    """(patch grid, number of rows missing in the file's position table)."""
    token = int(fields["class_token"])
    hint = hint_grid(options, stride)
    if "pos_embedding" not in arrays:
        fields["positions"] = "sincos2d"  # big_vision's only table that is not in the file
        if hint is None:
            side = options.value("image_size", 224)
            return (side // stride[0], side // stride[1]), 0
        return (hint.h, hint.w), 0
    rows = need(arrays, "pos_embedding", 3).shape[1]
    if token and is_grid(rows - 1, hint):
        return grid(rows - 1, hint), 0
    return grid(rows, hint, options), token


def parse(contents, options: dict) -> ParsedCheckpoint:
    """Parses an .npz with names that `matches` accepts.

    Args:
        contents: from files.read.
        options: arguments of `load` for values that the file does not state: image_size of a rectangular checkpoint.

    Raises:
        ValueError: if the file is in none of these formats after all.
    """
    arrays, dropped = _normalise(dict(contents.arrays))
    kernel = need(arrays, "embedding/kernel", 4)
    query = need(arrays, "Transformer/encoderblock_0/MultiHeadDotProductAttention_0/query/kernel", 3)
    width, k, c = query.shape
    fields = {
        "patch_size": kernel.shape[:2],
        "depth": depth(arrays, r"Transformer/encoderblock_(\d+)/"),
        "width": width,
        "heads": k,
        "head_dim": None if k * c == width else c,
        "mlp_dim": need(arrays, "Transformer/encoderblock_0/MlpBlock_0/Dense_0/kernel", 2).shape[1],
        "class_token": "cls" in arrays,
        "pool": "map" if "MAPHead_0/probe" in arrays else "token" if "cls" in arrays else "gap",
        **_stem(arrays),
        **CONVENTIONS,
    }
    if "pre_logits/kernel" in arrays:
        fields["pre_logits"] = need(arrays, "pre_logits/kernel", 2).shape[1]
    stride = token_stride(fields["patch_size"], fields.get("stem"))
    shape, missing_rows = _grid(arrays, fields, stride, options)
    channels = need(arrays, "conv_root/kernel", 4).shape[2] if "stem" in fields else kernel.shape[2]
    classes = need(arrays, "head/kernel", 2).shape[1] if "head/kernel" in arrays else None
    return ParsedCheckpoint(
        "ViT",
        fields,
        pixels(shape, stride),
        name_map({"positions": "learned", "pre_logits": None, "stem": None, **fields}, classes, missing_rows),
        arrays,
        classes,
        channels,
        dropped=dropped,
    )


def _attention(theirs, ours, heads, size):
    """Flax's attention: kernels (d, k, c) and (k, c, d) where ours are matrices."""
    entries = {}
    for name in ("query", "key", "value"):
        entries[f"{theirs}/{name}/kernel"] = same(f"{ours}{name}/kernel", (-1, heads, size))
        entries[f"{theirs}/{name}/bias"] = same(f"{ours}{name}/bias", (heads, size))
    entries[f"{theirs}/out/kernel"] = same(f"{ours}out/kernel", (heads, size, -1))
    return {**entries, f"{theirs}/out/bias": same(f"{ours}out/bias")}


def norm_map(theirs: str, ours: str) -> NameMap:
    """Scale and bias of a normalisation in Flax's names."""
    return {f"{theirs}/scale": same(f"{ours}/gamma"), f"{theirs}/bias": same(f"{ours}/beta")}


def dense_map(theirs: str, ours: str) -> NameMap:
    """Kernel and bias of a dense layer in Flax's names."""
    return {f"{theirs}/{name}": same(f"{ours}/{name}") for name in ("kernel", "bias")}


def _mlp(theirs, ours):
    return {**dense_map(f"{theirs}/Dense_0", f"{ours}mlp/hidden"), **dense_map(f"{theirs}/Dense_1", f"{ours}mlp/out")}


def _stem_names(stages):
    entries = {"conv_root/kernel": same("stem_conv/kernel"), **norm_map("gn_root", "stem_norm")}
    for b, units in enumerate(stages, 1):
        for u in range(1, units + 1):
            theirs, ours = f"block{b}/unit{u}", f"stem_block{b}_unit{u}"
            parts = [("conv1", "gn1", "norm1"), ("conv2", "gn2", "norm2"), ("conv3", "gn3", "norm3")]
            for conv, norm, our_norm in parts + ([("conv_proj", "gn_proj", "proj_norm")] if u == 1 else []):
                entries[f"{theirs}/{conv}/kernel"] = same(f"{ours}/{conv.removeprefix('conv_')}/kernel")
                entries.update(norm_map(f"{theirs}/{norm}", f"{ours}/{our_norm}"))
    return entries


def block_map(i: int, heads: int, size: int) -> NameMap:
    """{name: Entry} of block number i, with heads of width `size`."""
    theirs, ours = f"Transformer/encoderblock_{i}", f"block_{i:02d}/"
    return {
        **norm_map(f"{theirs}/LayerNorm_0", f"{ours}attention_norm"),
        **_attention(f"{theirs}/MultiHeadDotProductAttention_0", f"{ours}attention/", heads, size),
        **norm_map(f"{theirs}/LayerNorm_1", f"{ours}mlp_norm"),
        **_mlp(f"{theirs}/MlpBlock_0", ours),
    }


def name_map(spec: Mapping, classes: int | None, missing_rows: int = 0) -> NameMap:
    """{name: Entry} of a model.

    Args:
        spec: dict of ViTSpec's fields.
        classes: of the head; None without one.
        missing_rows: rows for tokens before the patches that the file's position table lacks.
    """
    size = spec.get("head_dim") or spec["width"] // spec["heads"]
    entries = dense_map("embedding", "patch_encoder")
    if spec.get("stem") is not None:
        entries.update(_stem_names(spec["stem"]))
    if spec["class_token"]:
        entries["cls"] = same("class_token/tokens")
    if spec["positions"] == "learned":
        entries["pos_embedding"] = positions("position_embedding/embedding", missing_rows)
    for i in range(spec["depth"]):
        entries.update(block_map(i, spec["heads"], size))
    entries.update(norm_map("Transformer/encoder_norm", "encoder_norm"))
    if spec["pool"] == "map":
        entries["MAPHead_0/probe"] = same("pool/probe")
        size = spec["width"] // spec["heads"]
        entries.update(_attention("MAPHead_0/MultiHeadDotProductAttention_0", "pool/", spec["heads"], size))
        entries.update(norm_map("MAPHead_0/LayerNorm_0", "pool/norm"))
        entries.update(_mlp("MAPHead_0/MlpBlock_0", "pool/"))
    if spec["pre_logits"]:
        entries.update(dense_map("pre_logits", "pre_logits"))
    if classes is not None:
        entries.update(dense_map("head", "head"))
    return entries


def published_names(arrays: Mapping[str, np.ndarray], spec: Mapping) -> dict[str, np.ndarray]:
    """The arrays under the names of published files: classic, or big_vision's for a MAP head."""
    if spec["pool"] == "map":
        return dict(arrays)

    def classic(name):
        if name == "pos_embedding":
            return "Transformer/posembed_input/pos_embedding"
        parts = name.split("/")
        return (
            "/".join(_CLASSIC.get(part, part) for part in parts)
            if name.startswith("Transformer/encoderblock_")
            else name
        )

    return {classic(name): np.asarray(a, "float32") for name, a in arrays.items()}
