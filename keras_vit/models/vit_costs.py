"""A Vision Transformer's costs, layer by layer, with the model's layer names."""

import dataclasses
import math

from keras_vit.layers.embedding.patch_dropout import kept_patches
from keras_vit.layers.embedding.patches import grid_size
from keras_vit.layers.positions.embeddings import KINDS
from keras_vit.models.checks import blocks_to_remat
from keras_vit.models.costs import (
    LayerCount,
    as_rematerialised,
    attention_pooling,
    axial_block,
    conv,
    dense,
    halved,
    resnet,
    small,
    transformer_block,
)
from keras_vit.models.encoder import block_arguments, reductions


def _conv_stem(widths, strides, form, size, channels):
    """The rows of a stem of 3x3 convolutions with batch normalisation."""
    rows = []
    for i, (width, stride) in enumerate(zip(widths, strides), 1):
        residual, before = form == "residual" and i > 1, (*size, channels)
        rows.append(conv(f"stem_conv{i}", size, channels, width, 3, 1 if residual else stride))
        if residual and stride > 1:
            inputs, pooled = rows[-1].output, (*halved(size, stride), width)
            alive = math.prod(inputs) + math.prod(pooled)
            rows.append(LayerCount(f"stem_pool{i}", pooled, alive=alive, kept=math.prod(pooled)))
        *size, channels = rows[-1].output
        rows += [
            small(f"stem_norm{i}", (*size, width), 4 * width, 0),
            small(f"stem_relu{i}", (*size, width)),
        ]
        if residual and before == (*size, width):
            rows.append(small(f"stem_add{i}", before))
    return rows


def _palette_encoder(name: str, size: tuple[int, int], channels: int, colors: int, d: int) -> LayerCount:
    """A PaletteEncoder: distances from pixels to colours, and the nearest one's embedding."""
    n = math.prod(size)
    alive = n * (channels + 2 * colors)
    return LayerCount(name, (n, d), colors * (channels + d), 2 * n * channels * colors, max(alive, n * d), n * d)


def _table(spec, grid):
    """The parameters of a position table."""
    if spec.positions == "learned2d":
        return spec.positioned * spec.width + sum(grid) * (spec.width // 2)
    return (spec.positioned + math.prod(grid)) * spec.width if spec.positions == "learned" else 0


def _patches(spec, size, channels):
    """The rows from pixels to patch tokens."""
    if spec.palette is not None:
        return [_palette_encoder("patch_encoder", size, channels, spec.palette, spec.width)]
    rows = [small("normalization", (*size, channels))]
    if spec.stem is not None:
        rows += resnet(spec.stem, spec.stem_width, size, channels, False)
    rows += _conv_stem(spec.conv_stem, spec.conv_strides, spec.conv_form, size, channels)
    inputs, d = math.prod(spec.patch_size) * rows[-1].output[-1], spec.width
    n = math.prod(grid_size(size, spec.stride))
    patches = dense("patch_encoder", (n, d), inputs, n * (inputs + 2 * d) if spec.patch_norm else 0)
    others = (2 * (inputs + d) if spec.patch_norm else 0) - (d if spec.pre_norm else 0)  # normalisations, the bias
    return [*rows, dataclasses.replace(patches, parameters=patches.parameters + others)]


def _embedding(spec, size, channels):
    """The rows of `embed`: pixels to tokens."""
    rows, d, grid = _patches(spec, size, channels), spec.width, grid_size(size, spec.stride)
    n = patches = math.prod(grid)
    for name, present, count in (
        ("class_token", spec.class_token, 1),
        ("distillation_token", spec.distillation_token, 1),
        ("position_embedding", spec.positions in KINDS and spec.positions_at == "stem", 0),
        ("registers", spec.registers, spec.registers),
    ):
        if present:
            n += count
            learned = _table(spec, grid) if name == "position_embedding" else count * d
            rows.append(small(name, (n, d), learned, 0))
    if spec.pre_norm:
        rows.append(small("pre_norm", (n, d), 2 * d))
    # The first block keeps its input, the sum with the positions or dropout's output.
    rows.append(small("embedding_dropout", (n, d)))
    if spec.patch_dropout and spec.patch_dropout_block is None:
        kept = spec.prefix + kept_patches(patches, spec.patch_dropout)
        rows[-1] = dataclasses.replace(rows[-1], kept=0)
        rows.append(small("patch_dropout", (kept, d)))
    if spec.windows > 1:
        rows.append(small("window_tokens", (patches + spec.prefix, d)))
    return rows


def _blocks(spec, n, remat, grid):
    """The rows of the blocks and of the tables before them, with n tokens before the first."""
    rematerialised, rows = blocks_to_remat(remat, spec.depth), []
    for i, reduction in enumerate(reductions(spec, n - spec.prefix)):
        if spec.positions_at == "every" or (spec.positions_at == "shared" and not i):
            name = "position_embedding" + (f"_{i:02d}" if spec.positions_at == "every" else "")
            rows.append(small(name, (n, spec.width), _table(spec, grid), 0))
        halves = []
        for pattern in ({"pattern": "rows"}, {"pattern": "columns"}) if spec.pattern.name == "axial" else ({},):
            arguments = block_arguments(spec, i, grid) | {"remat": i in rematerialised} | pattern
            halves.append(transformer_block(f"block_{i:02d}", n, spec.width, arguments, reduction))
        rows.append(axial_block(*halves) if len(halves) == 2 else halves[0])
        n = rows[-1].output[0]
    return rows


def _pool(spec, n):
    """The rows from tokens to features."""
    d = spec.width
    if spec.pool == "map":
        rows = [attention_pooling("pool", n, d, spec.pool_heads or spec.heads, spec.mlp_dim)]
    elif spec.pool == "token_gap":
        rows = [small(name, (width,)) for name, width in (("pool_token", d), ("pool_gap", d), ("pool", 2 * d))]
    else:
        rows = [small("pool", (d,))]
    *_, width = rows[-1].output
    if spec.fc_norm:
        rows.append(small("fc_norm", (width,), 2 * width))
    if spec.pre_logits:
        rows.append(dense("pre_logits", (spec.pre_logits,), width))
    return [*rows, small("pool_dist", (d,))] if spec.distillation_token else rows


def _heads(spec, features, classes):
    """The rows of the heads, or without classes of the model's other output."""
    if classes is None:
        return [small("features", (features,))] if spec.distillation_token else []
    if not spec.distillation_token:
        return [dense("head", (classes,), features)]
    return [dense("head", (classes,), features), dense("head_dist", (classes,), features), small("heads", (classes,))]


def vit_layer_counts(spec, size, classes, channels, remat) -> list[LayerCount]:
    """The rows of a ViT's layers, see planning.counting.layer_counts; `size` is a pair."""
    rows = _embedding(spec, size, channels)
    if remat is True:
        rows = [as_rematerialised(row) if row.name.startswith("stem_block") else row for row in rows]
    rows += _blocks(spec, rows[-1].output[0], remat, grid_size(size, spec.stride))
    n, d = rows[-1].output
    rows += [] if spec.fc_norm or not spec.final_norm else [small("encoder_norm", (n, d), 2 * d)]
    rows += _pool(spec, n)
    return [*rows, *_heads(spec, rows[-1].output[-1], classes)]
