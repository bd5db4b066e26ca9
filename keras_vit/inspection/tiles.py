"""Filters and maps as small images, sheets of them, and PNG files."""

import io

import numpy as np

from keras_vit.inspection.figures import matplotlib_or_error


def signed(filters: np.ndarray) -> np.ndarray:
    """Filters as images, each stretched separately, with 0 as grey.

    Args:
        filters: (m, p, q, c). The first three channels are red, green and blue; with fewer, the first is grey.

    Returns:
        (m, p, q, 3) uint8.
    """
    colours = filters[..., :3] if filters.shape[-1] >= 3 else np.repeat(filters[..., :1], 3, axis=-1)
    largest = np.abs(colours).max(axis=(1, 2, 3), keepdims=True)
    return np.round(127.5 + 127.5 * colours / np.where(largest > 0, largest, 1)).astype("uint8")


def coloured(values: np.ndarray, low: float, high: float, colours: str = "viridis") -> np.ndarray:
    """Values (...) in a matplotlib colour map from `low` to `high`: (..., 3) uint8."""
    shares = (np.asarray(values, "float64") - low) / max(high - low, np.finfo("float64").tiny)
    return np.round(255 * matplotlib_or_error().colormaps[colours](np.clip(shares, 0, 1))[..., :3]).astype("uint8")


def enlarged(pixels: np.ndarray, factor: int) -> np.ndarray:
    """Images (..., h, w, c) with each pixel as factor x factor pixels."""
    return pixels.repeat(factor, axis=-3).repeat(factor, axis=-2)


def sheet(tiles: np.ndarray, columns: int, gap: int = 2) -> np.ndarray:
    """Images (m, h, w, 3) uint8 in rows of `columns`, `gap` transparent pixels apart: (height, width, 4) uint8."""
    m, h, w, _ = tiles.shape
    columns = min(columns, m)
    rows = -(-m // columns)
    whole = np.zeros((rows, h + gap, columns, w + gap, 4), "uint8")
    for i, tile in enumerate(tiles):
        whole[i // columns, :h, i % columns, :w] = np.concatenate([tile, np.full((h, w, 1), 255, "uint8")], axis=-1)
    # (rows, h + gap, columns, w + gap, 4) -> (height, width, 4)
    return (
        whole.reshape(rows * (h + gap), columns * (w + gap), 4)[:-gap, :-gap]
        if gap
        else whole.reshape(rows * h, columns * w, 4)
    )


def stacked(images: list[np.ndarray], gap: int) -> np.ndarray:
    """Images (h, w, 4) uint8 below each other, with transparent gaps, and transparent to the right of narrower ones."""
    width = max(image.shape[1] for image in images)
    rows = [np.pad(image, ((0, gap), (0, width - image.shape[1]), (0, 0))) for image in images]
    return np.concatenate(rows)[: -gap or None]


def resized(pixels: np.ndarray, size: tuple[int, int], smooth: bool = True) -> np.ndarray:
    """An image (h, w, 3) uint8 resized to (height, width)."""
    from PIL import Image

    method = Image.Resampling.BICUBIC if smooth else Image.Resampling.NEAREST
    return np.asarray(Image.fromarray(pixels).resize(size[::-1], method))


def png(pixels: np.ndarray) -> bytes:
    """An image (h, w, 3 or 4) uint8 as a PNG file."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()
