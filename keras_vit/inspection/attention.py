"""Attention on demand: the weights of any block, their rollout, and maps on the image.

For a ViT, a model built on its tensors (`vit.with_head(layer)`), or a model that calls a ViT as a layer.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.inspection.calls import call_arguments, chosen, computing, converted
from keras_vit.inspection.window_maps import each_window_map, window_shares
from keras_vit.layers import AttentionPooling, MeanPooling, TokenPooling
from keras_vit.models import taps


def attends_in_windows(model: keras.Model) -> bool:
    """Whether the blocks attend inside windows of maps, and so have no weights among all tokens."""
    spec = taps.family_in(taps.encoder_in(model)[0]).spec
    return spec.has_attention_maps and not spec.has_attention


def attention_blocks(model: keras.Model) -> tuple[keras.Model, list]:
    """(model with the blocks in its graph, its attention blocks in order).

    Raises:
        ValueError: there are none, or the model merges or drops patches.
    """
    encoder, _ = taps.encoder_in(model)
    taps.check_whole_grid(encoder)
    layers = [layer for layer in taps.blocks(encoder) if hasattr(layer, "attention_weights")]
    if not layers:
        family = taps.family_in(encoder)
        raise ValueError(
            f'"{model.name}" has {family.spec.lacks}: it is a {family.name}. Its layers:'
            f" {[x.name for x in encoder.layers]}."
        )
    return encoder, layers


def _weighing(model, blocks):
    """A function from image tensors to (block number, weights (b, k, n, n) float32) of `blocks`, or all, in turn."""
    _, layers = attention_blocks(model)
    numbers = chosen(len(layers), blocks)
    compute = computing(model, {str(i): call_arguments(layers[i]) for i in numbers})

    def each(images):
        calls = compute(images)
        for i in numbers:
            yield i, ops.cast(layers[i].attention_weights(**calls[str(i)]), "float32")

    return each


def each_attention(
    model: keras.Model, images: Any, blocks: Sequence[int] | None = None
) -> Iterator[tuple[int, np.ndarray]]:
    """As `attention_weights`, but yields (block number, (b, k, n, n) float32) one block at a time to save memory."""
    for i, weights in _weighing(model, blocks)(converted(model, images)):
        yield i, ops.convert_to_numpy(weights)


def attention_weights(model: keras.Model, images: Any, blocks: Sequence[int] | None = None) -> dict[int, np.ndarray]:
    """The attention weights of a model's blocks.

    Args:
        model: a ViT, or a functional model that contains one.
        images: (b, h, w, c), pixels 0..255; a list for a model with several inputs, such as masks.
        blocks: block numbers, negative ones from the end; None for all.

    Returns:
        {block number: (b, k, n, n) float32}; rows, over the tokens attended to, sum to 1, or to 0 if fully masked.

    Raises:
        ValueError: no attention blocks, or not these, or images on another scale.
    """
    return dict(each_attention(model, images, blocks))


def rollout(weights: Iterable[np.ndarray] | Mapping[int, np.ndarray]) -> np.ndarray:
    """Attention rollout (Abnar and Zuidema 2020): the share of each input token in each output token.

    Averages the heads, adds the identity for the residual, normalises rows again, and multiplies the blocks.

    Args:
        weights: (b, k, n, n) of each block, first block first; also as `attention_weights` returns them.

    Returns:
        (b, n, n), rows summing to 1.
    """
    blocks = weights.values() if isinstance(weights, Mapping) else weights
    return ops.convert_to_numpy(_rolled(ops.convert_to_tensor(block) for block in blocks))


def _rolled(blocks):
    """`rollout` of tensors."""
    total = None
    for block in blocks:
        mixed = ops.mean(block, axis=1) + ops.eye(block.shape[-1], dtype=block.dtype)  # (b, k, n, n) -> (b, n, n)
        mixed = mixed / ops.sum(mixed, axis=-1, keepdims=True)
        total = mixed if total is None else ops.matmul(mixed, total)
    return total


def _reading(model):
    """A function from image tensors to each token's share (b or 1, n) in what the output reads after the last block."""
    encoder, blocks = attention_blocks(model)
    pool = next((layer for layer in encoder.layers if layer.name == "pool"), None)
    if isinstance(pool, AttentionPooling):
        compute = computing(model, {"pool": call_arguments(pool)})

        def read(images):
            weights = ops.cast(pool.attention_weights(**compute(images)["pool"]), "float32")
            return ops.mean(weights, axis=1)[:, 0]  # (b, k, 1, n) -> (b, n)

        return read
    h, w = taps.patch_grid(encoder)
    n = blocks[-1].output.shape[1]
    reads = np.zeros((1, n), "float32")
    if isinstance(pool, TokenPooling):
        tokens = 2 if any(layer.name == "pool_dist" for layer in encoder.layers) else 1
        reads[:, :tokens] = 1 / tokens
        return lambda images: reads
    if isinstance(pool, MeanPooling) and not pool.prefix:  # pool="mean": all tokens
        return lambda images: reads + 1 / n
    reads[:, n - h * w :] = 1 / (h * w)
    if isinstance(pool, keras.layers.Concatenate):  # pool="token_gap": class token and patches' mean
        reads = reads / 2
        reads[:, 0] = 1 / 2
    return lambda images: reads


