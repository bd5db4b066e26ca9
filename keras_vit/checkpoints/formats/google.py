"""Google's .npz files: the original ViT and AugReg ("classic"), big_vision, and the hybrids.

`parse` brings all of them to one naming, big_vision's with the siblings of each class numbered from 0, and to the
classic position table, (1, 1 + n, d), which has a row for the class token.
"""

import collections
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from keras_vit.checkpoints.formats.capabilities import Capabilities, any_of
from keras_vit.checkpoints.formats.name_map import NameMap, Names, pack, same
from keras_vit.checkpoints.formats.parsed import ParsedCheckpoint, grid, hint_grid, is_grid, pixels
from keras_vit.checkpoints.formats.shown import Shown, need, renamed
from keras_vit.models.spec import token_stride


def _of_heads(fields, ours):
    """Flax's attention: kernels (d, k, c) and (k, c, d), biases (k, c), where ours are matrices and vectors."""
    own = ours.startswith("block_") and fields.get("head_dim")
    heads = (fields["heads"], own or fields["width"] // fields["heads"])
    if ours.endswith("bias"):
        return same(ours, heads)
    return same(ours, (*heads, -1) if ours.endswith("out/kernel") else (-1, *heads))


_ATTENTION = "MultiHeadDotProductAttention_0"
BLOCK = Names(
    """
    {theirs}/LayerNorm_0                    {ours}/attention_norm               flax_norm
    {theirs}/{attention}/<query,key,value>  {ours}/attention/<query,key,value>  flax_heads
    {theirs}/{attention}/out/kernel         {ours}/attention/out/kernel         of_heads
    {theirs}/{attention}/out/bias           {ours}/attention/out/bias           same
    {theirs}/LayerNorm_1                    {ours}/mlp_norm                     flax_norm
    {theirs}/MlpBlock_0/Dense_<0,1>         {ours}/mlp/<hidden,out>             flax_dense
    """,
    {"of_heads": _of_heads},
).spelled(theirs="Transformer/encoderblock_{i}", ours="block_{i:02d}", attention=_ATTENTION)
_EMBEDDING = Names("embedding patch_encoder flax_dense")
_ROOT = Names(
    """
    conv_root/kernel  stem_conv/kernel  same
    gn_root           stem_norm         flax_norm
    """
)
_UNIT = Names(
    """
    {theirs}/conv1/kernel      {ours}/conv1/kernel  same
    {theirs}/gn1               {ours}/norm1         flax_norm
    {theirs}/conv2/kernel      {ours}/conv2/kernel  same
    {theirs}/gn2               {ours}/norm2         flax_norm
    {theirs}/conv3/kernel      {ours}/conv3/kernel  same
    {theirs}/gn3               {ours}/norm3         flax_norm
    {theirs}/conv_proj/kernel  {ours}/proj/kernel   same       if first
    {theirs}/gn_proj           {ours}/proj_norm     flax_norm  if first
    """
)
_TOKENS = Names(
    """
    cls            class_token/tokens            same       if class_token
    pos_embedding  position_embedding/embedding  positions  if positions=learned
    """
)
_HEAD = Names(
    """
    Transformer/encoder_norm             encoder_norm           flax_norm
    MAPHead_0/probe                      pool/probe             same        if pool=map
    MAPHead_0/{attention}/<query,key,value>  pool/<query,key,value>  flax_heads  if pool=map
    MAPHead_0/{attention}/out/kernel     pool/out/kernel        of_heads    if pool=map
    MAPHead_0/{attention}/out/bias       pool/out/bias          same        if pool=map
    MAPHead_0/LayerNorm_0                pool/norm              flax_norm   if pool=map
    MAPHead_0/MlpBlock_0/Dense_<0,1>     pool/mlp/<hidden,out>  flax_dense  if pool=map
    pre_logits                           pre_logits             flax_dense  if pre_logits
    head                                 head                   flax_dense  if classes
    """,
    {"of_heads": _of_heads},
).spelled(attention=_ATTENTION)
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


def _rules(model):
    text = "class_token=True with pool='gap' (the files pool the class token wherever there is one)"
    yield model.spec.pool == "gap" and model.spec.class_token, text


CAPABILITIES = Capabilities(
    "google",
    {
        **any_of("patch_size depth width mlp_dim heads head_dim class_token pre_logits stem stem_width"),
        "positions": ("learned", "sincos2d"),
        "pool": ("token", "gap", "map"),
        # Conventions, not in the files; this package's metadata override them.
        "mlp_activation": ("gelu", "gelu_tanh"),
        **any_of("epsilon mean std"),
    },
    _rules,
    CONVENTIONS,
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


def parse(contents: Any, options: Any) -> ParsedCheckpoint:
    """Parses an .npz with names that `matches` accepts.

    Args:
        contents: from files.read.
        options: arguments of `load` for values that the file does not state: image_size of a rectangular checkpoint.

    Raises:
        ValueError: if the file is in none of these formats after all.
    """
    arrays, dropped = _normalise(dict(contents.arrays))
    shown = Shown(_EMBEDDING + _ROOT + _TOKENS + BLOCK + _HEAD, arrays)
    query = shown.places["block_00/attention/query/kernel"][0]
    width, k, c = need(arrays, query, 3).shape
    fields = {
        **shown.vit_fields(),
        "heads": k,
        "head_dim": None if k * c == width else c,
        "pool": "map" if "pool/probe" in shown else "token" if "class_token/tokens" in shown else "gap",
        "final_norm": True,
        **shown.stem_fields(r"block(\d+)/unit(\d+)/"),
        **CONVENTIONS,
    }
    stride = token_stride(fields["patch_size"], fields.get("stem"))
    shape, missing_rows = _grid(arrays, fields, stride, options)
    return ParsedCheckpoint(
        "ViT",
        fields,
        pixels(shape, stride),
        name_map(fields, shown.classes, missing_rows),
        arrays,
        shown.classes,
        shown.channels,
        dropped=dropped,
    )


def name_map(spec: Mapping[str, Any], classes: int | None, missing_rows: int = 0) -> NameMap:
    """{name: Entry} of a model.

    Args:
        spec: dict of ViTSpec's fields.
        classes: of the head; None without one.
        missing_rows: rows for tokens before the patches that the file's position table lacks.
    """
    entries, stages = _EMBEDDING.map(), spec.get("stem")
    if stages is not None:
        entries |= _ROOT.map()
        for b, u in ((b, u) for b, units in enumerate(stages, 1) for u in range(1, units + 1)):
            place = {"theirs": f"block{b}/unit{u}", "ours": f"stem_block{b}_unit{u}"}
            entries |= _UNIT.spelled(**place).map(first=u == 1)
    return entries | (_TOKENS + BLOCK + _HEAD).map(spec, classes=classes, missing_rows=missing_rows)


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


def write(model: Any, weights: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict]:
    """(arrays of the .npz, {}) of a model; ValueError for one that the format cannot express."""
    CAPABILITIES.check(model)
    return published_names(pack(name_map(vars(model.spec), model.classes), weights), vars(model.spec)), {}
