"""What a model costs, layer by layer: parameters, operations and activations, by formulas from its spec; no model is
built.

All sizes are per image. Operations are those of matrix products and convolutions, 2 per multiply-add, as tables of
FLOPs have it (half of them are "GMACs"). Activations are numbers, to be multiplied by 4 bytes in float32 and 2 in
bfloat16:

- alive: what a forward pass holds at once at the layer's widest point, the residual stream included;
- kept: what the layer makes that a training step keeps for the gradient: the inputs of products, normalisations,
  softmax and GELU (table 2 of arXiv 2205.05198 for a block). The masks of dropout are left out.
"""

import dataclasses
import math
from collections.abc import Iterable

from keras_vit.layers.blocks.mlp import MLPS
from keras_vit.layers.embedding.patch_dropout import kept_patches
from keras_vit.layers.embedding.patches import grid_size, pair
from keras_vit.layers.positions.embeddings import KINDS
from keras_vit.models.bit import BiTSpec
from keras_vit.models.checks import blocks_to_remat
from keras_vit.models.reduction import Reduction, reductions
from keras_vit.models.spec import ViTSpec

BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}  # of a number, by compute dtype


@dataclasses.dataclass(frozen=True)
class LayerCount:
    """One layer's row.

    Attributes:
        name: of the layer in the model.
        output: its output's shape, without the batch.
        parameters: how many numbers its weights hold.
        flops: operations of a forward pass; None for a layer whose products are not known.
        alive, kept: activations, see above.
        recomputed: what a rematerialised layer keeps only while its own gradient is computed.
    """

    name: str
    output: tuple[int, ...]
    parameters: int = 0
    flops: int | None = 0
    alive: int = 0
    kept: int = 0
    recomputed: int = 0


def dense(name: str, shape: tuple[int, ...], inputs: int, kept: int = 0) -> LayerCount:
    """A dense layer with a bias, from `inputs` to an output of `shape`."""
    numbers, rows = math.prod(shape), math.prod(shape[:-1])
    return LayerCount(
        name, shape, (inputs + 1) * shape[-1], 2 * inputs * numbers, rows * inputs + numbers, kept or numbers
    )


def _small(name, shape, parameters=0, kept=None):
    """A layer without products, whose output has the size of its input."""
    numbers = math.prod(shape)
    return LayerCount(name, shape, parameters, 0, 2 * numbers, numbers if kept is None else kept)


