"""Finds near-duplicates across image sets, to exclude from pre-training.

See arXiv 2010.11929, 4.1, and Kolesnikov et al. 2020.

Images are compared as grey thumbnails (n, 32, 32) uint8. First, matrix products compare the low frequencies, 35 numbers
per image, of all pairs, also mirrored and slightly shifted. Then similar pairs are overlaid in many positions and
sizes, and their edges correlated. The correlation stays near 1 after recompression, resizing, a change of brightness, a
crop of up to a tenth or mirroring, but not between different photos.
"""

import concurrent.futures
import dataclasses
import json
import os
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from keras_vit.data.ops.op_registry import as_uint8
from keras_vit.data.scan import scan
from keras_vit.data.sources.base import Source
from keras_vit.data.sources.examine import warn_of_files
from keras_vit.io.atomic import replacing, write_bytes
from keras_vit.io.progress import stage

SIDE = 32
THRESHOLD = 0.9

_LOW = 6  # frequencies per axis
_PART = 28  # side of the part of a thumbnail to compare first: the centre, and of test images also the corners
_OFFSETS = ((2, 2), (0, 0), (0, 4), (4, 0), (4, 4))
# Correlations of low frequencies above which each image's best pairs, or all its pairs, are compared further.
_SIMILAR, _VERY_SIMILAR = 0.75, 0.88
_BEST = 8  # pairs per image
_WINDOW = 22  # side of the window of edges to compare
_SIZES = (26, 27, 29, 30, 32, 34, 36, 38, 40)  # sizes to try for the other image
_SHIFT = 4  # pixels in each direction
_ROUGH = 0.3  # largest drop in correlation one step away from the right position and size
_EVIDENCE = 18.0  # see _is_duplicate
_PRODUCTS = 2**26  # products to compute at a time: a quarter of a gigabyte
_MANY = 0.1  # share of the training images that is worth a warning
_SHOWN = 48  # pairs in the picture
_SHOWN_SIDE = 128
_CHUNK = 500  # pairs per thread at a time


@dataclasses.dataclass(frozen=True)
class Pair:
    """A pair of near-duplicates: image number `train` of one set and image number `test` of the other.

    Attributes:
        test, train: int. Positions in the sets.
        correlation: float. Correlation of the edges, at most 1.
        flipped: bool. Whether one is the other's mirror image.
    """

    test: int
    train: int
    correlation: float
    flipped: bool


def thumbnail(pixels: tf.Tensor) -> tf.Tensor:
    """Shrinks pixels uint8 (h, w, 3) to a grey thumbnail (32, 32) uint8; ignores the aspect ratio. Runs in a graph."""
    grey = tf.image.rgb_to_grayscale(tf.cast(pixels, tf.float32))
    return as_uint8(tf.image.resize(grey, (SIDE, SIDE), antialias=True)[..., 0])


def _cosines():
    """Returns the first rows of the DCT-II, (6, 28), orthonormal except for the first row."""
    frequency, place = np.arange(_LOW)[:, None], np.arange(_PART)
    return (np.cos(np.pi * (place + 0.5) * frequency / _PART) * np.sqrt(2 / _PART)).astype("float32")


def descriptors(thumbnails: np.ndarray, y: int = 2, x: int = 2) -> np.ndarray:
    """Computes low frequencies of thumbnails (n, 32, 32), cropped at (y, x), times frequency, since high ones are weak.

    Returns:
        (n, 35) float32 of length 1, or nearly 0 for an image of a single colour.
    """
    cosines, grid = _cosines(), np.arange(_LOW, dtype="float32")
    weight, part = np.hypot(grid[:, None], grid), thumbnails[:, y : y + _PART, x : x + _PART].astype("float32")
    frequencies = np.einsum("ki,nij,lj->nkl", cosines, part, cosines, optimize=True) * weight
    frequencies = frequencies.reshape(-1, _LOW * _LOW)[:, 1:]  # the first is the mean
    return frequencies / np.maximum(np.linalg.norm(frequencies, axis=1, keepdims=True), 1.0)


