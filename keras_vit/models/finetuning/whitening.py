"""Whitened first layers: filters with uncorrelated responses to patches, as in the fastest CIFAR-10 trainings.

After airbench (arXiv 2404.00498, section 3.2). The model learns from the first step on what differs between patches,
not what they share.
"""

from typing import Any

import keras
import numpy as np

from keras_vit.fit.checks.pixels import Normalisation, check_range, normalisation
from keras_vit.layers import PatchEncoder
from keras_vit.models import taps

SMALLEST = 5e-4  # added to the variances, of pixels normalised to about 1: the faintest components are noise
_TOGETHER = 2**16  # windows copied at a time


def whitening_filters(pixels: np.ndarray, size: tuple[int, int], count: int) -> np.ndarray:
    """Filters with uncorrelated responses over all windows, each of mean square 1, strongest components first.

    Args:
        pixels: normalised images (b, height, width, c).
        size: (p, q) of a filter.
        count: number of filters, at most p * q * c.

    Returns:
        (p, q, c, count) float32; the sign makes each filter's largest weight positive.
    """
    p, q, c = *size, pixels.shape[-1]
    planes = pixels.transpose(3, 0, 1, 2)
    windows = np.lib.stride_tricks.sliding_window_view(planes, (p, q), axis=(2, 3))  # (c, b, h, w, p, q)
    windows = windows.transpose(4, 5, 0, 1, 2, 3)
    *_, images, h, w = windows.shape
    moments, together = np.zeros((p * q * c, p * q * c)), max(1, _TOGETHER // (h * w))
    for i in range(0, images, together):
        rows = windows[..., i : i + together, :, :].reshape(p * q * c, -1).astype("float64")  # (p*q*c, b*h*w)
        moments += rows @ rows.T
    moments /= images * h * w
    squares, vectors = np.linalg.eigh(moments)
    order = np.argsort(-squares, kind="stable")[:count]
    filters = vectors[:, order] / np.sqrt(squares[order] + SMALLEST)
    filters *= np.sign(filters[np.abs(filters).argmax(0), np.arange(len(order))])
    return filters.reshape(p, q, c, len(order)).astype("float32")


def first_layer(model: keras.Model) -> tuple[keras.layers.Layer, Any]:
    """The convolution or patch embedding on the pixels, and its spec; ValueError if it normalises kernel or pixels."""
    encoder = taps.own_encoder(model)  # in a distillation the student, not its teacher
    spec: Any = getattr(encoder, "spec", None)
    inside = {layer.name: layer for layer in encoder._flatten_layers()} if encoder and spec else {}
    first = next((inside[name] for name in ("stem_conv", "stem_conv1", "patch_encoder") if name in inside), None)
    if isinstance(first, keras.layers.Conv2D) or (isinstance(first, PatchEncoder) and not first.norm):
        return first, spec
    raise ValueError(
        f'"{model.name}" has no first layer to whiten: a ViT is needed, plain or with conv_stem, without patch_norm'
        " and palette, and not in a DINO. Leave whitening out."
    )


def whiten(model: keras.Model, images: np.ndarray) -> None:
    """Sets a new model's first kernel to whitening filters; before a ReLU each is followed by its negative.

    Channels beyond the number of components (27 of a 3x3 filter on colours, 54 with negatives) keep their random
    values.

    Args:
        model: a ViT, plain or with conv_stem, or a model that trains one.
        images: some hundred training images or more, as for `fit` (b, height, width, c).

    Raises:
        ValueError: for a model without such a layer, or images on another scale than the model's.
    """
    layer, spec = first_layer(model)
    rectified = isinstance(layer, keras.layers.Conv2D)
    kernel = keras.ops.convert_to_numpy(layer.kernel).copy()  # (p, q, c, d)
    *size, channels, width = kernel.shape
    scale = normalisation(model) or Normalisation(np.asarray(spec.mean), np.asarray(spec.std))
    if model.check_pixels:
        check_range(np.asarray(images), scale)
    mean, std = (np.asarray(value, "float32") for value in scale.of_input)
    pixels = (np.asarray(images, "float32") - mean) / std
    filters = whitening_filters(
        pixels, tuple(size), min(size[0] * size[1] * channels, width // 2 if rectified else width)
    )
    if rectified:
        filters = np.concatenate([filters, -filters], axis=-1)
    kernel[..., : filters.shape[-1]] = filters
    layer.kernel.assign(kernel)
