"""How similar the representations of layers are: linear CKA (Kornblith et al. 2019, arXiv 1905.00414)."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from keras_vit.models import taps

SMALLEST = 4  # examples of a batch, below which the unbiased estimate does not exist
_LARGEST = 32
_BYTES = 2**28  # of the features of a batch, about


def linear_cka(x: np.ndarray, y: np.ndarray) -> float:
    """Linear CKA of two representations of the same examples: |Y'X|^2 / (|X'X| |Y'Y|) in Frobenius norms, of centred
    features.

    It is 1 for representations that are equal up to a rotation and a factor. With more features than examples it is too
    high; see `minibatch_cka`.

    Args:
        x: (m, d), one row per example.
        y: (m, e), of the same examples.

    Raises:
        ValueError: for other shapes.
    """
    x, y = np.asarray(x, "float64"), np.asarray(y, "float64")
    if x.ndim != 2 or y.ndim != 2 or len(x) != len(y):
        raise ValueError(
            f"linear_cka expected features (m, d) and (m, e) of the same examples, got {x.shape} and {y.shape}."
        )
    x, y = x - x.mean(0), y - y.mean(0)
    if max(x.shape[1], y.shape[1]) > len(x):  # the same by the smaller products: |Y'X|^2 = <XX', YY'>
        k, g = x @ x.T, y @ y.T  # (m, m)
        return float((k * g).sum() / (np.linalg.norm(k) * np.linalg.norm(g)))
    return float(np.square(y.T @ x).sum() / (np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y)))


def unbiased_hsic(grams: np.ndarray) -> np.ndarray:
    """The unbiased estimates of HSIC between kernels (Song et al. 2012, equation 5).

    Args:
        grams: (l, m, m), Gram matrices of m examples, 4 or more.

    Returns:
        (l, l) float64.
    """
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

    The unbiased estimates of HSIC are averaged over the batches before the division, so that neither the size of a
    batch nor features that outnumber the examples raise the result. Noise may lead slightly above 1 and below 0.

    Args:
        batches: of each batch, which may come one by one, the features (m, ...) of all layers; m is 4 or more.

    Returns:
        (l, l) float64, symmetric, with ones on the diagonal; NaN for a layer that is the same for all examples.

    Raises:
        ValueError: without batches, or for a batch of fewer than 4.
    """
    total: Any = 0.0
    for features in batches:
        rows = [np.asarray(x, "float32").reshape(len(x), -1) for x in features]  # (m, ...) -> (m, d)
        rows = [x - x.mean(0) for x in rows]  # changes nothing but the rounding
        total = total + unbiased_hsic(np.stack([(x @ x.T).astype("float64") for x in rows]))
    if not np.ndim(total):
        raise ValueError("minibatch_cka needs at least one batch, and got none.")
    own = np.diagonal(total)
    scale = np.sqrt(np.where(own > 0, own, np.nan))
    return total / np.outer(scale, scale)


def _even_batches(count, bytes_each):
    """Slices of `count` images: batches of about the same size, 4 to 32, whose features take about 256 MB."""
    largest = int(np.clip(_BYTES // max(bytes_each, 1), SMALLEST, _LARGEST))
    parts = max(1, min(-(-count // largest), count // SMALLEST))
    ends = np.linspace(0, count, parts + 1).round().astype(int)
    return [slice(start, end) for start, end in zip(ends, ends[1:])]


def layer_similarity(model: keras.Model, images: Any, advance: Callable[[int], None] | None = None) -> np.ndarray:
    """Linear CKA between the outputs of all blocks: all tokens or positions of an
    image are one vector.

    Args:
        model: of any family, or a functional model that contains one, with one input.
        images: (b, height, width, c), pixels 0..255, 4 or more; tens give a steady picture.
        advance: called with the number of images that are done, to show progress.

    Returns:
        (l, l) float64; see `minibatch_cka`.

    Raises:
        ValueError: for fewer than 4 images.
    """
    if len(images) < SMALLEST:
        raise ValueError(
            f"CKA compares what layers make of different images, and needs {SMALLEST} or more; got {len(images)}."
        )
    taken = keras.Model(model.input, taps.block_outputs(model))
    bytes_each = 4 * sum(int(np.prod(t.shape[1:])) for t in taken.outputs)

    def batches():
        for part in _even_batches(len(images), bytes_each):
            features = keras.tree.flatten(taken(np.asarray(images[part], "float32"), training=False))
            yield [keras.ops.convert_to_numpy(keras.ops.cast(x, "float32")) for x in features]
            if advance:
                advance(part.stop - part.start)

    return minibatch_cka(batches())
