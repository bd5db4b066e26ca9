"""Attention inside the windows of a Swin: weights, maps of each head, and rollout through all stages.

A vector of shares runs through the blocks backwards, so that no matrix among all places is needed. Letters: m windows
of n places.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.inspection.calls import call_arguments, chosen, computing, converted
from keras_vit.models import taps


def window_blocks(model: keras.Model) -> list:
    """The blocks with attention inside windows, in order."""
    return taps.blocks(taps.encoder_in(model)[0])


def _inputs(model, numbers):
    """A function from image tensors to {block number: the block's input (b, h, w, d)}."""
    blocks = window_blocks(model)
    compute = computing(model, {str(i): {"x": call_arguments(blocks[i])["x"]} for i in numbers})
    return lambda images: {int(i): call["x"] for i, call in compute(images).items()}


def _even(x):
    """Equal shares (b, h, w) float32 of a map (b, h, w, d)."""
    h, w = x.shape[1:3]
    return ops.ones_like(x[..., 0], dtype="float32") / (h * w)


def _before_merging(shares, size):
    """Shares (b, h', w') of merged places as those of the places merged, on a map of `size` (h, w)."""
    for axis, side in zip((1, 2), size):
        factor = -(-side // shares.shape[axis])
        shares = ops.repeat(shares, factor, axis=axis) / factor
    return shares[:, : size[0], : size[1]]


def each_window_map(model: keras.Model, blocks: Sequence[int] | None = None) -> Callable[[Any], Iterator]:
    """A function from image tensors to (block number, maps (b, k, h, w)): what heads attend to from all places."""
    layers = window_blocks(model)
    numbers = chosen(len(layers), blocks)
    inputs = _inputs(model, numbers)

    def each(images):
        for i, x in inputs(images).items():
            yield i, ops.transpose(layers[i].received(x, _even(x)), (0, 3, 1, 2))

    return each


def window_shares(model: keras.Model) -> Callable[[Any], Any]:
    """A function from image tensors to rollout: the share (b, h, w) of each patch in the mean of the last map."""
    layers = window_blocks(model)
    inputs = _inputs(model, range(len(layers)))

    def rollout(images):
        found, shares = inputs(images), None
        for i in reversed(range(len(layers))):
            x = found[i]
            shares = _even(x) if shares is None else _before_merging(shares, x.shape[1:3])
            shares = (shares + ops.mean(layers[i].received(x, shares), axis=-1)) / 2
        return shares

    return rollout


def each_window_attention(model: keras.Model, images: Any) -> Iterator[np.ndarray]:
    """The attention weights (b, m, k, n, n) float32 inside each block's windows, block by block.

    Args:
        model: a Swin, or a functional model that contains one.
        images: (b, height, width, c), pixels 0..255.
    """
    layers = window_blocks(model)
    for i, x in _inputs(model, range(len(layers)))(converted(model, images)).items():
        weights = ops.convert_to_numpy(ops.cast(layers[i].window_weights(x), "float32"))
        yield weights.reshape(len(images), -1, *weights.shape[1:])
