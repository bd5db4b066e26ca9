"""A Swin's costs, layer by layer, with the model's layer names."""

import math

from keras_vit.layers.attention.windows import padding
from keras_vit.models.checks import blocks_to_remat
from keras_vit.models.costs import LayerCount, as_rematerialised, dense, small
from keras_vit.models.swin_spec import make_stages

_HIDDEN = 512  # units of a continuous bias' MLP


def _attention_parameters(spec, window, d, heads):
    biases = d * (3 if spec.version == "v1" else 2) if spec.qkv_bias else 0
    offsets = math.prod(2 * side - 1 for side in window)
    bias = offsets * heads if spec.version == "v1" else _HIDDEN * (3 + heads) + heads
    return 4 * d * d + d + biases + bias


def _block(name, spec, stage, d, heads):
    """A SwinBlock on maps of (h, w), padded to m windows of k places each."""
    (h, w), window, _ = stage
    below, right = padding((h, w), window)
    n, k, hidden = h * w, math.prod(window), int(spec.mlp_ratio * d)
    padded = (h + below) * (w + right)  # m * k
    parameters = _attention_parameters(spec, window, d, heads) + (d + 1) * hidden + (hidden + 1) * d + 4 * d
    products = 4 * padded * d * d + 2 * padded * k * d + 2 * n * d * hidden
    v2 = spec.version == "v2"
    if v2:
        products += math.prod(2 * side - 1 for side in window) * _HIDDEN * (2 + heads)
    # Windows, queries, keys, values, weights, their sum; then the residual stream, normalised, hidden, activated, out.
    kept = padded * d + 4 * padded * d + heads * padded * k + 3 * n * d + 2 * n * hidden
    kept += 2 * padded * d if v2 else 0  # queries and keys before they have length 1
    steps = (
        4 * padded * d,  # windows to queries, keys, values
        3 * padded * d + heads * padded * k,  # queries and keys to scores
        padded * d + 2 * heads * padded * k,  # scores to weights, while the values wait
        n * (d + hidden) if v2 else 2 * n * hidden,
        2 * n * hidden,  # hidden to activated
    )
    return LayerCount(name, (h, w, d), parameters, 2 * products, n * d + max(steps), kept)


def _merging(name, spec, size, d):
    """A PatchMerging of maps of width d to `size`."""
    n, norm = math.prod(size), 8 * d if spec.version == "v1" else 4 * d
    joined, out = 4 * n * d, 2 * n * d
    return LayerCount(name, (*size, 2 * d), 8 * d * d + norm, 2 * joined * 2 * d, 2 * joined, joined + out)


def _embedding(spec, size, channels, grid):
    """The rows from pixels to the first map."""
    padded = tuple(side * p for side, p in zip(grid, spec.patch_size))
    rows = [small("normalization", (*size, channels))]
    rows += [small("padding", (*padded, channels))] if padded != tuple(size) else []
    n, d = math.prod(grid), spec.width
    rows.append(dense("patch_encoder", (n, d), math.prod(spec.patch_size) * channels))
    rows += [small("stem_norm", (n, d), 2 * d), small("embedding_dropout", (n, d), 0, 0)]
    return [*rows, small("stem_map", (*grid, d), 0, 0)]


def swin_layer_counts(spec, size, classes, channels, remat) -> list[LayerCount]:
    """The rows of a Swin's layers, see planning.counting.layer_counts; `size` is a pair."""
    stages, rematerialised = make_stages(spec, size), blocks_to_remat(remat, spec.repeated)
    rows = _embedding(spec, size, channels, stages[0].size)
    for i, stage in enumerate(spec.stage_of_block):
        d = spec.width * 2**stage
        if stage and i == sum(spec.depths[:stage]):
            rows.append(_merging(f"merging_{i:02d}", spec, stages[stage].size, d // 2))
        made = _block(f"block_{i:02d}", spec, stages[stage], d, spec.heads * 2**stage)
        rows.append(as_rematerialised(made) if i in rematerialised else made)
    shape = rows[-1].output
    rows += [small("norm", shape, 2 * shape[-1]), small("pool", shape[-1:])]
    return [*rows, *([] if classes is None else [dense("head", (classes,), shape[-1])])]