def _on_grid(model, reads, weights):
    """Weights (b, ..., n, n), read with shares `reads` (b or 1, n), on the patch grid: (b, ..., h, w)."""
    h, w = taps.patch_grid(attention_blocks(model)[0])
    middle = weights.shape[1:-2]
    reads = ops.reshape(reads, (-1, *(1 for _ in middle), 1, reads.shape[-1]))
    rows = ops.matmul(reads, weights)[..., 0, -h * w :]  # (b, ..., n)
    return ops.reshape(rows, (-1, *middle, h, w))


def _token_shares(model):
    """A function from image tensors to the patches' shares (b, h, w) in what the output reads, through all blocks."""
    each, read = _weighing(model, None), _reading(model)
    return lambda images: _on_grid(model, read(images), _rolled(weights for _, weights in each(images)))


def attention_map_function(model: keras.Model) -> Callable[[Any], Any]:
    """`attention_maps` as a function of tensors, (b, height, width, c) -> (b, h, w), for graphs and exports."""
    shares = window_shares(model) if attends_in_windows(model) else _token_shares(model)

    def maps(images):
        found = shares(images)
        return found / ops.max(found, axis=(1, 2), keepdims=True)

    return maps


def attention_maps(model: keras.Model, images: Any) -> np.ndarray:
    """The attention of a model's output: the rollout's row of the token that it reads.

    That is the class token (averaged with the distillation token), else the mean over patches, or attention pooling's
    (MAP) share of each token; with pool="token_gap" half the class token and half the patches. In a Swin, which reads
    the mean of its map, merged places get equal parts.

    Args:
        model: a ViT or Swin, or a functional model that contains one.
        images: (b, height, width, c).

    Returns:
        (b, h, w) on the patch grid, each map scaled to a maximum of 1.
    """
    return ops.convert_to_numpy(attention_map_function(model)(converted(model, images)))


def _each_head_map(model, blocks):
    """A function from image tensors to (block number, maps (b, k, h, w)) of `blocks`, or all, in turn."""
    if attends_in_windows(model):
        return each_window_map(model, blocks)
    weighing, read = _weighing(model, blocks), _reading(model)

    def each(images):
        reads = read(images)
        for i, weights in weighing(images):
            yield i, _on_grid(model, reads, weights)

    return each


def head_map_function(model: keras.Model, block: int) -> Callable[[Any], Any]:
    """One block's part of `head_maps` as a function of tensors, (b, height, width, c) -> (b, k, h, w)."""
    each = _each_head_map(model, [block])

    def maps(images):
        [(_, found)] = each(images)
        return found

    return maps


def head_maps(model: keras.Model, images: Any, blocks: Sequence[int] | None = None) -> dict[int, np.ndarray]:
    """The attention of each head from the token that the output reads (see `attention_maps`).

    Args:
        model, images, blocks: as in `attention_weights`.

    Returns:
        {block number: (b, k, h, w)}, weights of the patches, in a Swin of the block's map; including all other tokens,
            and zeros that fill windows, they sum to 1.
    """
    each = _each_head_map(model, blocks)
    return {i: ops.convert_to_numpy(maps) for i, maps in each(converted(model, images))}
