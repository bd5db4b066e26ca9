"""timm's names of a ViT's arrays, for timm.py and timm_eva.py: one name map for both of its classes."""

import dataclasses
from collections.abc import Mapping

from keras_vit.checkpoints.formats.name_map import (
    Entry,
    NameMap,
    conv,
    positions,
    same,
    stacked_bias,
    stacked_linear,
    torch_dense,
    torch_norm,
)

VIT_SCALES, EVA_SCALES = "ls{}.gamma", "gamma_{}"  # LayerScale's names in timm's two classes


def _stem_names(stages):
    root = "patch_embed.backbone." + ("stem." if stages else "")
    entries = {f"{root}conv.weight": conv("stem_conv/kernel"), **torch_norm(f"{root}norm", "stem_norm")}
    for s, units in enumerate(stages):
        for u in range(units):
            theirs, ours = f"patch_embed.backbone.stages.{s}.blocks.{u}", f"stem_block{s + 1}_unit{u + 1}"
            for i in (1, 2, 3):
                entries[f"{theirs}.conv{i}.weight"] = conv(f"{ours}/conv{i}/kernel")
                entries.update(torch_norm(f"{theirs}.norm{i}", f"{ours}/norm{i}"))
            if u == 0:
                entries[f"{theirs}.downsample.conv.weight"] = conv(f"{ours}/proj/kernel")
                entries.update(torch_norm(f"{theirs}.downsample.norm", f"{ours}/proj_norm"))
    return entries


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


def _query_key_value(theirs, attention, spec):
    """The entries of query, key and value; with rotations beside a table in timm's order."""
    qkv = [f"{attention}{name}" for name in ("query", "key", "value")]

    def ordered(entry, count):
        rope = spec.get("rope")
        return entry if rope is None else in_pairs(entry, spec["heads"], count, rope == "rope2d_cells1")

    entries = {f"{theirs}.qkv.weight": ordered(stacked_linear(*(f"{name}/kernel" for name in qkv)), 2)}
    if spec["qkv_bias"] and spec.get("key_bias", True):
        entries[f"{theirs}.qkv.bias"] = ordered(stacked_bias(*(f"{name}/bias" for name in qkv)), 2)
    elif spec["qkv_bias"]:
        entries[f"{theirs}.q_bias"] = ordered(same(f"{attention}query/bias"), 1)
        entries[f"{theirs}.v_bias"] = same(f"{attention}value/bias")
    return entries


def block_map(theirs: str, ours: str, spec: Mapping, scales: str = VIT_SCALES) -> NameMap:
    """{name: Entry} of a block; `spec` and `scales` as in name_map."""
    attention = f"{ours}/attention/"
    entries = _query_key_value(f"{theirs}.attn", attention, spec)
    if spec["qk_norm"]:
        entries.update(torch_norm(f"{theirs}.attn.q_norm", f"{attention}query_norm"))
        entries.update(torch_norm(f"{theirs}.attn.k_norm", f"{attention}key_norm"))
    entries.update(torch_dense(f"{theirs}.attn.proj", f"{attention}out"))
    if spec["layer_scale"] is not None:
        entries[f"{theirs}.{scales.format(1)}"] = same(f"{ours}/attention_scale/gamma")
        entries[f"{theirs}.{scales.format(2)}"] = same(f"{ours}/mlp_scale/gamma")
    if spec.get("hidden_norm"):
        entries.update(torch_norm(f"{theirs}.mlp.norm", f"{ours}/mlp/norm"))
    for norm, name in (("norm1", "attention_norm"), ("norm2", "mlp_norm")):
        entries.update(torch_norm(f"{theirs}.{norm}", f"{ours}/{name}"))
    entries.update(torch_dense(f"{theirs}.mlp.fc1", f"{ours}/mlp/hidden"))
    return {**entries, **torch_dense(f"{theirs}.mlp.fc2", f"{ours}/mlp/out")}


def _map_head_names():
    entries = {
        "attn_pool.latent": same("pool/probe"),
        "attn_pool.kv.weight": stacked_linear("pool/key/kernel", "pool/value/kernel"),
        "attn_pool.kv.bias": stacked_bias("pool/key/bias", "pool/value/bias"),
        **torch_norm("attn_pool.norm", "pool/norm"),
    }
    parts = (("q", "query"), ("proj", "out"), ("mlp.fc1", "mlp/hidden"), ("mlp.fc2", "mlp/out"))
    for theirs, ours in parts:
        entries.update(torch_dense(f"attn_pool.{theirs}", f"pool/{ours}"))
    return entries


def _embedding_names(spec, missing_rows):
    """The entries before the blocks."""
    entries = {"patch_embed.proj.weight": conv("patch_encoder/kernel")}
    if spec.get("pre_norm"):
        entries.update(torch_norm("norm_pre", "pre_norm"))
    else:
        entries["patch_embed.proj.bias"] = same("patch_encoder/bias")
    if spec.get("patch_norm"):  # of custom models
        for name in ("pixel_norm", "embedding_norm"):
            entries.update(torch_norm(f"patch_embed.{name}", f"patch_encoder/{name}"))
    if spec.get("stem") is not None:
        entries.update(_stem_names(spec["stem"]))
    tokens = (("class_token", "cls_token"), ("distillation_token", "dist_token"), ("registers", "reg_token"))
    entries.update({theirs: same(f"{ours}/tokens") for ours, theirs in tokens if spec.get(ours)})
    if spec.get("positions", "learned") == "learned":
        entries["pos_embed"] = positions("position_embedding/embedding", missing_rows)
    return entries


def name_map(spec: Mapping, classes: int | None, missing_rows: int = 0, scales: str = VIT_SCALES) -> NameMap:
    """{name: Entry} of a model.

    Args:
        spec: dict of ViTSpec's fields.
        classes: of the head; None without one.
        missing_rows: rows for tokens before the patches that the file's position table lacks.
        scales: VIT_SCALES or EVA_SCALES.
    """
    entries = _embedding_names(spec, missing_rows)
    for i in range(spec["depth"]):
        entries.update(block_map(f"blocks.{i}", f"block_{i:02d}", spec, scales))
    if spec["final_norm"]:
        entries.update(torch_norm("fc_norm", "fc_norm") if spec["fc_norm"] else torch_norm("norm", "encoder_norm"))
    if spec["pool"] == "map":
        entries.update(_map_head_names())
    if spec.get("pre_logits"):
        entries.update(torch_dense("pre_logits", "pre_logits"))
    if classes is not None:
        for name in ("head", "head_dist") if spec.get("distillation_token") else ("head",):
            entries.update(torch_dense(name, name))
    return entries
