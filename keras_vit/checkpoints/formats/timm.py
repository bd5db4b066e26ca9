"""State dicts in timm's names: timm, and the original repositories that share them (DeiT I and III, DINO, DINOv2)."""

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from keras_vit.checkpoints.formats import timm_config
from keras_vit.checkpoints.formats.capabilities import Capabilities, any_of
from keras_vit.checkpoints.formats.name_map import Entry, NameMap, Names, pack, transposed
from keras_vit.checkpoints.formats.parsed import ParsedCheckpoint, grid, heads, hint_grid, is_grid, pixels
from keras_vit.checkpoints.formats.settings import check_agreement, section, setting
from keras_vit.checkpoints.formats.shown import Shown, need, renamed, rewriter
from keras_vit.models.spec import token_stride


def in_pairs(entry: Entry, heads: int, count: int, columns_first: bool = False) -> Entry:
    """An entry where the file rotates values 2 i and 2 i + 1 of a head together, and ours i and i + c/2.

    Args:
        entry: of layers (..., k*c).
        heads: k.
        count: how many of its first arrays, queries and keys, have that order.
        columns_first: whether the file's first half of the rotations is by the column; ours is by the row.
    """

    def ours(array):
        parts = array.reshape(*array.shape[:-1], heads, 2, -1, 2)  # (..., k, axis, c/4, pair)
        parts = parts[..., ::-1, :, :] if columns_first else parts
        return parts.swapaxes(-1, -2).swapaxes(-2, -3).reshape(array.shape)  # (..., k, pair, axis, c/4)

    def theirs(array):
        parts = array.reshape(*array.shape[:-1], heads, 2, 2, -1)  # (..., k, pair, axis, c/4)
        parts = parts[..., ::-1, :] if columns_first else parts
        return parts.swapaxes(-2, -3).swapaxes(-1, -2).reshape(array.shape)  # (..., k, axis, c/4, pair)

    def pack(*arrays):
        return entry.pack(*(theirs(a) if i < count else a for i, a in enumerate(arrays)))

    def unpack(array, shapes):
        return [ours(a) if i < count else a for i, a in enumerate(entry.unpack(array, shapes))]

    return dataclasses.replace(entry, pack=pack, unpack=unpack)


def _rotated(fields, *ours):
    """Weights or biases of query, key and value; with rotations beside a table in timm's order."""
    entry = transposed((1, 0) if ours[0].endswith("kernel") else (0,), *ours)
    rope, count = fields.get("rope"), sum("/value/" not in path for path in ours)
    return entry if rope is None else in_pairs(entry, fields["heads"], count, rope == "rope2d_cells1")


def _masked(fields, *ours):
    """DINOv3's own biases of query, key and value; the key's is masked, so it has no effect."""
    return Entry(ours, lambda q, v: np.concatenate([q, np.zeros_like(q), v]), lambda a, shapes: np.split(a, 3)[::2])


