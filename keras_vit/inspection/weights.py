"""Inspection of weights: first-layer filters and similarity of position embeddings (figure 7 of arXiv 2010.11929)."""

from typing import NamedTuple

import keras
import numpy as np

from keras_vit.inspection.components import principal_components
from keras_vit.layers import AddPositionEmbs, PaletteEncoder, StdConv2D
from keras_vit.models import taps

# The layer applied to pixels: the root of a BiT or hybrid, a stem's first convolution, or the patch embedding.
_FIRST = ("stem_conv", "stem_conv1", "patch_encoder")


class FirstFilters(NamedTuple):
    """The filters applied to the pixels.

    Attributes:
        kernel: (p, q, c, d) float32. d filters, after weight standardisation if any.
        layer: layer name.
        embeds_patches: whether the filters embed patches, so that their outputs are the tokens.
    """

    kernel: np.ndarray
    layer: str
    embeds_patches: bool


def first_filters(model: keras.Model) -> FirstFilters:
    """Filters of the first layer of a model or its encoder; ValueError without a single encoder, or with a palette."""
    encoder, _ = taps.encoder_in(model)
    names = {layer.name for layer in encoder.layers}
    layer = encoder.get_layer(next(name for name in _FIRST if name in names))
    if isinstance(layer, PaletteEncoder):
        raise ValueError(
            f'"{model.name}" has no filters on pixels: it embeds each pixel as its nearest colour of a palette.'
        )
    kernel = layer.standardized() if isinstance(layer, StdConv2D) else layer.kernel
    return FirstFilters(keras.ops.convert_to_numpy(kernel).astype("float32"), layer.name, layer.name == "patch_encoder")


def principal_filters(kernel: np.ndarray, count: int = 28) -> tuple[np.ndarray, np.ndarray]:
    """Principal components of a patch embedding's filters (p, q, c, d), at most `count`; the paper shows 28.

    Returns:
        (components (count, p, q, c), shares of the variance (count,)), float64.
    """
    *shape, d = kernel.shape
    axes, _, shares = principal_components(kernel.reshape(-1, d).T, count)  # (p, q, c, d) -> (d, p*q*c)
    return axes.reshape(-1, *shape), shares  # (count, p*q*c) -> (count, p, q, c)


class PatchPositions(NamedTuple):
    """Position embeddings of the patches.

    Attributes:
        table: (h*w, d) float32. Embeddings, row by row.
        grid: (h, w) patches.
        kind: "learned", "learned2d", "sincos1d" or "sincos2d".
    """

    table: np.ndarray
    grid: tuple[int, int]
    kind: str


def patch_positions(model: keras.Model, block: int = 0) -> PatchPositions:
    """Position embeddings of a ViT's patches, without class and distillation tokens.

    Args:
        model: a ViT, or a model that contains one.
        block: block to read, if each has its own table.

    Raises:
        ValueError: no ViT, no additive positions (they are in the attention, or "none"), or no such block.
    """
    encoder, _ = taps.encoder_in(model)
    tables = [layer for layer in encoder.layers if isinstance(layer, AddPositionEmbs)]
    if not tables:
        first, family = taps.blocks(encoder)[0], taps.family_in(encoder)
        if not family.spec.has_attention:
            raise ValueError(f'"{model.name}" has no position embeddings: it is a {family.name}.')
        where = f'its attention has positions="{first.positions}"' if first.positions else 'it has positions="none"'
        raise ValueError(f'"{model.name}" adds no position embeddings to its tokens: {where}.')
    if len(tables) > 1 and block not in range(-len(tables), len(tables)):
        raise ValueError(f"block={block}: the model has blocks 0 to {len(tables) - 1}.")
    layer = tables[block] if len(tables) > 1 else tables[0]
    table = keras.ops.convert_to_numpy(layer.table())[0].astype("float32")  # (1, prefix + h*w, d) -> (prefix + h*w, d)
    return PatchPositions(table[layer.prefix :], layer.grid, layer.kind)


def position_similarity(table: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
    """Cosine similarities of patches' position embeddings, from a table (h*w, d): (h, w, h, w) float64 from -1 to 1.

    [i, j] is the map of the patch in row i, column j.
    """
    x = np.asarray(table, "float64")
    x = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), np.finfo("float64").tiny)
    return (x @ x.T).reshape(*grid, *grid)  # (h*w, h*w) -> (h, w, h, w)


def nearest_is_neighbour(similarity: np.ndarray) -> float:
    """Share of positions most similar to one of their (up to eight) neighbours, from `position_similarity`."""
    h, w = similarity.shape[:2]
    if h * w < 2:
        return 1.0
    others = similarity.reshape(h * w, h * w).copy()  # (h, w, h, w) -> (h*w, h*w)
    np.fill_diagonal(others, -np.inf)
    place, nearest = (np.stack(np.unravel_index(i, (h, w))) for i in (np.arange(h * w), others.argmax(1)))  # (2, h*w)
    return float((np.abs(place - nearest).max(0) <= 1).mean())
