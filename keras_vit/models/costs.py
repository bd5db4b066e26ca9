"""Costs of a layer: parameters, operations and activations, by formulas from its shapes.

All sizes are per image. Operations are those of matrix products and convolutions, 2 per multiply-add, as in tables of
FLOPs (half of them are "GMACs"). Activations are counted in numbers, 4 bytes each in float32 and 2 in bfloat16:

- alive: in memory at once in a forward pass at the layer's widest point, the residual stream included;
- kept: made by the layer and kept in training for the gradient: inputs of products, normalisations, softmax and GELU
  (table 2 of arXiv 2205.05198 for a block), without dropout's masks.
"""

import dataclasses
import math
import types
from collections.abc import Mapping
from typing import Any

from keras_vit.layers.attention.patch_groups import pattern_sizes
from keras_vit.layers.attention.self_attention import RELATIVE
from keras_vit.layers.blocks.mlp import MLPS
from keras_vit.models.encoder import BLOCK_ARGUMENTS, Reduction


@dataclasses.dataclass(frozen=True)
class LayerCount:
    """One layer's row.

    Attributes:
        name: of the layer in the model.
        output: output shape, without the batch.
        parameters: number of its weights' values.
        flops: operations of a forward pass; None if unknown.
        alive, kept: activations, see above.
        recomputed: kept by a rematerialised layer only during its own gradient.
    """

    name: str
    output: tuple[int, ...]
    parameters: int = 0
    flops: int | None = 0
    alive: int = 0
    kept: int = 0
    recomputed: int = 0


def dense(name: str, shape: tuple[int, ...], inputs: int, kept: int = 0) -> LayerCount:
    """A dense layer with bias, from `inputs` to an output of `shape`."""
    numbers, rows = math.prod(shape), math.prod(shape[:-1])
    return LayerCount(
        name, shape, (inputs + 1) * shape[-1], 2 * inputs * numbers, rows * inputs + numbers, kept or numbers
    )


def small(name: str, shape: tuple[int, ...], parameters: int = 0, kept: int | None = None) -> LayerCount:
    """A layer without products, with output the size of its input."""
    numbers = math.prod(shape)
    return LayerCount(name, shape, parameters, 0, 2 * numbers, numbers if kept is None else kept)


def as_rematerialised(row: LayerCount) -> LayerCount:
    """A layer's row if it keeps only its output, and recomputes the rest for its gradient."""
    return dataclasses.replace(row, kept=math.prod(row.output), recomputed=row.kept - math.prod(row.output))


def _attended(block, n):
    """(pairs of tokens that attend to each other, keys with their copies in groups) of a block on n tokens."""
    if block.pattern is None:
        return n * n // block.windows**2, n
    return pattern_sizes(block.pattern, block.grid, block.prefix, block.causal)


def _relative(block, n, inner):
    """(parameters, multiply-adds) of relative positions: an embedding or a number per head for each offset."""
    if block.positions not in RELATIVE:
        return 0, 0
    patches, others = n - block.prefix, 3 if block.prefix else 0
    if block.positions == "relative2d":
        return ((2 * block.grid[0] - 1) * (2 * block.grid[1] - 1) + others) * block.heads, 0
    offsets = 2 * patches - 1
    beside = (patches + 2 * block.prefix) * inner if block.prefix else 0
    return (offsets + others) * inner, patches * offsets * inner + beside


