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


def _characters(number):
    """A number in groups of 5 bits, the lowest first; the last one has the sign."""
    while True:
        bits, number = number & (_MORE - 1), number >> _BITS
        done = number == (-1 if bits & _SIGN else 0)
        yield chr(_ZERO + bits + (0 if done else _MORE))
        if done:
            return


def encoded(counts: Sequence[int]) -> str:
    """Compresses counts as pycocotools does, the reverse of `decoded`."""
    counts = [int(count) for count in counts]
    steps = [count - (counts[i - 2] if i > 2 else 0) for i, count in enumerate(counts)]
    return "".join(character for step in steps for character in _characters(step))


def counted_runs(mask: np.ndarray) -> np.ndarray:
    """The alternating counts of pixels outside and inside a mask (h, w) bool, down the columns: (n,) int64."""
    flat = np.asarray(mask, bool).T.reshape(-1)  # (h, w) -> (w * h)
    bounds = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    return np.diff([0, *([0] if flat.size and flat[0] else []), *bounds, flat.size])


def run_lengths(mask: np.ndarray) -> dict[str, Any]:
    """A mask (h, w) bool in COCO's form, {"size": [h, w], "counts": text}, as pycocotools' `encode` gives it."""
    return {"size": list(mask.shape), "counts": encoded(counted_runs(mask))}


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