def candidates(train: np.ndarray, test: np.ndarray) -> np.ndarray:
    """Finds pairs of thumbnails with similar low frequencies: (m, 3) integers (test, train, 1 if mirrored else 0)."""
    pairs, centres = [], descriptors(train).T
    rows = max(1, _PRODUCTS // len(train))
    for start in range(0, len(test), rows):
        part = test[start : start + rows]
        for flipped, images in enumerate((part, part[:, :, ::-1])):
            similarity = descriptors(images, *_OFFSETS[0]) @ centres
            for offset in _OFFSETS[1:]:
                np.maximum(similarity, descriptors(images, *offset) @ centres, out=similarity)
            i, j = np.nonzero(similarity > _SIMILAR)
            value = similarity[i, j]
            order = np.lexsort((-value, i))
            i, j, value = i[order], j[order], value[order]
            rank = np.arange(len(i)) - np.searchsorted(i, i)  # within the row
            kept = (rank < _BEST) | (value > _VERY_SIMILAR)
            pairs.append(np.stack([i[kept] + start, j[kept], np.full(kept.sum(), flipped)], 1))
    return np.concatenate(pairs)


def _edges(images):
    """Computes gradients of the blurred images: (n, h, w) -> (n, h - 4, w - 4, 2)."""
    blurred = images[:, :-2] + 2 * images[:, 1:-1] + images[:, 2:]
    blurred = (blurred[:, :, :-2] + 2 * blurred[:, :, 1:-1] + blurred[:, :, 2:]) / 16
    return np.stack([blurred[:, 2:, 1:-1] - blurred[:, :-2, 1:-1], blurred[:, 1:-1, 2:] - blurred[:, 1:-1, :-2]], -1)


def _resizing(size):
    """Returns the matrix (size, 32) that resizes one side of a thumbnail."""
    return tf.image.resize(tf.eye(SIDE)[..., None], (size, SIDE), antialias=True)[..., 0].numpy()


def _window_energies(edges):
    """Sums the squares in each window of edges: (n, m, m, 2) -> (n, m - 21, m - 21)."""
    sums = np.pad((edges * edges).sum(-1).cumsum(1).cumsum(2), ((0, 0), (1, 0), (1, 0)))
    w = _WINDOW
    return np.maximum(sums[:, w:, w:] - sums[:, :-w, w:] - sums[:, w:, :-w] + sums[:, :-w, :-w], 0)


def _correlations(a, b, resizing, step):
    """Finds the best correlations (n,) of `a`'s centre with `b` (n, 32, 32), over sizes and each `step`-th offset."""
    edges = _edges(a)
    margin = (edges.shape[1] - _WINDOW) // 2
    edges = edges[:, margin : margin + _WINDOW, margin : margin + _WINDOW]
    energy = (edges * edges).sum((1, 2, 3))
    best = np.full(len(a), -1.0, "float32")
    for matrix in resizing:
        other = _edges(matrix @ b @ matrix.T)
        energies, last = _window_energies(other), other.shape[1] - _WINDOW
        places = range(max(0, last // 2 - _SHIFT), min(last, last // 2 + _SHIFT) + 1, step)
        for y in places:
            for x in places:
                product = np.einsum("nhwc,nhwc->n", edges, other[:, y : y + _WINDOW, x : x + _WINDOW])
                # Noise of 1 per pixel, so that images of a single colour match nothing.
                best = np.maximum(best, product / (np.sqrt(energy * energies[:, y, x]) + _WINDOW**2))
    return best


def _detail(images):
    """Estimates the number of pixels that each image's edges cover, (n,); small for a bird in the sky."""
    energy = (_edges(images) ** 2).sum(-1).reshape(len(images), -1)
    return energy.sum(1) ** 2 / np.maximum((energy * energy).sum(1), 1e-6)


def _is_duplicate(correlation, detail, threshold):
    """Whether edges agree better than by chance: Fisher's z, in standard deviations, must also be high.

    Silhouettes against an empty sky correlate at .9 by chance. `detail` is the number of observations.
    """
    evidence = np.arctanh(np.minimum(correlation, 0.9999)) * np.sqrt(detail)
    return (correlation > threshold) & (evidence > _EVIDENCE)


def near_duplicates(train: np.ndarray, test: np.ndarray, threshold: float = THRESHOLD) -> list[Pair]:
    """Finds images of `train` that nearly duplicate an image of `test`: Pairs in the order of `test`, best first.

    Args:
        train, test: (n, 32, 32) uint8. Thumbnails.
        threshold: float. Correlation above which two images are duplicates.
    """
    similar = candidates(train, test)
    resizing = [_resizing(size) for size in _SIZES]

    def compare(start):
        i, j, flipped = similar[start : start + _CHUNK].T
        a, b = test[i].astype("float32"), train[j].astype("float32")
        a = np.where(flipped[:, None, None] == 1, a[:, :, ::-1], a)
        correlation = _correlations(a, b, resizing[::2], 2)
        close = correlation > threshold - _ROUGH
        correlation[close] = _correlations(a[close], b[close], resizing, 1)
        return correlation, _is_duplicate(correlation, np.minimum(_detail(a), _detail(b)), threshold)

    best, starts = {}, range(0, len(similar), _CHUNK)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        for start, (correlation, duplicate) in zip(starts, pool.map(compare, starts)):
            for n in np.nonzero(duplicate)[0]:
                i, j, flipped = similar[start + n].tolist()
                pair = Pair(i, j, float(correlation[n]), bool(flipped))
                if (i, j) not in best or best[i, j].correlation < pair.correlation:
                    best[i, j] = pair
    return sorted(best.values(), key=lambda pair: (pair.test, -pair.correlation))


def _collect(source, text):
    """Returns (names, thumbnails (n, 32, 32) uint8, labels or -1) of readable examples; warns about the others."""

    def work(example, pixels):
        return thumbnail(pixels), example.get("label", -1)

    names, thumbnails, labels = [], np.zeros((source.size, SIDE, SIDE), "uint8"), []
    with stage(f"Reading {source.name}", source.size, "images") as progress:
        for name, values, reason in scan(source, work):
            if reason:
                logging.warning("Skipping %s: %s", name, reason)
            else:
                thumbnails[len(names)] = values[0]
                labels.append(int(values[1]))
                names.append(name)
            progress.advance()
    if not names:
        raise ValueError(f"None of the {source.size} images of {text} can be decoded.")
    return names, thumbnails[: len(names)], labels


def _pictures(source, names):
    """Reads the examples with these names as {name: (128, 128, 3) uint8}."""

    def small(example, pixels):
        return (as_uint8(tf.image.resize(pixels, (_SHOWN_SIDE, _SHOWN_SIDE), antialias=True)),)

    return {name: values[0] for name, values, reason in scan(source, small, only=names) if not reason}


def _write_pictures(path, pairs, train, test):
    """Writes the pairs with the lowest correlation as a PNG, side by side, the test image on the left.

    Args:
        path: str. The file to write.
        pairs: list of {"train": name, "test": name, "correlation": number, "flipped": bool}.
        train, test: Source. The two sets.
    """
    import matplotlib.figure

    doubtful = sorted(pairs, key=lambda pair: pair["correlation"])[:_SHOWN]
    left = _pictures(test, {pair["test"] for pair in doubtful})
    right = _pictures(train, {pair["train"] for pair in doubtful})
    rows = -(-len(doubtful) // 6)
    figure = matplotlib.figure.Figure(figsize=(15, 1.6 * rows))
    for axes, pair in zip(
        figure.subplots(rows, 6, squeeze=False).flat, [*doubtful, *[None] * (6 * rows - len(doubtful))]
    ):
        axes.axis("off")
        if pair:
            axes.imshow(np.concatenate([left[pair["test"]], right[pair["train"]]], 1))
            axes.set_title(f"{pair['correlation']:.3f}{', mirrored' if pair['flipped'] else ''}", fontsize=8)
    figure.tight_layout()
    with replacing(path) as temporary:
        figure.savefig(temporary)


def _warn_of_many(duplicates, images, output):
    """Warns if the share of duplicates is implausibly large: most are probably similar images, not copies."""
    if duplicates > _MANY * images:
        logging.warning(
            "%s of the training images, %d, are duplicates by their correlation. Small or simple images, such as"
            " digits, are alike without being copies: look at %s, and raise --threshold.",
            f"{duplicates / images:.0%}",
            duplicates,
            os.path.splitext(output)[0] + ".png",
        )


def deduplicate(train: Source, test: Source, output: str, threshold: float = THRESHOLD) -> dict[str, Any]:
    """Writes the names of `train` examples that nearly duplicate a `test` example; returns the report.

    Args:
        train, test: Source. The two sets.
        output: str. Path of the list of names, ending in .txt; the pairs are written next to it as .json and .png.
        threshold: float. Correlation above which two images are duplicates.
    """
    warn_of_files(train, test)
    train_names, train_thumbnails, train_labels = _collect(train, "--train")
    test_names, test_thumbnails, test_labels = _collect(test, "--test")
    with stage("Comparing the images"):
        duplicates = near_duplicates(train_thumbnails, test_thumbnails, threshold)
    pairs = []
    for p in duplicates:
        pair = {"train": train_names[p.train], "test": test_names[p.test]}
        pair |= {"correlation": round(p.correlation, 4), "flipped": p.flipped}
        if train.class_names and test.class_names:
            pair["same_label"] = train_labels[p.train] == test_labels[p.test]
        pairs.append(pair)
    names = [train_names[i] for i in sorted({p.train for p in duplicates})]
    _warn_of_many(len(names), len(train_names), output)
    report = {
        "train": {"source": train.name, "images": len(train_names), "duplicates": len(names)},
        "test": {"source": test.name, "images": len(test_names), "duplicates": len({p.test for p in duplicates})},
        "threshold": threshold,
        "pairs": pairs,
    }
    header = (
        f"# {len(names)} images of {train.name} that are near-duplicates of images of {test.name}, correlation"
        f" {threshold}"
    )
    write_bytes(output, "".join(f"{line}\n" for line in [header, *names]).encode())
    write_bytes(os.path.splitext(output)[0] + ".json", json.dumps(report, indent=1, ensure_ascii=False).encode())
    if pairs:
        try:
            _write_pictures(os.path.splitext(output)[0] + ".png", pairs, train, test)
        except ImportError as error:
            logging.warning("No picture of the pairs: %s", error)
    return report
