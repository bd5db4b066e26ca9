"""Attention on demand: the weights of any block, their rollout, and maps on the image.

They work for a ViT, for a model built on its tensors (`vit.with_head(layer)`), and for a model that calls a ViT as a layer.
"""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_vit.layers import TokenPooling
from keras_vit.models import taps


def _call(block) -> dict:
    """The symbolic arguments of a block's call: x (b, n, d), and its masks, Keras' own among them."""
    call = block._inbound_nodes[0].arguments
    given = {**dict(zip(("x", "mask", "attention_mask"), call.args)), **call.kwargs}
    implicit = getattr(given["x"], "_keras_mask", None)
    masks = {"mask": implicit if given.get("mask") is None else given["mask"], "attention_mask": given.get("attention_mask")}
    return {"x": given["x"], **{name: mask for name, mask in masks.items() if mask is not None}}


def attention_weights(model: keras.Model, images: Any, blocks: Sequence[int] | None = None) -> dict[int, np.ndarray]:
    """The attention weights of a model's blocks.

    Args:
        model: a ViT, or a functional model that contains one.
        images: (b, h, w, c), what the model takes: pixels 0..255; a list for a model with several inputs, such as masks.
        blocks: block numbers, negative ones counting from the end; None for all.

    Returns:
        {block number: (b, k, n, n) float32}; each row, over the tokens attended to, sums to 1, or 0 where a mask leaves none.

    Raises:
        ValueError: if the model has no attention blocks, or not those.
    """
    encoder, image = taps.encoder_in(model)
    taps.check_whole_grid(encoder)
    layers = [layer for layer in taps.blocks(encoder) if hasattr(layer, "attention_weights")]
    if not layers:
        raise ValueError(f'"{model.name}" has no attention: it is a BiT. Its layers: {[x.name for x in encoder.layers]}.')
    try:
        numbers = {range(len(layers))[i]: None for i in (range(len(layers)) if blocks is None else blocks)}
    except IndexError:
        raise ValueError(f"blocks={blocks}: the model has blocks 0 to {len(layers) - 1}.") from None
    is_one = isinstance(model.input, keras.KerasTensor)
    images = np.asarray(images, "float32") if is_one else [np.asarray(x, "float32") for x in images]
    if encoder is not model:
        images = keras.Model(model.input, image)(images, training=False)
    calls = {str(i): _call(layers[i]) for i in numbers}
    symbolic = {i: {name: t for name, t in call.items() if isinstance(t, keras.KerasTensor)} for i, call in calls.items()}
    values = keras.Model(encoder.input, symbolic)(images, training=False)
    weights = {i: layers[int(i)].attention_weights(**{**call, **values[i]}) for i, call in calls.items()}
    return {int(i): keras.ops.convert_to_numpy(w).astype("float32") for i, w in weights.items()}


def rollout(weights: list[np.ndarray]) -> np.ndarray:
    """Attention rollout (Abnar and Zuidema 2020): how much of each input token each output token contains.

    The heads are averaged, the identity is added for the residual, rows are normalised again, and the blocks are multiplied.

    Args:
        weights: a list of (b, k, n, n), first block first.

    Returns:
        (b, n, n), rows summing to 1.
    """
    total = None
    for block in weights:
        mixed = block.mean(axis=1) + np.eye(block.shape[-1])  # (b, k, n, n) -> (b, n, n)
        mixed = mixed / mixed.sum(axis=-1, keepdims=True)
        total = mixed if total is None else mixed @ total
    return total


def attention_maps(model: keras.Model, images: Any) -> np.ndarray:
    """What the output of a ViT attends to: the rollout's row of the class token, or the mean over the patches without one.

    Args:
        model: a ViT, or a functional model that contains one.
        images: (b, height, width, c).

    Returns:
        (b, h, w) on the patch grid, each map scaled to a maximum of 1.
    """
    flow = rollout(list(attention_weights(model, images).values()))
    encoder, _ = taps.encoder_in(model)
    h, w = encoder.get_layer("position_embedding").grid
    prefix = flow.shape[-1] - h * w
    pool = next((layer for layer in encoder.layers if layer.name == "pool"), None)
    reads_token = isinstance(pool, (TokenPooling, keras.layers.Concatenate))  # pool="token" or "token_gap"
    rows = flow[:, 0] if reads_token else flow[:, prefix:].mean(axis=1)  # (b, n, n) -> (b, n)
    maps = rows[:, prefix:].reshape(-1, h, w)  # (b, h*w) -> (b, h, w)
    return maps / maps.max(axis=(1, 2), keepdims=True)
