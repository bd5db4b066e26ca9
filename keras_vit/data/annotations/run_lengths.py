"""COCO's run lengths: alternating counts of pixels outside and inside a region, down the columns."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_vit.data.annotations.schema import Fault

_ZERO, _BITS, _MORE, _SIGN = 48, 5, 0x20, 0x10  # characters from "0" encode 5 bits, and whether more follow


def decoded(text: str) -> list[int]:
    """Decodes pycocotools' compressed counts. From the fourth on, they are differences to the count two before.

    Raises:
        ValueError: for invalid characters, or an incomplete number.
    """
    counts, value, shift = [], 0, 0
    for character in text:
        digit = ord(character) - _ZERO
        if not 0 <= digit < 2 * _MORE:
            raise ValueError(f"invalid character {character!r} in compressed run lengths")
        value |= (digit & (_MORE - 1)) << shift
        shift += _BITS
        if not digit & _MORE:
            value -= (1 << shift) if digit & _SIGN else 0
            counts.append(value + (counts[-2] if len(counts) > 2 else 0))
            value, shift = 0, 0
    if shift:
        raise ValueError("the compressed run lengths are truncated")
    return counts


def runs(segmentation: dict[str, Any], name: str) -> tuple[np.ndarray, tuple[int, int]]:
    """Parses {"size": [h, w], "counts": list or compressed text} into counts (n,) int64, n even, and (height, width).

    Args:
        segmentation: dict. From a file.
        name: str. The region's name in messages.

    Raises:
        Fault: if it is malformed, or the counts do not match the size.
    """
    size, counts = segmentation.get("size"), segmentation.get("counts")
    try:
        height, width = (int(side) for side in size)
        values = np.array(decoded(counts) if isinstance(counts, str) else counts, "int64")
    except (TypeError, ValueError, OverflowError) as error:
        raise Fault(f'{name}: expected run lengths as {{"size": [h, w], "counts": ...}}: {error}') from None
    if values.ndim != 1 or (values < 0).any() or values.sum() != height * width:
        raise Fault(f"{name}: expected run lengths for {height} x {width} pixels, got {values.sum()} pixels")
    return np.append(values, [0] * (len(values) % 2)).astype("int64"), (height, width)


def of_segments(segments: np.ndarray, count: int) -> list[np.ndarray]:
    """Returns the counts (n,) int64, n even, of each object of `segments` (h, w, layers), numbered 1 to `count`."""
    pixels = np.swapaxes(segments, 0, 1).reshape(-1, segments.shape[2])  # (h, w, c) -> (w * h, c)
    starts = np.concatenate([[0], np.flatnonzero((pixels[1:] != pixels[:-1]).any(1)) + 1])
    numbers, found = pixels[starts], []
    for number in range(1, count + 1):
        inside = np.concatenate([[False], (numbers == number).any(1)])
        changes = starts[np.flatnonzero(inside[1:] != inside[:-1])]
        counts = np.diff([0, *changes, len(pixels)])
        found.append(np.append(counts, [0] * (len(counts) % 2)).astype("int64"))
    return found


def of_mask(mask: np.ndarray) -> np.ndarray:
    """Returns the counts (n,) int64, n even, of a mask (h, w) bool."""
    return of_segments(mask[..., None], 1)[0]


def united(regions: Sequence[np.ndarray]) -> np.ndarray | None:
    """Returns the counts of the union of regions in one image, each (n,) with n even; None for none."""
    if len(regions) < 2:
        return next(iter(regions), None)
    ends = np.concatenate([np.cumsum(counts) for counts in regions])  # even ones begin a run, odd ones end it
    steps = np.concatenate([np.tile([1, -1], len(counts) // 2) for counts in regions])
    order = np.lexsort([-steps, ends])  # runs that touch are joined
    depth = np.cumsum(steps[order])
    begins = ends[order][(depth == 1) & (steps[order] == 1)]
    stops = ends[order][depth == 0]
    inside = np.stack([begins, stops], 1)[stops > begins].reshape(-1)  # (runs, 2) -> (2 * runs,)
    counts = np.diff([0, *inside, regions[0].sum()])
    return np.append(counts, [0] * (len(counts) % 2)).astype("int64")


def encoded(counts: np.ndarray) -> str:
    """Encodes counts as pycocotools does, the reverse of `decoded`."""
    characters = []
    for i, count in enumerate(counts.tolist()):
        value = count - counts[i - 2].item() if i > 2 else count
        more = True
        while more:
            digit, value = value & (_MORE - 1), value >> _BITS
            more = value != (-1 if digit & _SIGN else 0)
            characters.append(chr(_ZERO + (digit | (_MORE if more else 0))))
    return "".join(characters)


def run_lengths(inside: np.ndarray, top: int, left: int, size: tuple[int, int]) -> dict[str, Any]:
    """A mask in COCO's form, {"size": [h, w], "counts": text}, as pycocotools' `encode` gives it, from a part of it.

    Args:
        inside: (rows, columns) bool. The part with all of the mask's pixels.
        top, left: where it begins.
        size: (h, w) of the mask.
    """
    height, tall = size[0], len(inside) + 1
    flat = np.pad(inside.T, ((0, 0), (0, 1))).reshape(-1)  # a pixel outside ends each column
    places = np.flatnonzero(np.diff(flat.astype("int8"), prepend=np.int8(0)))
    bounds = (left + places // tall) * height + top + places % tall
    starts, stops = bounds[::2], bounds[1::2]
    joined = starts[1:] == stops[:-1]  # a run to the image's lower edge goes on in the next column
    starts, stops = starts[np.append(True, ~joined)[: len(starts)]], stops[np.append(~joined, True)[: len(stops)]]
    counts = np.diff([0, *np.stack([starts, stops], 1).reshape(-1), size[0] * size[1]])  # (runs, 2) -> (2 * runs,)
    return {"size": list(size), "counts": encoded(counts if counts[-1] or len(counts) == 1 else counts[:-1])}
