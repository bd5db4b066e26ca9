"""State dicts of lucidrains' vit-pytorch (`vit_pytorch.ViT`): bias-free queries, keys and values, and heads of any width."""

import math
import re

from keras_vit.checkpoints.layout import Entry, positions, same, stacked_linear, torch_dense, torch_norm
from keras_vit.checkpoints.source import Source, depth, grid, heads, hint_grid, need, pixels, renamed

# Older releases kept the normalisations in wrappers, and the head's in a Sequential.
_ALIASES = [
    (r"^module\.|^model\.", ""),
    (r"(transformer\.layers\.\d+\.0)\.fn\.", r"\1."),
    (r"(transformer\.layers\.\d+\.1)\.norm\.", r"\1.net.0."),
    (r"(transformer\.layers\.\d+\.1)\.fn\.net\.0\.", r"\1.net.1."),
    (r"(transformer\.layers\.\d+\.1)\.fn\.net\.3\.", r"\1.net.4."),
    (r"^mlp_head\.0\.", "transformer.norm."),
    (r"^mlp_head\.1\.", "mlp_head."),
]


def matches(names, config):
    return any(name.endswith("transformer.layers.0.0.to_qkv.weight") or ".0.fn.to_qkv.weight" in name for name in names)


def _normalise(arrays):
    """The arrays under today's names."""

    def new_name(name):
        for pattern, new in _ALIASES:
            name = re.sub(pattern, new, name)
        return name

    return renamed(arrays, new_name)


def _patch(arrays, given):
    """(the patch embedding's number in its Sequential, the patch size, channels) from a weight (d, p*p*c)."""
    ranks = {i: arrays[f"to_patch_embedding.{i}.weight"].ndim for i in (2, 1) if f"to_patch_embedding.{i}.weight" in arrays}
    place = next((i for i, rank in ranks.items() if rank == 2), None)
    if place is None:
        raise ValueError('The array "to_patch_embedding.2.weight" (or .1.) of 2 axes is missing.')
    inputs = arrays[f"to_patch_embedding.{place}.weight"].shape[1]
    for channels in (3, given or 3):
        side = math.isqrt(inputs // channels)
        if side * side * channels == inputs:
            return place, side, channels
    raise ValueError(f"{inputs} values a patch are no square of {channels} channels: give channels=... for another number.")


def _notes(given, k, size):
    """What is assumed, since a state dict does not say it."""
    assumed = (
        "The file does not say how its images were normalised: [-1, 1] is assumed. Give mean and std on the 0..255 scale if not."
    )
    if given:
        return [assumed]
    return [assumed, f"The file does not say how many heads there are: {k}, each {size} wide, are assumed. Give heads if not."]


def _positions(arrays, width):
    """How many tokens the table of positions has."""
    table = arrays.get("pos_embedding")
    if table is None or table.ndim not in (2, 3) or table.shape[:-2] not in ((), (1,)) or table.shape[-1] != width:
        raise ValueError(f'The array "pos_embedding" of shape (1, tokens, {width}), or without the first axis, is missing.')
    return table.shape[-2]


def understand(contents, options):
    """The Source of a state dict whose names `matches` accepts.

    Args:
        contents: of files.read.
        options: load's own arguments that say what the file does not: heads (64 wide where not given), channels (3), image_size.

    Raises:
        ValueError: if it is none after all.
    """
    arrays = _normalise(contents.arrays)
    place, side, channels = _patch(arrays, options.get("channels"))
    width = arrays[f"to_patch_embedding.{place}.weight"].shape[0]
    inner = need(arrays, "transformer.layers.0.0.to_qkv.weight", 2).shape[0] // 3
    k, head_dim = heads(width, options.get("heads"), inner)
    token = arrays["cls_token"].size > 0 if "cls_token" in arrays else False
    hidden = need(arrays, "transformer.layers.0.1.net.1.weight", 2)
    shape = grid(_positions(arrays, width) - int(token), hint_grid(options, (side, side)))
    fields = {
        "patch_size": (side, side),
        "depth": depth(arrays, r"transformer\.layers\.(\d+)\."),
        "width": width,
        "heads": k,
        "head_dim": head_dim,
        "mlp_dim": hidden.shape[0],
        "class_token": token,
        "pool": "token" if token else "gap",
        "qkv_bias": False,
        "patch_norm": place == 2,
        "epsilon": 1e-5,
        "mean": 127.5,
        "std": 127.5,
    }
    classes = need(arrays, "mlp_head.weight", 2).shape[0] if "mlp_head.weight" in arrays else None
    dropped = [name for name in arrays if name == "cls_token" and not token]
    arrays = {name: a for name, a in arrays.items() if name not in dropped}
    return Source(
        "vit",
        fields,
        pixels(shape, (side, side)),
        layout(fields, classes, place, arrays),
        arrays,
        classes,
        channels,
        dropped=dropped,
        notes=_notes(options.get("heads"), k, inner // k),
        resample="bicubic",
    )


def layout(spec, classes, place, arrays):
    """{name: Entry}; the tables' shapes, with or without a batch axis, are the file's own."""
    patch = f"to_patch_embedding.{place}"
    # (d, p*p*c) where ours is (p, q, c, d): the same order of pixels.
    kernel = Entry(("patch_encoder/kernel",), lambda a: a.reshape(-1, a.shape[-1]).T, lambda a, shapes: [a.T.reshape(shapes[0])])
    entries = {f"{patch}.weight": kernel, f"{patch}.bias": same("patch_encoder/bias")}
    if spec["patch_norm"]:
        entries.update(torch_norm("to_patch_embedding.1", "patch_encoder/pixel_norm"))
        entries.update(torch_norm("to_patch_embedding.3", "patch_encoder/embedding_norm"))
    if spec["class_token"]:
        entries["cls_token"] = same("class_token/tokens", (1,) * (arrays["cls_token"].ndim - 1) + (spec["width"],))
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
    entries.update(torch_norm("transformer.norm", "encoder_norm"))
    if classes is not None:
        entries.update(torch_dense("mlp_head", "head"))
    return entries
