"""Resizing as a matrix per axis: exact, differentiable and on every device, for images and position tables.

Code bases interpolate differently, enough to break parity. Each method is one row of METHODS: a function (old, new) ->
(new, old) interpolation matrix of one axis; both axes are interpolated in turn.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from keras import ops

from keras_vit.io.suggest import check_known


def _align_corners(old, new):
    """Linear interpolation with fixed end points, as scipy.ndimage.zoom(order=1)."""
    samples = np.linspace(0, old - 1, new) if new > 1 else np.zeros(1)
    low = np.minimum(np.floor(samples).astype(int), max(old - 2, 0))
    high = np.minimum(low + 1, old - 1)
    fraction = samples - low
    weights = np.zeros((new, old))
    np.add.at(weights, (np.arange(new), low), 1.0 - fraction)
    np.add.at(weights, (np.arange(new), high), fraction)
    return weights


def _triangle(x):
    """The linear kernel."""
    return np.maximum(1.0 - np.abs(x), 0.0)


def _cubic(a):
    """Keys' cubic kernel with parameter a."""

    def kernel(x):
        x = np.abs(x)
        near = ((a + 2) * x - (a + 3)) * x**2 + 1
        far = a * (((x - 5) * x + 8) * x - 4)
        return np.where(x < 1, near, np.where(x < 2, far, 0.0))

    return kernel


def _half_pixel(old, new, kernel, radius):
    """Interpolation at pixel centres; outside the grid the nearest pixel's value continues."""
    samples = (np.arange(new) + 0.5) * old / new - 0.5
    first = np.floor(samples).astype(int) - radius + 1
    weights = np.zeros((new, old))
    for tap in range(2 * radius):
        index = first + tap
        np.add.at(weights, (np.arange(new), np.clip(index, 0, old - 1)), kernel(samples - index))
    return weights


def _antialiased(old, new, kernel, radius):
    """Interpolation at pixel centres, the kernel as wide as a new pixel; pixels outside have no weight (as in PIL)."""
    scale = max(old / new, 1.0)
    samples = (np.arange(new) + 0.5) * old / new - 0.5
    distance = (np.arange(old)[None] - samples[:, None]) / scale  # (new, old)
    weights = np.where(np.abs(distance) < radius, kernel(distance), 0.0)
    return weights / weights.sum(axis=1, keepdims=True)


METHODS: dict[str, Callable[[int, int], np.ndarray]] = {
    # Bilinear, corners aligned: google-research/vision_transformer and big_vision.
    "google": _align_corners,
    # Bicubic with antialiasing: timm on state dicts; DINOv2 with registers.
    "timm": lambda old, new: _antialiased(old, new, _cubic(-0.5), 2),
    # Bicubic without antialiasing: Hugging Face's ViT, DeiT, DINOv2, and torch's interpolate.
    "bicubic": lambda old, new: _half_pixel(old, new, _cubic(-0.75), 2),
    # Half-pixel bilinear: timm on Google's .npz files.
    "bilinear": lambda old, new: _half_pixel(old, new, _triangle, 1),
    # Bilinear with antialiasing, jax.image.resize: FlexiViT within the model.
    "flexivit": lambda old, new: _antialiased(old, new, _triangle, 1),
}


def check_method(method: str) -> None:
    """ValueError unless `method` is one of METHODS."""
    check_known(method, "resampling method", METHODS)


def resized(images: Any, size: tuple[int, int], method: str) -> Any:
    """Images, or other maps, at another size: (b, h, w, c) -> (b, h', w', c), float32.

    Args:
        images: of static size.
        size: (h', w').
        method: a row of METHODS.
    """
    rows, columns = (METHODS[method](old, new).astype("float32") for old, new in zip(images.shape[1:3], size))
    x = ops.einsum("yh,bhwc->bywc", rows, ops.cast(images, "float32"))
    return ops.einsum("xw,bywc->byxc", columns, x)
