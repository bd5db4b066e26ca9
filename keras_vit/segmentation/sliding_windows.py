"""Dense predictions of images of any size from a function of windows of one size. NumPy alone.

Windows move over an image in rows, from its top. Where they overlap, their outputs are averaged. Rows of pixels are
handed on as soon as no later window covers them, so that memory does not grow with the image's height.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

_STRIP = 2**22  # numbers in the rows that `resized` makes at a time


def starts(length: int, window: int, overlap: float) -> list[int]:
    """First pixels of windows over `length` pixels, each sharing at least `overlap` of its length with the next.

    The last one ends at the border, as in mmsegmentation.
    """
    stride = max(1, int(window * (1 - overlap)))
    return [*range(0, length - window, stride), length - window]


class Window(NamedTuple):
    """A window's pixels (h, w, c), its first row and column, and whether it is mirrored from left to right."""

    pixels: np.ndarray
    top: int
    left: int
    flipped: bool


def windows(image: np.ndarray, size: tuple[int, int], overlap: float, flips: bool) -> Iterator[Window]:
    """The windows of `size` pixels over an image (h, w, c) of at least that size, row by row; with `flips` each twice.

    Args:
        image: pixels.
        size: (height, width) of a window.
        overlap: share of a window, 0 <= overlap < 1.
        flips: whether each window also comes mirrored.
    """
    height, width = size
    tops, lefts = (starts(length, window, overlap) for length, window in zip(image.shape, size))
    for top, left in itertools.product(tops, lefts):
        pixels = image[top : top + height, left : left + width]
        yield Window(pixels, top, left, False)
        if flips:
            yield Window(pixels[:, ::-1], top, left, True)


def batched(items: Iterable, size: int) -> Iterator[list]:
    """Lists of `size` items; the last may be shorter."""
    iterator = iter(items)
    while batch := list(itertools.islice(iterator, size)):
        yield batch


def averaged(
    found: Iterable[tuple[Window, np.ndarray]], shape: tuple[int, int], size: tuple[int, int]
) -> Iterator[np.ndarray]:
    """The outputs (h, w, k) of an image's `windows`, averaged, as consecutive rows (r, w, k) float32 from the top.

    Args:
        found: each window with its outputs (height, width, k), in the order of `windows`.
        shape: (h, w) of the image.
        size: (height, width) of a window.
    """
    (height, width), rows = size, None
    for top, group in itertools.groupby(found, key=lambda pair: pair[0].top):
        for window, outputs in group:
            if rows is None:
                rows, first = np.zeros((height, shape[1], outputs.shape[-1]), "float32"), 0
                count = np.zeros((height, shape[1], 1), "float32")
            if first < top:
                passed = top - first
                yield rows[:passed] / count[:passed]
                for buffer in (rows, count):
                    buffer[:-passed] = buffer[passed:].copy()
                    buffer[-passed:] = 0
                first = top
            columns = slice(window.left, window.left + width)
            rows[:, columns] += outputs[:, ::-1] if window.flipped else outputs
            count[:, columns] += 1
    if rows is not None:
        yield rows / count


def _between(length, wanted):
    """For each of `wanted` pixels: the two of `length` pixels around its centre, and the second one's share."""
    places = np.clip((np.arange(wanted) + 0.5) * (length / wanted) - 0.5, 0, length - 1)
    low = np.floor(places).astype(int)
    return low, np.minimum(low + 1, length - 1), (places - low).astype("float32")


def resized(rows: Iterable[np.ndarray], shape: tuple[int, int], size: tuple[int, int]) -> Iterator[np.ndarray]:
    """Consecutive rows (r, w, k) of values (h, w, k) resized to (height, width): rows (r', width, k), bilinear.

    Centres of pixels are at halves, without antialiasing, as in tf.image.resize and torch's align_corners=False.

    Args:
        rows: parts from the top.
        shape: (h, w).
        size: (height, width).
    """
    if tuple(shape) == tuple(size):
        yield from rows
        return
    low, high, share = _between(shape[0], size[0])
    left, right, across = _between(shape[1], size[1])
    share, across, done, first, kept = share[:, None, None], across[:, None], 0, 0, None
    for part in rows:
        kept = part if kept is None else np.concatenate([kept, part])
        ready = int(np.searchsorted(high, first + len(kept)))  # output rows with all their sources
        strip = max(1, _STRIP // (size[1] * kept.shape[-1]))
        for start in range(done, ready, strip):
            y = slice(start, min(start + strip, ready))
            mixed = kept[low[y] - first] * (1 - share[y]) + kept[high[y] - first] * share[y]  # (r', w, k)
            yield mixed[:, left] * (1 - across) + mixed[:, right] * across
        done = ready
        if done < size[0]:
            passed = min(low[done] - first, len(kept))
            kept, first = kept[passed:], first + passed


def run_windows(
    stream: Iterable[tuple[int, Window]], function: Callable[[np.ndarray], np.ndarray], batch_size: int
) -> Iterator[tuple[int, Window, np.ndarray]]:
    """(number, window, its outputs) of (image's number, window), computed `batch_size` windows at a time.

    Args:
        stream: windows of one or several images.
        function: pixels (b, h, w, c) -> outputs (b, h, w, k).
        batch_size: most windows at a time.
    """
    for batch in batched(stream, batch_size):
        found = function(np.stack([window.pixels for _, window in batch]))
        for (number, window), outputs in zip(batch, found):
            yield number, window, outputs
