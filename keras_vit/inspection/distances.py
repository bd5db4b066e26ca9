"""Mean attention distance (figures 7 and 11 of arXiv 2010.11929) and entropy of attention heads."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_vit.fit.checks.inputs import check_images
from keras_vit.inspection.attention import attends_in_windows, attention_blocks, each_attention
from keras_vit.inspection.window_maps import each_window_attention, window_blocks
from keras_vit.models import taps


def patch_distances(grid: tuple[int, int], stride: tuple[float, float]) -> np.ndarray:
    """Distances (h*w, h*w) float64, in pixels, between the centres of patches on a grid (h, w).

    `stride`: pixels (height, width) from one patch to the next.
    """
    places = np.indices(grid).reshape(2, -1).T * np.asarray(stride, "float64")  # (h*w, 2)
    return np.sqrt(np.square(places[:, None] - places[None]).sum(-1))  # (h*w, 1, 2) - (1, h*w, 2) -> (h*w, h*w)


def mean_attention_distance(weights: np.ndarray, grid: tuple[int, int], stride: tuple[float, float]) -> np.ndarray:
    """Distance from a patch to the patches it attends to, weighted by attention and averaged over patches.

    Leaves out class token, distillation token and registers, which have no position, and normalises attention over the
    patches.

    Args:
        weights: (b, k, n, n). The last h*w of the n tokens are patches.
        grid, stride: as in `patch_distances`.

    Returns:
        (b, k) float64, in pixels; NaN for a head that attends to no patch.
    """
    distances = patch_distances(grid, stride)
    # (b, k, n, n) -> (b, k, h*w, h*w)
    patches = np.asarray(weights, "float64")[..., -len(distances) :, -len(distances) :]
    total = patches.sum(-1)  # (b, k, h*w)
    attending = total > 0
    weighted = (patches * distances).sum(-1) / np.where(attending, total, 1)
    count = attending.sum(-1)  # (b, k)
    return np.where(count, weighted.sum(-1), np.nan) / np.maximum(count, 1)


def attention_entropy(weights: np.ndarray) -> np.ndarray:
    """Entropy of the attention weights, averaged over tokens: (b, k, n, n) -> (b, k) float64, in bits.

    Uniform attention to m tokens has log2(m) bits, attention to a single one 0.
    """
    p = np.asarray(weights, "float64")
    return -(p * np.log2(np.where(p > 0, p, 1))).sum(-1).mean(-1)


class HeadStatistics(NamedTuple):
    """Statistics of a model's heads, averaged over images.

    Attributes:
        distance: (l, k). Mean attention distance per block and head, in pixels.
        entropy: (l, k). Entropy of the attention, in bits.
        even_distance: distance of uniform attention to all patches, in pixels; in windows, (l,).
        even_entropy: entropy of uniform attention to all tokens, in bits; in windows, (l,).

    In windows, uniform attention is that inside one; blocks with fewer heads than the most have NaN at the end.
    """

    distance: np.ndarray
    entropy: np.ndarray
    even_distance: float | np.ndarray
    even_entropy: float | np.ndarray


def patch_stride(encoder: keras.Model) -> tuple[float, float]:
    """Pixels (height, width) from one patch token of a ViT to the next."""
    height, width = encoder.input_shape[1:3]
    h, w = taps.patch_grid(encoder)
    return height / h, width / w


def _among_all(model):
    """(a function from images to distances and entropies (l, 2, b, k), those of uniform attention) of a ViT."""
    encoder, blocks = attention_blocks(model)
    grid, stride = taps.patch_grid(encoder), patch_stride(encoder)

    def measure(images):
        found = (weights for _, weights in each_attention(model, images))
        return np.array([(mean_attention_distance(w, grid, stride), attention_entropy(w)) for w in found])

    return measure, (float(patch_distances(grid, stride).mean()), float(np.log2(blocks[0].output.shape[1])))


def _in_windows(model):
    """As `_among_all`, of a Swin: inside windows, averaged over an image's."""
    blocks = window_blocks(model)
    places = [(block.attention.window, stride) for block, stride in zip(blocks, taps.encoder_in(model)[0].spec.strides)]
    heads = max(block.attention.heads for block in blocks)

    def measure(images):
        rows = np.full((len(blocks), 2, len(images), heads), np.nan)
        for row, place, w in zip(rows, places, each_window_attention(model, images)):  # w: (b, m, k, n, n)
            flat = w.reshape(-1, *w.shape[2:])
            for i, values in enumerate((mean_attention_distance(flat, *place), attention_entropy(flat))):
                row[i, :, : w.shape[2]] = values.reshape(*w.shape[:3]).mean(1)  # (b, m, k) -> (b, k)
        return rows

    even = np.array([(patch_distances(*place).mean(), np.log2(math.prod(place[0]))) for place in places])
    return measure, even.T


def head_statistics(
    model: keras.Model, images: Any, batch_size: int = 8, advance: Callable[[int], None] | None = None
) -> HeadStatistics:
    """Mean attention distance and entropy of every head, averaged over images.

    Args:
        model: a ViT, or a functional model that contains one, with one input.
        images: (b, height, width, c). Pixels 0..255; the paper averages over 128 images.
        batch_size: images per batch.
        advance: function to call with the number of finished images, for progress.

    Raises:
        ValueError: a model without attention, no images, or images on another scale.
    """
    if not len(images):
        raise ValueError("head_statistics needs images (b, height, width, c), got none.")
    check_images(model, images)
    measure, even = (_in_windows if attends_in_windows(model) else _among_all)(model)
    parts = []
    for start in range(0, len(images), batch_size):
        batch = images[start : start + batch_size]
        parts.append(measure(batch))  # (l, 2, b, k)
        if advance:
            advance(len(batch))
    found = np.concatenate(parts, axis=2)
    known = ~np.isnan(found)
    total = np.where(known, found, 0).sum(2) / np.where(known.any(2), known.sum(2), np.nan)  # (l, 2, b, k) -> (l, 2, k)
    distance, entropy = total.swapaxes(0, 1)
    return HeadStatistics(distance, entropy, *even)
