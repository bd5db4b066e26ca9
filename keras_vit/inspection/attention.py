"""Attention on demand: the weights of any block, their rollout, and maps on the image."""

import keras
import numpy as np


def attention_weights(model, images, blocks=None):
    """Attention weights of a ViT, or of a functional model that holds its blocks.

    Args:
        model: with layers named block_00...
        images: (b, h, w, c), pixels 0..255.
        blocks: block numbers, negative ones from the end; None for all.

    Returns:
        {block number: numpy (b, k, n, n) float32}, rows over the tokens attended to.

    Raises:
        ValueError: if the model has no blocks, or not those.
    """
    found = [layer for layer in model.layers if layer.name.startswith("block_") and hasattr(layer, "attention_weights")]
    if not found:
        raise ValueError(
            f'"{model.name}" has no attention blocks named block_00... Its layers: {[x.name for x in model.layers]}.'
        )
    try:
        chosen = {range(len(found))[i]: None for i in (range(len(found)) if blocks is None else blocks)}
    except IndexError:
        raise ValueError(f"blocks={blocks}: the model has blocks 0 to {len(found) - 1}.") from None
    inputs = keras.Model(model.input, [found[i].input for i in chosen])(np.asarray(images, "float32"), training=False)
    inputs = inputs if isinstance(inputs, list) else [inputs]
    return {i: keras.ops.convert_to_numpy(found[i].attention_weights(x)).astype("float32") for i, x in zip(chosen, inputs)}


def rollout(weights):
    """Attention rollout (Abnar and Zuidema 2020): how much of each input token each output token holds.

    Average the heads, add the identity, re-normalise the rows, multiply through the blocks.

    Args:
        weights: a list of (b, k, n, n), first block first.

    Returns:
        (b, n, n), rows summing to 1.
    """
    total = None
    for block in weights:
        mixed = block.mean(axis=1) + np.eye(block.shape[-1])  # (b, n, n)
        mixed = mixed / mixed.sum(axis=-1, keepdims=True)
        total = mixed if total is None else mixed @ total
    return total


def attention_maps(model, images):
    """What a ViT's output looks at: rollout read from the class token, or averaged over the patches without one.

    Args:
        model: a ViT.
        images: (b, height, width, c).

    Returns:
        (b, h, w) on the patch grid, each map scaled to a maximum of 1.
    """
    flow = rollout(list(attention_weights(model, images).values()))
    prefix = model.spec.prefix
    rows = flow[:, 0] if model.spec.pool in ("token", "token_gap") else flow[:, prefix:].mean(axis=1)  # (b, n)
    maps = rows[:, prefix:].reshape(-1, *model.grid)  # (b, h, w)
    return maps / maps.max(axis=(1, 2), keepdims=True)
