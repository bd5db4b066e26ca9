"""Check zip archives before anything in them is unpacked."""

import collections
import os
import pathlib
import tokenize
import zipfile
import zlib

# An archive may unpack to at most _RATIO times its size plus _ALLOWANCE. Real checkpoints hardly compress; the
# allowance is for all-zero heads.
_RATIO, _ALLOWANCE = 10, 2**28
# Errors of zipfile and numpy for a damaged archive or array header.
BROKEN = (
    zipfile.BadZipFile,
    zlib.error,
    tokenize.TokenError,
    ArithmeticError,
    EOFError,
    LookupError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
)


def check_archive(path: pathlib.Path) -> list[zipfile.ZipInfo]:
    """The entries of a zip file; ValueError if it is damaged or would unpack to an implausible size."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except BROKEN as error:
        raise ValueError(f'"{path}" is damaged, or not an archive at all: {error}') from None
    for name, count in collections.Counter(entry.filename for entry in entries).most_common(1):
        if count > 1:
            raise ValueError(f'"{path}" contains "{name}" {count} times.')
    # NumPy and Keras write only these two, and only for these does zipfile stop at the requested size, even if the
    # declared one is larger.
    if any(entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for entry in entries):
        raise ValueError(
            f'"{path}" is compressed by a method that checkpoints do not use; expected stored or deflated entries.'
        )
    check_unpacked(path, sum(entry.file_size for entry in entries))
    return entries


def check_unpacked(path: pathlib.Path, total: int) -> None:
    """Refuses a file that would unpack to `total` bytes if that is far more than its size; ValueError with both."""
    size = os.path.getsize(path)
    if total > _RATIO * size + _ALLOWANCE:
        raise ValueError(f'"{path}" has {size:,} bytes and would unpack to {total:,}, so it is refused as a zip bomb.')
