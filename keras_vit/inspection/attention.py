"""Attention on demand: the weights of any block, their rollout, and maps on the image.

They work for a ViT, for a model built on its tensors (`vit.with_head(layer)`), and for a model that calls a ViT as a
layer.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.layers import AttentionPooling, TokenPooling
from keras_vit.models import taps


def _call(block) -> dict:
    """The symbolic arguments of a block's call: x (b, n, d), and its masks, Keras' own among them."""
    call = block._inbound_nodes[0].arguments
    given = {**dict(zip(("x", "mask", "attention_mask"), call.args)), **call.kwargs}
    implicit = getattr(given["x"], "_keras_mask", None)
    masks = {
        "mask": implicit if given.get("mask") is None else given["mask"],
        "attention_mask": given.get("attention_mask"),
    }
    return {"x": given["x"], **{name: mask for name, mask in masks.items() if mask is not None}}


def attention_blocks(model: keras.Model) -> tuple[keras.Model, list]:
    """(the model in whose graph the blocks are, its blocks with attention, in order).

    Raises:
        ValueError: if there are none, or the model merges or leaves out patches.
    """
    encoder, _ = taps.encoder_in(model)
    taps.check_whole_grid(encoder)
    layers = [layer for layer in taps.blocks(encoder) if hasattr(layer, "attention_weights")]
    if not layers:
        raise ValueError(
            f'"{model.name}" has no attention: it is a {taps.family_in(encoder).name}. Its layers:'
            f" {[x.name for x in encoder.layers]}."
        )
    return encoder, layers


def _converted(model, images):
    """Images, arrays, as float32 tensors of the engine; a list of them for a model with several inputs."""
    is_one = isinstance(model.input, keras.KerasTensor)
    convert = lambda x: ops.convert_to_tensor(np.asarray(x, "float32"))  # noqa: E731
    return convert(images) if is_one else [convert(x) for x in images]


def _computing(model, calls):
    """The function from tensors of images that `model` takes to `calls`, {key: {name: symbolic tensor, or anything
    else}}, computed.
    """
    encoder, image = taps.encoder_in(model)
    front = None if encoder is model else keras.Model(model.input, image)
    symbolic = {
        key: {name: t for name, t in call.items() if isinstance(t, keras.KerasTensor)} for key, call in calls.items()
    }
    tapped = keras.Model(encoder.input, symbolic)

    def compute(images):
        values = tapped(images if front is None else front(images, training=False), training=False)
        return {key: {**call, **values[key]} for key, call in calls.items()}

    return compute


def _weighing(model, blocks):
    """The function from tensors of images to an iterator of (block number, weights (b, k, n, n) float32), for each of
    `blocks`, or all.
    """
    _, layers = attention_blocks(model)
    try:
        numbers = {range(len(layers))[i]: None for i in (range(len(layers)) if blocks is None else blocks)}
    except IndexError:
        raise ValueError(f"blocks={blocks}: the model has blocks 0 to {len(layers) - 1}.") from None
    compute = _computing(model, {str(i): _call(layers[i]) for i in numbers})

    def each(images):
        calls = compute(images)
        for i in numbers:
            yield i, ops.cast(layers[i].attention_weights(**calls[str(i)]), "float32")

    return each


def each_attention(
    model: keras.Model, images: Any, blocks: Sequence[int] | None = None
) -> Iterator[tuple[int, np.ndarray]]:
    """The attention weights of a model's blocks, one block after the other, so that memory holds those of a single
    block.

    Args:
        model, images, blocks: as in `attention_weights`.

    Yields:
        (block number, (b, k, n, n) float32).

    Raises:
        ValueError: as in `attention_weights`, at the first step.
    """
    for i, weights in _weighing(model, blocks)(_converted(model, images)):
        yield i, ops.convert_to_numpy(weights)


def attention_weights(model: keras.Model, images: Any, blocks: Sequence[int] | None = None) -> dict[int, np.ndarray]:
    """The attention weights of a model's blocks.

    Args:
        model: a ViT, or a functional model that contains one.
        images: (b, h, w, c), what the model takes: pixels 0..255; a list for a model with several inputs, such as
            masks.
        blocks: block numbers, negative ones counting from the end; None for all.

    Returns:
        {block number: (b, k, n, n) float32}; each row, over the tokens attended to, sums to 1, or 0 where a mask leaves
        none.

    Raises:
        ValueError: if the model has no attention blocks, or not those.
    """
    return dict(each_attention(model, images, blocks))


def rollout(weights: Iterable[np.ndarray] | Mapping[int, np.ndarray]) -> np.ndarray:
    """Attention rollout (Abnar and Zuidema 2020): how much of each input token each output token contains.

    The heads are averaged, the identity is added for the residual, rows are normalised again, and the blocks are
    multiplied.

    Args:
        weights: (b, k, n, n) of each block, the first block first; also as `attention_weights` returns them.

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
    """The function from tensors of images to how much of each token the output reads after the last block, (b, n) or
    (1, n): of class and distillation token, of the patches, or by attention pooling.
    """
    encoder, blocks = attention_blocks(model)
    pool = next((layer for layer in encoder.layers if layer.name == "pool"), None)
    if isinstance(pool, AttentionPooling):
        compute = _computing(model, {"pool": _call(pool)})

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
    reads[:, n - h * w :] = 1 / (h * w)
    if isinstance(pool, keras.layers.Concatenate):  # pool="token_gap": the class token beside the patches' mean
        reads = reads / 2
        reads[:, 0] = 1 / 2
    return lambda images: reads