_VIT_SCALES = {"scale1": "ls1.gamma", "scale2": "ls2.gamma"}  # LayerScale's names in timm's two classes
_EVA_SCALES = {"scale1": "gamma_1", "scale2": "gamma_2"}
_BLOCK = Names(
    """
    {theirs}.attn.qkv.weight  {ours}/attention/<query,key,value>/kernel  rotated  if not separate
    {theirs}.attn.qkv.bias    {ours}/attention/<query,key,value>/bias    rotated  if qkv_bias, key_bias
    {theirs}.attn.qkv.bias    {ours}/attention/<query,value>/bias        masked   if masked
    {theirs}.attn.<q,v>_bias  {ours}/attention/<query,value>/bias        rotated  if pair
    {theirs}.attn.<q,k,v>_proj.weight  {ours}/attention/<query,key,value>/kernel  rotated  if separate
    {theirs}.attn.<q,v>_proj.bias  {ours}/attention/<query,value>/bias   rotated  if qkv_bias, separate
    {theirs}.attn.<q,k>_norm  {ours}/attention/<query,key>_norm          norm     if qk_norm
    {theirs}.attn.proj        {ours}/attention/out                       dense
    {theirs}.{scale1}         {ours}/attention_scale/gamma               same     if layer_scale
    {theirs}.{scale2}         {ours}/mlp_scale/gamma                     same     if layer_scale
    {theirs}.mlp.norm         {ours}/mlp/norm                            norm     if hidden_norm
    {theirs}.norm<1,2>        {ours}/<attention,mlp>_norm                norm
    {theirs}.mlp.<fc1_g,fc1_x>  {ours}/mlp/hidden                        dense    if apart
    {theirs}.mlp.fc1          {ours}/mlp/hidden                          dense    if not apart
    {theirs}.mlp.fc2          {ours}/mlp/out                             dense
    """,
    {"rotated": _rotated, "masked": _masked},
)
# The normalisations in patch_embed are of custom models.
_NAMES = Names(
    """
    patch_embed.proj.weight         patch_encoder/kernel          conv
    patch_embed.proj.bias           patch_encoder/bias            same         if not pre_norm
    norm_pre                        pre_norm                      norm         if pre_norm
    patch_embed.pixel_norm          patch_encoder/pixel_norm      norm         if patch_norm
    patch_embed.embedding_norm      patch_encoder/embedding_norm  norm         if patch_norm
    patch_embed.backbone.conv       stem_conv                     kernel       if stem=()
    patch_embed.backbone.norm       stem_norm                     norm         if stem=()
    patch_embed.backbone.stem.conv  stem_conv                     kernel       if stem, not stem=()
    patch_embed.backbone.stem.norm  stem_norm                     norm         if stem, not stem=()
    cls_token                       class_token/tokens            same         if class_token
    dist_token                      distillation_token/tokens     same         if distillation_token
    reg_token                       registers/tokens              same         if registers
    pos_embed                       position_embedding/embedding  positions    if positions=learned
    """
)
_NAMES += _BLOCK.spelled(theirs="blocks.{i}", ours="block_{i:02d}")
_NAMES += Names(
    """
    norm                       encoder_norm           norm   if final_norm, not fc_norm
    fc_norm                    fc_norm                norm   if final_norm, fc_norm
    attn_pool.latent           pool/probe             same   if pool=map
    attn_pool.kv               pool/<key,value>       dense  if pool=map
    attn_pool.norm             pool/norm              norm   if pool=map
    attn_pool.<q,proj>         pool/<query,out>       dense  if pool=map
    attn_pool.mlp.fc<1,2>      pool/mlp/<hidden,out>  dense  if pool=map
    pre_logits                 pre_logits             dense  if pre_logits
    head                       head                   dense  if classes
    head_dist                  head_dist              dense  if classes, distillation_token
    """
)
VIT_NAMES, EVA_NAMES = _NAMES.spelled(**_VIT_SCALES), _NAMES.spelled(**_EVA_SCALES)
DECODER_BLOCK = _BLOCK.spelled(theirs="decoder_blocks.{i}", ours="decoder_block_{i:02d}", **_VIT_SCALES)  # of MAE
_UNIT = Names(
    """
    {theirs}.conv<1,2,3>      {ours}/conv<1,2,3>  kernel
    {theirs}.norm<1,2,3>      {ours}/norm<1,2,3>  norm
    {theirs}.downsample.conv  {ours}/proj         kernel  if first
    {theirs}.downsample.norm  {ours}/proj_norm    norm    if first
    """
)

# Names in the original repositories, and timm's.
_ALIASES = [
    (r"^register_tokens$", "reg_token"),  # DINOv2
    (r"\.mlp\.w12\.", ".mlp.fc1."),
    (r"\.mlp\.w3\.", ".mlp.fc2."),
    (r"^blocks\.\d+\.(\d+)\.", r"blocks.\1."),  # DINOv2 in chunks
    (r"\.gamma_([12])$", r".ls\1.gamma"),  # DeiT III
    (r"^pre_logits\.fc\.", "pre_logits."),
]
_DROPPED = re.compile(r"^mask_token$|^rasa_head\.")  # the second: Franca's predictor of positions
# What timm's architectures compute.
CONVENTIONS = {"epsilon": 1e-6}
TEST_HEAD_WIDTH = 32  # of timm's test_vit
# {pattern of timm's architectures: heads} where others of the width have another number.
_UNUSUAL_HEADS = {r"^vit_base_patch16_gap_224$": 16, r"giantopt": 16, r"^vit_small_resnet(26d|50d_s16)_224$": 8}
# timm's architecture of a hybrid's stem.
HYBRIDS = {
    (): "vit_tiny_r_s16_p8_224",
    (2, 2, 2, 2): "vit_small_r26_s32_224",
    (3, 4, 9): "vit_base_r50_s16_224",
    (3, 4, 6, 3): "vit_large_r50_s32_224",
}


def _rules(model):
    spec, distilled = model.spec, model.spec.distillation_token
    special = {
        f"stem={spec.stem}": spec.stem is not None,
        "distillation_token=True": distilled,
        'mlp_form="swiglu"': spec.mlp_form == "swiglu",
    }
    present = [text for text, is_present in special.items() if is_present]
    yield len(present) > 1, f"{' with '.join(present)} (timm has a separate architecture for each)"
    side, hybrid = 1 if spec.stem else 8, spec.stem is not None
    wrong = hybrid and spec.patch_size != (side, side)
    yield wrong, f"patch_size={spec.patch_size} with stem={spec.stem} (timm's has {side})"
    ignored = f"registers={spec.registers} with distillation_token=True (timm's distilled models ignore registers)"
    yield distilled and spec.registers > 0, ignored