def _block_parameters(block, d, inner, hidden):
    """The parameters of a block, without those of positions."""
    biases = 2 + block.key_bias if block.qkv_bias else 0
    attention = (3 * d + biases) * inner + (inner + 1) * d + (4 * (inner // block.heads) if block.qk_norm else 0)
    mlp = (d + 1) * hidden + (block.mlp_dim + 1) * d + (2 * block.mlp_dim if block.hidden_norm else 0)
    return attention + mlp + 4 * d + (0 if block.layer_scale is None else 2 * d)


def transformer_block(
    name: str, n: int, d: int, arguments: Mapping[str, Any], reduction: Reduction | None = None
) -> LayerCount:
    """A TransformerBlock on n tokens of width d, or a ReducingBlock.

    Args:
        arguments: the block's, as its constructor takes them; its defaults for the others.
        reduction: of the patches between attention and MLP.
    """
    block = types.SimpleNamespace(**{**BLOCK_ARGUMENTS, **arguments})
    heads, mlp_dim, inner = block.heads, block.mlp_dim, block.heads * (block.head_dim or d // block.heads)
    hidden = MLPS[block.mlp_form].values * mlp_dim
    kept, merged = reduction or (None, 0)
    left = n if kept is None else block.prefix + kept
    m = left - merged
    pairs, keys = _attended(block, n)
    positions, products = _relative(block, n, inner)
    products += 4 * n * d * inner + 2 * pairs * inner + m * d * (hidden + mlp_dim)
    if merged:  # comparing one half of the patches with the other, and adding those that are merged
        patches = left - block.prefix
        products += (patches // 2) * (patches - patches // 2) * (inner // heads) + m * merged * (d + 1)
    # Normalised tokens, queries, keys, values, weights, their sum; then the residual stream, normalised, hidden,
    # activated, the output.
    saved = n * d + 2 * (n + keys) * inner + heads * pairs + 3 * m * d + 2 * m * hidden
    saved += (2 * n * inner if block.qk_norm else 0) + (m * mlp_dim if block.hidden_norm else 0)
    saved += 0 if block.layer_scale is None else (n + m) * d
    steps = (
        n * d + 3 * n * inner,  # normalised to queries, keys, values
        (n + 2 * keys) * inner + heads * pairs,  # queries and keys to scores, while the values wait
        keys * inner + 2 * heads * pairs,  # scores to weights
        m * (hidden + mlp_dim),  # hidden to activated
    )
    parameters = _block_parameters(block, d, inner, hidden) + positions
    row = LayerCount(name, (m, d), parameters, 2 * products, n * d + max(steps), saved)
    return as_rematerialised(row) if block.remat else row


def axial_block(rows: LayerCount, columns: LayerCount) -> LayerCount:
    """An AxialBlock, from the rows of its halves."""
    return dataclasses.replace(
        rows,
        parameters=rows.parameters + columns.parameters,
        flops=(rows.flops or 0) + (columns.flops or 0),
        alive=max(rows.alive, columns.alive),
        kept=rows.kept + columns.kept,
        recomputed=max(rows.recomputed, columns.recomputed),
    )


def attention_pooling(name: str, n: int, d: int, heads: int, mlp_dim: int) -> LayerCount:
    """MAP: one query on n tokens of width d, then an MLP."""
    parameters = d + 4 * (d + 1) * d + 2 * d + (d + 1) * mlp_dim + (mlp_dim + 1) * d
    products = 2 * n * d * d + 2 * n * d + 2 * d * d + 2 * d * mlp_dim
    return LayerCount(name, (d,), parameters, 2 * products, 3 * n * d, 2 * n * d + heads * n + 5 * d + 2 * mlp_dim)


def halved(size: tuple[int, int], stride: int = 2) -> tuple[int, int]:
    """A size after a strided layer, rounded up."""
    return -(-size[0] // stride), -(-size[1] // stride)


def conv(name: str, size: tuple[int, int], inputs: int, filters: int, kernel: int, stride: int = 1) -> LayerCount:
    """A convolution without bias: from (*size, inputs) to `filters` channels."""
    out = halved(size, stride)
    numbers, parameters = math.prod(out) * filters, kernel**2 * inputs * filters
    return LayerCount(
        name, (*out, filters), parameters, 2 * math.prod(out) * parameters, math.prod(size) * inputs + numbers, numbers
    )


def bottleneck_unit(
    name: str, size: tuple[int, int], inputs: int, filters: int, stride: int, preactivation: bool
) -> LayerCount:
    """A BottleneckUnit: 1x1, 3x3 and 1x1 convolutions, and the shortcut's if its shape changes."""
    out, outer = halved(size, stride), 4 * filters
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
        kept += after * outer * (2 if projects else 1)  # inputs of the last normalisations
    steps = (
        2 * before * inputs if preactivation else 0,
        before * (inputs + filters),
        2 * before * filters,
        2 * after * outer,
    )
    return LayerCount(name, (*out, outer), parameters, 2 * products, after * outer + max(steps), kept)


def resnet(
    stages: tuple[int, ...], width: int, size: tuple[int, int], channels: int, preactivation: bool
) -> list[LayerCount]:
    """The rows of a hybrid's stem or a BiT's trunk, root included."""
    names = (f"stem_block{i + 1}_unit{j + 1}" for i, units in enumerate(stages) for j in range(units))
    if preactivation:
        names = (f"block_{block:02d}" for block in range(sum(stages)))
    rows = [conv("stem_conv", size, channels, width, 7, 2)]
    if not preactivation:
        rows += [small("stem_norm", rows[-1].output, 2 * width, 0), small("stem_relu", rows[-1].output)]
    h, w, _ = rows[-1].output
    size = (h, w)
    pooled = (*halved(size), width)
    alive = math.prod(size) * width + math.prod(pooled)
    rows.append(LayerCount("stem_pool", pooled, alive=alive, kept=math.prod(pooled)))
    for i, units in enumerate(stages):
        for j in range(units):
            h, w, inputs = rows[-1].output
            stride = 2 if i and not j else 1
            rows.append(bottleneck_unit(next(names), (h, w), inputs, width * 2**i, stride, preactivation))
    return rows