def _on_grid(model, reads, weights):
    """Weights (b, ..., n, n) as the output sees them by `reads` (b or 1, n), on the patch grid: (b, ..., h, w)."""
    h, w = taps.patch_grid(attention_blocks(model)[0])
    middle = weights.shape[1:-2]
    reads = ops.reshape(reads, (-1, *(1 for _ in middle), 1, reads.shape[-1]))
    rows = ops.matmul(reads, weights)[..., 0, -h * w :]  # (b, ..., n)
    return ops.reshape(rows, (-1, *middle, h, w))


def attention_map_function(model: keras.Model) -> Callable[[Any], Any]:
    """The function from images to `attention_maps` of them, tensors both, (b, height, width, c) -> (b, h, w): for
    graphs and exports.

    Raises:
        ValueError: as in `attention_weights`.
    """
    each, read = _weighing(model, None), _reading(model)

    def maps(images):
        flow = _rolled(weights for _, weights in each(images))
        found = _on_grid(model, read(images), flow)
        return found / ops.max(found, axis=(1, 2), keepdims=True)

    return maps


def attention_maps(model: keras.Model, images: Any) -> np.ndarray:
    """What the output of a ViT attends to: the rollout's row of the token that it reads.

    That is the class token, with a distillation token the mean of both; else the mean over the patches, or what
    attention pooling (MAP) takes of each token; with pool="token_gap" the class token and the patches, one half each.

    Args:
        model: a ViT, or a functional model that contains one.
        images: (b, height, width, c).

    Returns:
        (b, h, w) on the patch grid, each map scaled to a maximum of 1.
    """
    return ops.convert_to_numpy(attention_map_function(model)(_converted(model, images)))


def head_map_function(model: keras.Model, block: int) -> Callable[[Any], Any]:
    """The function from images to one block's part of `head_maps`, tensors both, (b, height, width, c) -> (b, k, h, w).

    Raises:
        ValueError: as in `attention_weights`.
    """
    each, read = _weighing(model, [block]), _reading(model)

    def maps(images):
        [(_, weights)] = each(images)
        return _on_grid(model, read(images), weights)

    return maps


def head_maps(model: keras.Model, images: Any, blocks: Sequence[int] | None = None) -> dict[int, np.ndarray]:
    """What each head attends to from the token that the output reads (see `attention_maps`).

    Args:
        model, images, blocks: as in `attention_weights`.

    Returns:
        {block number: (b, k, h, w)}, the weights of the patches; with those of the other tokens they sum to 1.
    """
    images = _converted(model, images)
    reads = _reading(model)(images)
    return {i: ops.convert_to_numpy(_on_grid(model, reads, weights)) for i, weights in _weighing(model, blocks)(images)}
