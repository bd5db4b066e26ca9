"""Mean attention distance (figures 7 and 11 of arXiv 2010.11929) and entropy of attention heads."""

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_vit.inspection.attention import attention_blocks, each_attention
from keras_vit.models import taps
from keras_vit.training.checks.inputs import check_images


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
        even_distance: distance of uniform attention to all patches, in pixels.
        even_entropy: entropy of uniform attention to all tokens, in bits.
    """

    distance: np.ndarray
    entropy: np.ndarray
    even_distance: float
    even_entropy: float


def patch_stride(encoder: keras.Model) -> tuple[float, float]:
    """Pixels (height, width) from one patch token of a ViT to the next."""
    height, width = encoder.input_shape[1:3]
    h, w = taps.patch_grid(encoder)
    return height / h, width / w


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
    encoder, blocks = attention_blocks(model)
    grid, stride = taps.patch_grid(encoder), patch_stride(encoder)
    parts = []
    for start in range(0, len(images), batch_size):
        batch = images[start : start + batch_size]
        rows = [
            (mean_attention_distance(w, grid, stride), attention_entropy(w)) for _, w in each_attention(model, batch)
        ]
        parts.append(np.array(rows))  # (l, 2, b, k)
        if advance:
            advance(len(batch))
    distance, entropy = np.nanmean(np.concatenate(parts, axis=2), axis=2).swapaxes(0, 1)  # (l, 2, b, k) -> (2, l, k)
    even = float(patch_distances(grid, stride).mean()), float(np.log2(blocks[0].output.shape[1]))
    return HeadStatistics(distance, entropy, *even)
