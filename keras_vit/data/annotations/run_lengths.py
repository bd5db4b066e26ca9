"""COCO's run lengths: how many pixels, down the columns, lie outside and inside of a region in turn."""

from typing import Any

import numpy as np

from keras_vit.data.annotations.form import Fault

_ZERO, _BITS, _MORE, _SIGN = 48, 5, 0x20, 0x10  # characters from "0" hold 5 bits each, and whether more follow


def decoded(text: str) -> list[int]:
    """The counts in a compressed text of pycocotools. From the fourth on it holds differences to the count two before.

    Raises:
        ValueError: for other characters, or an end inside of a number.
    """
    counts, value, shift = [], 0, 0
    for character in text:
        digit = ord(character) - _ZERO
        if not 0 <= digit < 2 * _MORE:
            raise ValueError(f"the character {character!r} does not occur in compressed run lengths")
        value |= (digit & (_MORE - 1)) << shift
        shift += _BITS
        if not digit & _MORE:
            value -= (1 << shift) if digit & _SIGN else 0
            counts.append(value + (counts[-2] if len(counts) > 2 else 0))
            value, shift = 0, 0
    if shift:
        raise ValueError("the compressed run lengths are cut short")
    return counts


def runs(segmentation: dict[str, Any], name: str) -> tuple[np.ndarray, tuple[int, int]]:
    """(counts (n,) int64 with n even, (height, width)) of {"size": [h, w], "counts": list or compressed text}.

    Args:
        segmentation: from a file.
        name: of the region, for messages.

    Raises:
        Fault: if it is malformed, or the counts do not cover the size.
    """
    size, counts = segmentation.get("size"), segmentation.get("counts")
    try:
        height, width = (int(side) for side in size)
        values = np.array(decoded(counts) if isinstance(counts, str) else counts, "int64")
    except (TypeError, ValueError, OverflowError) as error:
        raise Fault(f'{name}: expected run lengths as {{"size": [h, w], "counts": ...}}: {error}') from None
    if values.ndim != 1 or (values < 0).any() or values.sum() != height * width:
        raise Fault(f"{name}: the run lengths cover {values.sum()} pixels; their size, {height} x {width}, has others")
    return np.append(values, [0] * (len(values) % 2)).astype("int64"), (height, width)
