"""Writing files so that a crash at any moment leaves the old file or the new one, never half of one."""

import contextlib
import os
import shutil
from collections.abc import Iterator

from etils import epath


def _sync(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path):
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)


@contextlib.contextmanager
def replacing(path: str | os.PathLike) -> Iterator[str]:
    """Yields a temporary path next to `path`, where a file or folder is to be written; at the end it replaces `path`.

    An error inside leaves `path` as it was. The temporary name begins with "." and ends as `path` does.
    """
    path = os.path.abspath(os.fspath(path))
    folder, name = os.path.split(path)
    os.makedirs(folder, exist_ok=True)
    temporary = os.path.join(folder, f".tmp-{os.getpid()}-{name}")
    try:
        yield temporary
        _sync(temporary)
        if os.path.isdir(temporary) and os.path.isdir(path):
            # A folder cannot be renamed over another: the old one is moved away first.
            old = os.path.join(folder, f".old-{os.getpid()}-{name}")
            os.rename(path, old)
            os.rename(temporary, path)
            _remove(old)
        else:
            os.replace(temporary, path)
        _sync(folder)
    finally:
        if os.path.lexists(temporary):
            _remove(temporary)


def write_bytes(path: str | os.PathLike, data: bytes) -> None:
    """Writes `data` to `path`, local or in a bucket (gs://), all or nothing."""
    path = epath.Path(path)
    if "://" in str(path):
        path.write_bytes(data)  # object stores show an object once it is complete
        return
    with replacing(path) as temporary, open(temporary, "wb") as file:
        file.write(data)
