"""Attention on demand: the weights of any block, their rollout, and maps on the image.

They work for a ViT, for a model built on its tensors (`vit.with_head(layer)`), and for a model that calls a ViT as a layer.
"""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_vit.layers import TokenPooling
from keras_vit.models import taps


def attention_weights(model: keras.Model, images: Any, blocks: Sequence[int] | None = None) -> dict[int, np.ndarray]:
    """The attention weights of a model's blocks.

    Args:
        model: a ViT, or a functional model that contains one.
        images: (b, h, w, c), what the model takes: pixels 0..255.
        blocks: block numbers, negative ones counting from the end; None for all.

    Returns:
        {block number: (b, k, n, n) float32}; each row, over the tokens attended to, sums to 1.

    Raises:
        ValueError: if the model has no attention blocks, or not those.
    """
    encoder, image = taps.encoder_in(model)
    layers = [layer for layer in taps.blocks(encoder) if hasattr(layer, "attention_weights")]
    if not layers:
        raise ValueError(f'"{model.name}" has no attention: it is a BiT. Its layers: {[x.name for x in encoder.layers]}.')
    try:
        numbers = {range(len(layers))[i]: None for i in (range(len(layers)) if blocks is None else blocks)}
    except IndexError:
        raise ValueError(f"blocks={blocks}: the model has blocks 0 to {len(layers) - 1}.") from None
    images = np.asarray(images, "float32")
    if encoder is not model:
        images = keras.Model(model.input, image)(images, training=False)
    inputs = keras.Model(encoder.input, [layers[i].input for i in numbers])(images, training=False)
    inputs = inputs if isinstance(inputs, (list, tuple)) else [inputs]
    return {i: keras.ops.convert_to_numpy(layers[i].attention_weights(x)).astype("float32") for i, x in zip(numbers, inputs)}


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
