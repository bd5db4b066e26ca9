"""Checksums of named arrays."""

import zlib
from collections.abc import Mapping

import numpy as np


def checksum(arrays: Mapping[str, np.ndarray]) -> str:
    """CRC-32 of the names and values of {name: array}, in any order, as eight hexadecimal digits."""
    total = 0
    for name in sorted(arrays):
        total = zlib.crc32(
            np.ascontiguousarray(arrays[name]).reshape(-1).view("uint8").data, zlib.crc32(name.encode(), total)
        )
    return f"{total:08x}"
