"""Principal components of vectors, and of several images' tokens as colours (as in DINOv2, arXiv 2304.07193)."""

import numpy as np


def principal_components(vectors: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The first principal components of the centred vectors.

    Args:
        vectors: (m, d).
        count: largest number of components; fewer if m or d is smaller.

    Returns:
        (unit axes (count, d), signed to make the largest entry positive; scores (m, count); shares of the variance
            (count,)), float64.
    """
    x = np.asarray(vectors, "float64")
    x = x - x.mean(0)
    m, d = x.shape
    is_wide = d > m
    values, axes = np.linalg.eigh(x @ x.T if is_wide else x.T @ x)  # of the smaller product; ascending
    values, axes = np.maximum(values[::-1], 0)[:count], axes[:, ::-1][:, :count].T
    if is_wide:
        axes = axes @ x  # (count, m) (m, d) -> (count, d)
        axes = axes / np.maximum(np.linalg.norm(axes, axis=1, keepdims=True), np.finfo("float64").tiny)
    largest = np.take_along_axis(axes, np.abs(axes).argmax(1)[:, None], 1)  # (count, 1)
    axes = np.where(largest < 0, -axes, axes)
    return axes, x @ axes.T, values / max(np.square(x).sum(), np.finfo("float64").tiny)


def foreground(features: np.ndarray) -> np.ndarray:
    """Finds the tokens of objects by the first principal component of all images' tokens.

    In well-trained models it separates objects from background; the foreground is the side that is rarer at the images'
    borders.

    Args:
        features: (b, h, w, d). Tokens of several images of the same kind.

    Returns:
        (b, h, w) bool.
    """
    b, h, w, d = features.shape
    _, scores, _ = principal_components(features.reshape(-1, d), 1)  # (b, h, w, d) -> (b*h*w, d)
    inner = scores.reshape(b, h, w) > 0  # (b*h*w, 1) -> (b, h, w)
    border = np.ones((h, w), bool)
    border[1:-1, 1:-1] = False
    return ~inner if inner[:, border].mean() > inner.mean() else inner


def token_colours(features: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
    """Colours of tokens: the first three principal components of all images' tokens as red, green and blue.

    Equal colours mean similar features, also across images.

    Args:
        features: (b, h, w, d).
        mask: (b, h, w) bool. Tokens to colour, such as `foreground`; others are black. None for all.

    Returns:
        (b, h, w, 3), from 0 to 1; components are stretched from their 1st to their 99th percentile.

    Raises:
        ValueError: the mask leaves fewer than two tokens.
    """
    mask = np.ones(features.shape[:-1], bool) if mask is None else mask
    if mask.sum() < 2:
        raise ValueError(f"token_colours needs at least 2 tokens, but the mask leaves {mask.sum()} of {mask.size}.")
    _, scores, _ = principal_components(features[mask], 3)  # (b, h, w, d) -> (m, d)
    low, high = np.percentile(scores, (1, 99), axis=0)
    stretched = np.clip((scores - low) / np.maximum(high - low, np.finfo("float64").tiny), 0, 1)
    colours = np.zeros((*mask.shape, 3))
    colours[mask, : stretched.shape[1]] = stretched
    return colours
