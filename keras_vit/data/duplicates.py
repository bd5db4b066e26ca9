"""Near-duplicates of one set's images in another, as the paper drops them from pre-training data (section 4.1; Kolesnikov et al. 2020).

Images are compared by grey thumbnails (n, 32, 32) uint8. A first look compares low frequencies, 35 numbers an image, all with all, also
mirrored and a little displaced: matrix products. What looks alike is then laid one over the other in many positions and sizes, and
their edges are correlated: recompression, another size, brightness, a crop of up to a tenth and a mirror leave that near 1, another
photo does not.
"""

import concurrent.futures
import dataclasses

import numpy as np
import tensorflow as tf

SIDE = 32
THRESHOLD = 0.9

_LOW = 6  # frequencies each way
_PART = 28  # pixels of the thumbnail that the first look compares: its middle, and for the test image the corners too
_PLACES = ((2, 2), (0, 0), (0, 4), (4, 0), (4, 4))
_ALIKE, _VERY_ALIKE = 0.75, 0.88  # low frequencies that agree so well are looked at again: above the second all, else
_BEST = 8  # of each image
_WINDOW = 22  # pixels of edges that are compared
_SIZES = (26, 27, 29, 30, 32, 34, 36, 38, 40)  # that the other image is brought to
_SHIFT = 4  # pixels, each way
_ROUGH = 0.3  # what a step beside the right position and size costs at most
_EVIDENCE = 18.0  # see _is_duplicate
_PRODUCTS = 2**26  # at a time: a quarter of a gigabyte
_CHUNK = 500  # pairs that a thread compares at a time


@dataclasses.dataclass(frozen=True)
class Pair:
    """Number `train` of one set is a near-duplicate of number `test` of the other.

    Attributes:
        correlation: of the edges, at most 1.
        flipped: whether one is the other's mirror image.
    """

    test: int
    train: int
    correlation: float
    flipped: bool


def thumbnail(pixels):
    """uint8 (h, w, 3) -> a grey thumbnail (32, 32) uint8, whatever the aspect. Runs in a graph."""
    grey = tf.image.rgb_to_grayscale(tf.cast(pixels, tf.float32))
    small = tf.image.resize(grey, (SIDE, SIDE), antialias=True)[..., 0]
    return tf.cast(tf.clip_by_value(tf.round(small), 0, 255), tf.uint8)


def _cosines():
    """The first rows of the discrete cosine transform (DCT-II, orthonormal but for the first), (6, 28)."""
    frequency, place = np.arange(_LOW)[:, None], np.arange(_PART)
    return (np.cos(np.pi * (place + 0.5) * frequency / _PART) * np.sqrt(2 / _PART)).astype("float32")


def descriptors(thumbnails, y=2, x=2):
    """The low frequencies of the part of thumbnails (n, 32, 32) from (y, x) on, each times its frequency: photos have less of high ones.

    Returns:
        (n, 35) float32 of length 1, or nearly 0 for an image of one colour.
    """
    cosines, grid = _cosines(), np.arange(_LOW, dtype="float32")
    weight, part = np.hypot(grid[:, None], grid), thumbnails[:, y : y + _PART, x : x + _PART].astype("float32")
    found = np.einsum("ki,nij,lj->nkl", cosines, part, cosines, optimize=True) * weight
    found = found.reshape(-1, _LOW * _LOW)[:, 1:]  # the first is the mean
    return found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1.0)