CAPABILITIES = Capabilities(
    "timm",
    {
        **any_of(
            "patch_size depth width mlp_dim heads class_token distillation_token registers fc_norm qkv_bias qk_norm"
        ),
        **any_of("layer_scale mlp_form"),
        "positions": ("learned",),
        "pool": ("token", "gap", "map"),
        "stem": (None, *HYBRIDS),
        "stem_width": (64,),
        # In config.json:
        "mlp_activation": tuple(dict.fromkeys(timm_config.ACTIVATIONS.values())),
        **any_of("mean std"),
        # Convention, not in the files; this package's metadata override it.
        **any_of("epsilon"),
    },
    _rules,
    CONVENTIONS,
)


def name_map(spec: Mapping[str, Any], classes: int | None, missing_rows: int = 0) -> NameMap:
    """{name: Entry} of a model.

    Args:
        spec: dict of ViTSpec's fields.
        classes: of the head; None without one.
        missing_rows: rows for tokens before the patches that the file's position table lacks.
    """
    entries = VIT_NAMES.map(spec, classes=classes, missing_rows=missing_rows)
    for s, units in enumerate(spec.get("stem") or ()):
        for u in range(units):
            place = {"theirs": f"patch_embed.backbone.stages.{s}.blocks.{u}", "ours": f"stem_block{s + 1}_unit{u + 1}"}
            entries |= _UNIT.spelled(**place).map(first=u == 0)
    return entries


def _fold_registers(arrays, fields, hint):
    """Adds the registers' position rows, which only some timm models have, to the registers."""
    extra = fields["registers"]
    rows = need(arrays, "pos_embed", 3).shape[1]
    token = int(fields["class_token"]) + int(fields["distillation_token"])
    if extra and not is_grid(rows, hint) and is_grid(rows - token - extra, hint):
        table = arrays["pos_embed"]
        arrays["reg_token"] = need(arrays, "reg_token", 3) + table[:, token : token + extra]
        arrays["pos_embed"] = table[:, [*range(token), *range(token + extra, rows)]]


def _grid(arrays, fields, hint, options):
    """(patch grid, number of rows missing in the file's position table)."""
    rows = need(arrays, "pos_embed", 3).shape[1]
    token = int(fields["class_token"]) + int(fields["distillation_token"])
    patches_only = is_grid(rows, hint) and (fields["registers"] or not is_grid(rows - token, hint))
    if patches_only and token and not fields["registers"] and hint is None:
        options.value("image_size", None)  # 25 rows are 5x5 patches, or the token and 4x6
    return (grid(rows, hint, options), token) if patches_only else (grid(rows - token, hint, options), 0)


def _heads(arrays, config, inner):
    """The number of heads that config.json states, its architecture, or the normalisation of one head's queries."""
    stated = setting(section(config, "model_args"), "num_heads", int)
    architecture = str(config.get("architecture"))
    if stated is None and architecture.startswith("test_vit"):
        return inner // TEST_HEAD_WIDTH
    unusual = next((k for pattern, k in _UNUSUAL_HEADS.items() if re.search(pattern, architecture)), None)
    if stated is None and unusual:
        return unusual
    norm = arrays.get("blocks.0.attn.q_norm.weight")
    shown = stated is None and norm is not None and norm.size and inner % norm.size == 0
    return inner // norm.size if shown else stated


def _fields(shown, config, options):
    """The fields of the spec, without normalisation and positions."""
    fields, certain = shown.vit_fields() | {"pre_norm": False}, timm_config.is_named(config)
    inner = shown.shape("block_00/attention/query/kernel")[1]
    k, head_dim = heads(fields["width"], options, _heads(shown.arrays, config, inner), inner, certain)
    fields |= {
        "heads": k,
        "head_dim": head_dim,
        "mlp_activation": "gelu" if fields["mlp_form"] == "swiglu" else timm_config.activation(config, options),
        "norm_first": options.value("norm_first", True, certain=certain),
        "epsilon": options.value("epsilon", CONVENTIONS["epsilon"], certain=certain),
        **shown.stem_fields(r"patch_embed\.backbone\.stages\.(\d+)\.blocks\.(\d+)\."),
    }
    return {**fields, "pool": timm_config.pool(shown, fields, config, options)}


