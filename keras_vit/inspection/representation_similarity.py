"""Similarity of layers' representations: linear CKA (Kornblith et al. 2019, arXiv 1905.00414)."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from keras_vit.fit.checks.inputs import check_images
from keras_vit.models import taps

SMALLEST = 4  # examples per batch for which the unbiased estimate exists
_LARGEST = 32
_BYTES = 2**28  # approximate memory of a batch's features


def linear_cka(x: np.ndarray, y: np.ndarray) -> float:
    """Linear CKA of two representations: |Y'X|^2 / (|X'X| |Y'Y|) in Frobenius norms, of centred features.

    It is 1 for representations equal up to rotation and scale, and biased upwards with more features than examples; see
    `minibatch_cka`.

    Args:
        x: (m, d). One row per example.
        y: (m, e). Rows of the same examples.

    Raises:
        ValueError: wrong shapes.
    """
    x, y = np.asarray(x, "float64"), np.asarray(y, "float64")
    if x.ndim != 2 or y.ndim != 2 or len(x) != len(y):
        raise ValueError(
            f"linear_cka expected features (m, d) and (m, e) of the same examples, got {x.shape} and {y.shape}."
        )
    x, y = x - x.mean(0), y - y.mean(0)
    if max(x.shape[1], y.shape[1]) > len(x):  # equal, from smaller products: |Y'X|^2 = <XX', YY'>
        k, g = x @ x.T, y @ y.T  # (m, m)
        return float((k * g).sum() / (np.linalg.norm(k) * np.linalg.norm(g)))
    return float(np.square(y.T @ x).sum() / (np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y)))


def unbiased_hsic(grams: np.ndarray) -> np.ndarray:
    """Unbiased HSIC (l, l) float64 of Gram matrices (l, m, m), m of at least 4 examples (Song et al. 2012, eq. 5)."""
    grams = np.array(grams, "float64")
    count, m, _ = grams.shape
    if m < SMALLEST:
        raise ValueError(f"unbiased_hsic needs {SMALLEST} examples or more, got {m}.")
    grams[:, np.arange(m), np.arange(m)] = 0
    flat, rows = grams.reshape(count, -1), grams.sum(-1)  # (l, m*m), (l, m)
    total = rows.sum(-1)  # (l,)
    traces, sums = flat @ flat.T, rows @ rows.T  # (l, l)
    return (traces + np.outer(total, total) / ((m - 1) * (m - 2)) - 2 / (m - 2) * sums) / (m * (m - 3))


def minibatch_cka(batches: Sequence[Sequence[np.ndarray]]) -> np.ndarray:
    """Linear CKA between layers from small batches (Nguyen et al. 2021, arXiv 2010.15327, equation 3).

    Averages unbiased HSIC estimates over batches before dividing, so that neither batch size nor number of features
    raises the result. Noise may push it slightly above 1 or below 0.

    Args:
        batches: batches of features (m, ...) of all layers, with m at least 4; may be an iterator.

    Returns:
        (l, l) float64, symmetric, with ones on the diagonal; NaN for a layer that is constant over all examples.

    Raises:
        ValueError: no batches, or one of fewer than 4 examples.
    """
    total: Any = 0.0
    for features in batches:
        rows = [np.asarray(x, "float32").reshape(len(x), -1) for x in features]  # (m, ...) -> (m, d)
        rows = [x - x.mean(0) for x in rows]  # only affects rounding
        total = total + unbiased_hsic(np.stack([(x @ x.T).astype("float64") for x in rows]))
    if not np.ndim(total):
        raise ValueError("minibatch_cka needs at least one batch, got none.")
    own = np.diagonal(total)
    scale = np.sqrt(np.where(own > 0, own, np.nan))
    return total / np.outer(scale, scale)


def _even_batches(count, bytes_each):
    """Slices of `count` images: batches of similar size, 4 to 32, with features of about 256 MB."""
    largest = int(np.clip(_BYTES // max(bytes_each, 1), SMALLEST, _LARGEST))
    parts = max(1, min(-(-count // largest), count // SMALLEST))
    ends = np.linspace(0, count, parts + 1).round().astype(int)
    return [slice(start, end) for start, end in zip(ends, ends[1:])]


def layer_similarity(model: keras.Model, images: Any, advance: Callable[[int], None] | None = None) -> np.ndarray:
    """Linear CKA between the outputs of all blocks; all tokens or positions of an image form one vector.

    Args:
        model: a model of any family, or a functional model that contains one, with one input.
        images: (b, height, width, c). Pixels 0..255 of 4 or more images; tens give stable results.
        advance: function to call with the number of finished images, for progress.

    Returns:
        (l, l) float64; see `minibatch_cka`.

    Raises:
        ValueError: fewer than 4 images, or images on another scale.
    """
    if len(images) < SMALLEST:
        raise ValueError(
            f"CKA compares layers over different images: expected {SMALLEST} images or more, got {len(images)}."
        )
    check_images(model, images)
    taken = keras.Model(model.input, taps.block_outputs(model))
    bytes_each = 4 * sum(int(np.prod(t.shape[1:])) for t in taken.outputs)

    def batches():
        for part in _even_batches(len(images), bytes_each):
            features = keras.tree.flatten(taken(np.asarray(images[part], "float32"), training=False))
            yield [keras.ops.convert_to_numpy(keras.ops.cast(x, "float32")) for x in features]
            if advance:
                advance(part.stop - part.start)

    return minibatch_cka(batches())