def candidates(train, test):
    """Pairs of thumbnails whose low frequencies are alike: (m, 3) integers: test, train, 0 or 1 for mirrored."""
    found, middles = [], descriptors(train).T
    rows = max(1, _PRODUCTS // len(train))
    for start in range(0, len(test), rows):
        part = test[start : start + rows]
        for flipped, own in enumerate((part, part[:, :, ::-1])):
            alike = descriptors(own, *_PLACES[0]) @ middles
            for place in _PLACES[1:]:
                np.maximum(alike, descriptors(own, *place) @ middles, out=alike)
            i, j = np.nonzero(alike > _ALIKE)
            value = alike[i, j]
            order = np.lexsort((-value, i))
            i, j, value = i[order], j[order], value[order]
            rank = np.arange(len(i)) - np.searchsorted(i, i)  # within the row
            kept = (rank < _BEST) | (value > _VERY_ALIKE)
            found.append(np.stack([i[kept] + start, j[kept], np.full(kept.sum(), flipped)], 1))
    return np.concatenate(found)


def _edges(images):
    """Slopes of the blurred images: (n, h, w) -> (n, h - 4, w - 4, 2)."""
    blurred = images[:, :-2] + 2 * images[:, 1:-1] + images[:, 2:]
    blurred = (blurred[:, :, :-2] + 2 * blurred[:, :, 1:-1] + blurred[:, :, 2:]) / 16
    return np.stack([blurred[:, 2:, 1:-1] - blurred[:, :-2, 1:-1], blurred[:, 1:-1, 2:] - blurred[:, 1:-1, :-2]], -1)


def _resizing(size):
    """The matrix (size, 32) that resizes one side of a thumbnail."""
    return tf.image.resize(tf.eye(SIDE)[..., None], (size, SIDE), antialias=True)[..., 0].numpy()


def _window_energies(edges):
    """The sum of squares of each window of edges: (n, m, m, 2) -> (n, m - 21, m - 21)."""
    sums = np.pad((edges * edges).sum(-1).cumsum(1).cumsum(2), ((0, 0), (1, 0), (1, 0)))
    w = _WINDOW
    return np.maximum(sums[:, w:, w:] - sums[:, :-w, w:] - sums[:, w:, :-w] + sums[:, :-w, :-w], 0)


def _correlations(a, b, resizing, step):
    """The best correlation of the middle of images `a` with `b` (n, 32, 32), over sizes of `b` and positions, every `step`-th: (n,)."""
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
                # 1 a pixel is noise: images of one colour are like nothing.
                best = np.maximum(best, product / (np.sqrt(energy * energies[:, y, x]) + _WINDOW**2))
    return best


def _detail(images):
    """Over how many pixels the edges of images spread: (n,). A bird in the sky has few."""
    energy = (_edges(images) ** 2).sum(-1).reshape(len(images), -1)
    return energy.sum(1) ** 2 / np.maximum((energy * energy).sum(1), 1e-6)


def _is_duplicate(correlation, detail, threshold):
    """Whether edges agree too well for chance: Fisher's z of the correlation, in its standard deviations, is high as well.

    Silhouettes before an empty sky correlate at .9 by themselves; `detail` pixels are as many observations.
    """
    evidence = np.arctanh(np.minimum(correlation, 0.9999)) * np.sqrt(detail)
    return (correlation > threshold) & (evidence > _EVIDENCE)


def near_duplicates(train, test, threshold=THRESHOLD):
    """Finds the images of `train` that are near-duplicates of one of `test`.

    Args:
        train, test: thumbnails (n, 32, 32) uint8.
        threshold: the correlation above which two images are duplicates.

    Returns:
        A list of Pair, in the order of `test` and falling correlation.
    """
    looked_at = candidates(train, test)
    resizing = [_resizing(size) for size in _SIZES]

    def compare(start):
        i, j, flipped = looked_at[start : start + _CHUNK].T
        a, b = test[i].astype("float32"), train[j].astype("float32")
        a = np.where(flipped[:, None, None] == 1, a[:, :, ::-1], a)
        correlation = _correlations(a, b, resizing[::2], 2)
        close = correlation > threshold - _ROUGH
        correlation[close] = _correlations(a[close], b[close], resizing, 1)
        return correlation, _is_duplicate(correlation, np.minimum(_detail(a), _detail(b)), threshold)

    best, starts = {}, range(0, len(looked_at), _CHUNK)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        for start, (correlation, alike) in zip(starts, pool.map(compare, starts)):
            for n in np.nonzero(alike)[0]:
                i, j, flipped = looked_at[start + n].tolist()
                pair = Pair(i, j, float(correlation[n]), bool(flipped))
                if (i, j) not in best or best[i, j].correlation < pair.correlation:
                    best[i, j] = pair
    return sorted(best.values(), key=lambda pair: (pair.test, -pair.correlation))