def in_timm(
    arrays: Mapping[str, np.ndarray], aliases: Iterable[tuple[str, Any]], dropped: re.Pattern
) -> tuple[dict[str, np.ndarray], list[str]]:
    """(the arrays in timm's names, by the rules `aliases`, the names left out: outside the ViT, or `dropped` in it)."""
    root = "patch_embed.proj.weight"
    if not any(name.endswith(root) for name in arrays):
        raise ValueError(f'The array "{root}" is missing.')
    prefix = min((name for name in arrays if name.endswith(root)), key=len).removesuffix(root)
    kept = {
        name: array
        for name, array in arrays.items()
        if name.startswith(prefix) and not dropped.search(name.removeprefix(prefix))
    }
    return renamed(kept, rewriter(aliases, prefix)), [name for name in arrays if name not in kept]


def parse(contents: Any, options: Any) -> ParsedCheckpoint:
    """Parses a state dict with these names.

    Args:
        contents: from files.read, with timm's config.json if there is one.
        options: an Options of arguments of `load`, for values that the file does not state.

    Raises:
        ValueError: if the file is not in this format after all.
    """
    config = contents.config
    timm_config.check_architecture(config)
    arrays, dropped = in_timm(contents.arrays, _ALIASES, _DROPPED)
    shown = Shown(VIT_NAMES, arrays)
    fields, classes, channels = _fields(shown, config, options), shown.classes, shown.channels
    fields |= timm_config.normalisation(config, channels, options)
    stride, stated = token_stride(fields["patch_size"], fields.get("stem")), timm_config.input_size(config)
    hint = hint_grid(options, stride, stated)
    _fold_registers(arrays, fields, hint)
    shape, missing_rows = _grid(arrays, fields, hint, options)
    size = pixels(shape, stride)
    fits = stated is not None and tuple(s // t for s, t in zip(stated, stride)) == shape
    rows = timm_config.stated_rows(config, fields, stated if fits else size, classes, channels)
    registers = setting(section(config, "model_args"), "reg_tokens", int)
    check_agreement([*rows, ("reg_tokens", registers, fields["registers"])])
    return ParsedCheckpoint(
        "ViT",
        fields,
        size,
        name_map(fields, classes, missing_rows),
        arrays,
        classes,
        channels,
        class_names=timm_config.label_names(config, classes),
        dropped=dropped,
        assumptions=list(timm_config.look_alikes(contents.arrays, config)),
        resample="timm",
        preprocessing=timm_config.preprocessing(config),
    )


def _architecture(spec):
    """The timm function that builds the model when given all sizes."""
    if spec.stem is not None:
        return HYBRIDS[spec.stem]
    if spec.distillation_token:
        return "deit_base_distilled_patch16_224"
    if spec.mlp_form == "swiglu":
        return "vit_giant_patch14_dinov2"
    return "vit_base_patch16_siglip_224" if spec.pool == "map" else "vit_base_patch16_224"


def to_config(model: Any, no_embed_class: bool) -> dict[str, Any]:
    """timm's config.json; with `no_embed_class` the position table covers the patches only."""
    spec = model.spec
    arguments = {"no_embed_class": no_embed_class, "fc_norm": spec.fc_norm}
    optional = {"reg_tokens": spec.registers, "init_values": spec.layer_scale, "qk_norm": spec.qk_norm}
    arguments |= {name: value for name, value in optional.items() if value}
    if spec.mlp_activation != "gelu" and spec.mlp_form == "plain":
        arguments["act_layer"] = spec.mlp_activation
    config = timm_config.of_vit(model, _architecture(spec), arguments, 2 if spec.mlp_form == "swiglu" else 1)
    if spec.stem is not None:
        del config["model_args"]["patch_size"]
    return config


def _fold_token_positions(weights, spec):
    """Adds the position rows of class and distillation tokens to these tokens, for files without such rows."""
    table = weights["position_embedding/embedding"].copy()
    tokens = [f"{name}/tokens" for name in ("class_token", "distillation_token") if getattr(spec, name)]
    folded = {name: weights[name] + table[:, row : row + 1] for row, name in enumerate(tokens)}
    table[:, : len(tokens)] = 0.0
    return {**weights, **folded, "position_embedding/embedding": table}


def write(model: Any, weights: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """(arrays, {config file: content}) of a model; ValueError for one that the format cannot express."""
    CAPABILITIES.check(model)
    spec, missing_rows = model.spec, 0
    # timm's positions cover the patches alone with registers, and in DeiT III and FlexiViT, with zero rows here.
    rows = weights["position_embedding/embedding"][:, : spec.positioned]
    if spec.registers or (rows.size and not rows.any()):
        weights, missing_rows = _fold_token_positions(weights, spec), spec.positioned
    arrays = pack(name_map(vars(spec), model.classes, missing_rows), weights)
    return arrays, {"config.json": to_config(model, bool(missing_rows))}