def transformer_block(
    name: str,
    n: int,
    d: int,
    heads: int,
    inner: int,
    mlp_dim: int,
    values: int = 1,
    bias: bool = True,
    qk_norm: bool = False,
    scaled: bool = False,
    prefix: int = 0,
    reduction: Reduction | None = None,
    positions: str | None = None,
    grid: tuple[int, int] | None = None,
) -> LayerCount:
    """A TransformerBlock on n tokens of width d, or a ReducingBlock.

    Args:
        inner: the width of all heads together.
        values: of the MLP's first layer for each hidden unit, as in layers.blocks.mlp.MlpForm.
        scaled: whether it has LayerScale.
        prefix: number of tokens before the patches.
        reduction: what happens to the patches between attention and MLP.
        positions, grid: as in MultiHeadSelfAttention.
    """
    kept, merged = reduction or (None, 0)
    left = n if kept is None else prefix + kept
    m = left - merged
    attention = 3 * (d + bias) * inner + (inner + 1) * d + (4 * (inner // heads) if qk_norm else 0)
    hidden = values * mlp_dim
    parameters = attention + (d + 1) * hidden + (mlp_dim + 1) * d + 4 * d + (2 * d if scaled else 0)
    products = 4 * n * d * inner + 2 * n * n * inner + m * d * (hidden + mlp_dim)
    places, offsets = 0, 0
    if positions in ("relative", "relative2d"):
        places, offsets = _relative(positions, n - prefix, prefix, heads, inner, grid)
    if merged:  # comparing one half of the patches with the other, and adding those that are merged
        patches = left - prefix
        products += (patches // 2) * (patches - patches // 2) * (inner // heads) + m * merged * (d + 1)
    # Normalised tokens, queries, keys, values, weights, their sum; then the residual stream, normalised, hidden,
    # activated, the output.
    saved = n * d + 4 * n * inner + heads * n * n + 3 * m * d + 2 * m * hidden
    saved += (2 * n * inner if qk_norm else 0) + ((n + m) * d if scaled else 0)
    steps = (
        n * d + 3 * n * inner,  # normalised to queries, keys, values
        3 * n * inner + heads * n * n,  # queries and keys to scores
        n * inner + 2 * heads * n * n,  # scores to weights, while the values wait
        m * (hidden + mlp_dim),  # hidden to activated
    )
    return LayerCount(name, (m, d), parameters + places, 2 * (products + offsets), n * d + max(steps), saved)


def _relative(positions, patches, prefix, heads, inner, grid):
    """(parameters, multiply-adds) of relative positions: each offset has an embedding, or a number per head; three more
    for other tokens.
    """
    others = 3 if prefix else 0
    if positions == "relative2d":
        return ((2 * grid[0] - 1) * (2 * grid[1] - 1) + others) * heads, 0
    rows = 2 * patches - 1
    return (rows + others) * inner, patches * rows * inner + ((patches + 2 * prefix) * inner if prefix else 0)


def attention_pooling(name: str, n: int, d: int, heads: int, mlp_dim: int) -> LayerCount:
    """MAP: one query on n tokens of width d, then an MLP on its result."""
    parameters = d + 4 * (d + 1) * d + 2 * d + (d + 1) * mlp_dim + (mlp_dim + 1) * d
    products = 2 * n * d * d + 2 * n * d + 2 * d * d + 2 * d * mlp_dim
    return LayerCount(name, (d,), parameters, 2 * products, 3 * n * d, 2 * n * d + heads * n + 5 * d + 2 * mlp_dim)


def _halved(size, stride=2):
    return tuple(-(-s // stride) for s in size)


def _conv(name, size, inputs, filters, kernel, stride=1, group=False):
    """A convolution without bias: from (*size, inputs) to `filters` channels."""
    out = _halved(size, stride)
    numbers, parameters = math.prod(out) * filters, kernel**2 * inputs * filters
    return LayerCount(
        name, (*out, filters), parameters, 2 * math.prod(out) * parameters, math.prod(size) * inputs + numbers, numbers
    )


def bottleneck_unit(
    name: str, size: tuple[int, int], inputs: int, filters: int, stride: int, preactivation: bool
) -> LayerCount:
    """A BottleneckUnit: 1x1, 3x3 and 1x1 convolutions, and one for the shortcut where its shape changes."""
    out, outer = _halved(size, stride), 4 * filters
    before, after = math.prod(size), math.prod(out)
    projects = inputs != outer or stride != 1
    widths = (inputs, filters, filters) if preactivation else (filters, filters, outer)
    norms = 2 * (sum(widths) + (outer if projects and not preactivation else 0))
    shortcut = inputs * outer if projects else 0
    parameters = inputs * filters + 9 * filters**2 + filters * outer + shortcut + norms
    products = before * inputs * filters + after * (9 * filters**2 + filters * outer + shortcut)
    kept = (
        2 * before * filters + 2 * after * filters + after * outer
    )  # both sides of two normalisations, and the output
    if preactivation:
        kept += before * inputs  # the first normalisation's output
    else:
        kept += after * outer * (2 if projects else 1)  # what the last normalisations take
    steps = (
        2 * before * inputs if preactivation else 0,
        before * (inputs + filters),
        2 * before * filters,
        2 * after * outer,
    )
    return LayerCount(name, (*out, outer), parameters, 2 * products, after * outer + max(steps), kept)


def _resnet(stages, width, size, channels, preactivation):
    """The rows of a hybrid's stem or of a BiT's trunk, root included."""
    names = (f"stem_block{i + 1}_unit{j + 1}" for i, units in enumerate(stages) for j in range(units))
    if preactivation:
        names = (f"block_{block:02d}" for block in range(sum(stages)))
    rows = [_conv("stem_conv", size, channels, width, 7, 2)]
    if not preactivation:
        rows += [_small("stem_norm", rows[-1].output, 2 * width, 0), _small("stem_relu", rows[-1].output)]
    *size, _ = rows[-1].output
    pooled = (*_halved(size), width)
    alive = math.prod(size) * width + math.prod(pooled)
    rows.append(LayerCount("stem_pool", pooled, alive=alive, kept=math.prod(pooled)))
    for i, units in enumerate(stages):
        for j in range(units):
            *size, inputs = rows[-1].output
            stride = 2 if i and not j else 1
            rows.append(bottleneck_unit(next(names), size, inputs, width * 2**i, stride, preactivation))
    return rows


def _conv_stem(widths, strides, form, size, channels):
    """The rows of a stem of 3x3 convolutions with batch normalisation."""
    rows = []
    for i, (width, stride) in enumerate(zip(widths, strides), 1):
        residual, before = form == "residual" and i > 1, (*size, channels)
        rows.append(_conv(f"stem_conv{i}", size, channels, width, 3, 1 if residual else stride))
        if residual and stride > 1:
            inputs, pooled = rows[-1].output, (*_halved(size, stride), width)
            alive = math.prod(inputs) + math.prod(pooled)
            rows.append(LayerCount(f"stem_pool{i}", pooled, alive=alive, kept=math.prod(pooled)))
        *size, channels = rows[-1].output
        rows += [
            _small(f"stem_norm{i}", (*size, width), 4 * width, 0),
            _small(f"stem_relu{i}", (*size, width)),
        ]
        if residual and before == (*size, width):
            rows.append(_small(f"stem_add{i}", before))
    return rows


def palette_encoder(name: str, size: tuple[int, int], channels: int, colors: int, d: int) -> LayerCount:
    """A PaletteEncoder: the distance of each pixel from each colour, and the embedding of the nearest."""
    n = math.prod(size)
    alive = n * (channels + 2 * colors)
    return LayerCount(name, (n, d), colors * (channels + d), 2 * n * channels * colors, max(alive, n * d), n * d)


def _table(spec, grid):
    """The parameters of a table of positions."""
    if spec.positions == "learned2d":
        return spec.positioned * spec.width + sum(grid) * (spec.width // 2)
    return (spec.positioned + math.prod(grid)) * spec.width if spec.positions == "learned" else 0


def _patches(spec, size, channels):
    """The rows from pixels to patch tokens."""
    if spec.palette is not None:
        return [palette_encoder("patch_encoder", size, channels, spec.palette, spec.width)]
    rows = [_small("normalization", (*size, channels))]
    if spec.stem is not None:
        rows += _resnet(spec.stem, spec.stem_width, size, channels, False)
    rows += _conv_stem(spec.conv_stem, spec.conv_strides, spec.conv_form, size, channels)
    inputs, d = math.prod(spec.patch_size) * rows[-1].output[-1], spec.width
    n = math.prod(grid_size(size, spec.stride))
    patches = dense("patch_encoder", (n, d), inputs, n * (inputs + 2 * d) if spec.patch_norm else 0)
    return [
        *rows,
        dataclasses.replace(patches, parameters=patches.parameters + (2 * (inputs + d) if spec.patch_norm else 0)),
    ]


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
            rows.append(_small(name, (n, d), learned, 0))
    # The first block keeps its input, which may be the sum with the positions or what dropout left.
    rows.append(_small("embedding_dropout", (n, d)))
    if spec.patch_dropout and spec.patch_dropout_block is None:
        kept = spec.prefix + kept_patches(patches, spec.patch_dropout)
        rows[-1] = dataclasses.replace(rows[-1], kept=0)
        rows.append(_small("patch_dropout", (kept, d)))
    return rows


def _blocks(spec, n, remat, grid):
    """The rows of the blocks and of the tables added before them, n tokens before the first."""
    inner = spec.heads * (spec.head_dim or spec.width // spec.heads)
    options = (MLPS[spec.mlp_form].values, spec.qkv_bias, spec.qk_norm, spec.layer_scale is not None, spec.prefix)
    rematerialised, rows = blocks_to_remat(remat, spec.depth), []
    for i, reduction in enumerate(reductions(spec, n - spec.prefix)):
        if spec.positions_at == "every" or (spec.positions_at == "shared" and not i):
            name = "position_embedding" + (f"_{i:02d}" if spec.positions_at == "every" else "")
            rows.append(_small(name, (n, spec.width), _table(spec, grid), 0))
        places = (reduction, spec.positions, grid)
        row = transformer_block(f"block_{i:02d}", n, spec.width, spec.heads, inner, spec.mlp_dim, *options, *places)
        rows.append(as_rematerialised(row) if i in rematerialised else row)
        n = row.output[0]
    return rows


def as_rematerialised(row: LayerCount) -> LayerCount:
    """The row of a layer that keeps its output alone, and makes the rest again for its gradient."""
    return dataclasses.replace(row, kept=math.prod(row.output), recomputed=row.kept - math.prod(row.output))


def _pool(spec, n):
    """The rows from tokens to features."""
    d = spec.width
    if spec.pool == "map":
        rows = [attention_pooling("pool", n, d, spec.heads, spec.mlp_dim)]
    elif spec.pool == "token_gap":
        rows = [_small(name, (width,)) for name, width in (("pool_token", d), ("pool_gap", d), ("pool", 2 * d))]
    else:
        rows = [_small("pool", (d,))]
    *_, width = rows[-1].output
    if spec.fc_norm:
        rows.append(_small("fc_norm", (width,), 2 * width))
    if spec.pre_logits:
        rows.append(dense("pre_logits", (spec.pre_logits,), width))
    return [*rows, _small("pool_dist", (d,))] if spec.distillation_token else rows


def _heads(spec, features, classes):
    """The rows of the head or heads, or without classes of what the model returns instead."""
    distilled = getattr(spec, "distillation_token", False)
    if classes is None:
        return [_small("features", (features,))] if distilled else []
    if not distilled:
        return [dense("head", (classes,), features)]
    return [dense("head", (classes,), features), dense("head_dist", (classes,), features), _small("heads", (classes,))]


def layer_counts(
    spec: ViTSpec | BiTSpec,
    image_size: int | tuple[int, int] = 224,
    classes: int | None = 1000,
    channels: int = 3,
    remat: bool | tuple[int, ...] = False,
) -> list[LayerCount]:
    """The rows of a ViT's or BiT's layers, in order, with the names that they have in the model.

    Args:
        spec: a ViTSpec or BiTSpec (`keras_vit.models.make_spec("B/16")`).
        image_size: in pixels, a number or (height, width).
        classes: of the head; None for a model without one.
        channels: of the image.
        remat: as in ViT and BiT.

    Raises:
        ValueError: if the image is not a whole number of patches.
    """
    size = pair(image_size, "image_size")
    if isinstance(spec, BiTSpec):
        rematerialised = blocks_to_remat(remat, sum(spec.units))
        rows = [_small("normalization", (*size, channels)), *_resnet(spec.units, spec.width, size, channels, True)]
        rows = [
            as_rematerialised(row) if row.name in {f"block_{i:02d}" for i in rematerialised} else row for row in rows
        ]
        *size, width = rows[-1].output
        rows += [_small("norm", (*size, width), 2 * width, 0), _small("relu", (*size, width)), _small("pool", (width,))]
        return [*rows, *_heads(spec, width, classes)]
    rows = _embedding(spec, size, channels)
    if remat is True:
        rows = [as_rematerialised(row) if row.name.startswith("stem_block") else row for row in rows]
    rows += _blocks(spec, rows[-1].output[0], remat, grid_size(size, spec.stride))
    n, d = rows[-1].output
    rows += [] if spec.fc_norm else [_small("encoder_norm", (n, d), 2 * d)]
    rows += _pool(spec, n)
    return [*rows, *_heads(spec, rows[-1].output[-1], classes)]


def parameters(rows: Iterable[LayerCount]) -> int:
    """The number of parameters of all rows."""
    return sum(row.parameters for row in rows)


def flops(rows: Iterable[LayerCount]) -> int:
    """Operations of one image's forward pass; layers whose products are not known are left out."""
    return sum(row.flops or 0 for row in rows)


def forward_activations(rows: Iterable[LayerCount]) -> int:
    """The numbers that one image's forward pass holds at once."""
    return max(row.alive for row in rows)


def training_activations(rows: Iterable[LayerCount]) -> int:
    """The numbers that one image's training step keeps for the gradients, where all layers train."""
    rows = list(rows)
    return sum(row.kept for row in rows) + max(row.recomputed for row in rows)
