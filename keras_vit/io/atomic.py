"""Atomic writes: a crash at any moment leaves the old file or the new one, never a part."""

import contextlib
import ctypes
import os
import pathlib
import re
import shutil
import socket
import sys
from collections.abc import Iterator

from etils import epath

from keras_vit.io.paths import os_errors

_AT_FDCWD, _EXCHANGE = -100, 2  # for Linux' renameat2


def _sync(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_all(path: str | os.PathLike) -> None:
    """Syncs a local file, or a folder with its contents: else it may list empty files after a power failure."""
    if not os.path.isdir(path):
        return _sync(path)
    for folder, _, names in os.walk(os.fspath(path), topdown=False):
        for place in (os.path.join(folder, name) for name in names):
            if not os.path.islink(place):
                _sync(place)
        _sync(folder)


def _remove(path):
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)


def _exchange(first, second):
    """Atomically swaps two paths. Returns False if the system cannot."""
    if not sys.platform.startswith("linux"):
        return False
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    return rename is not None and not rename(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _EXCHANGE)


def _replace_folder(path, new, old):
    """Puts the folder `new` at `path`, and the former one at `old` or `new`; interrupted, it leaves only `old`."""
    if _exchange(new, path):
        return
    os.rename(path, old)  # rename cannot replace a non-empty folder
    os.rename(new, path)


def _lives(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's
        return True
    return True


def remove_leftovers(folder: str | os.PathLike, name: str = "") -> None:
    """Removes what dead processes of this machine left in a local folder while writing `name`, or any file.

    A folder that was moved away and not yet replaced is restored.
    """
    pattern = re.compile(rf"\.(tmp|old)-(?:{re.escape(socket.gethostname())}-)?(\d+)-({re.escape(name) or '.*'})")
    for path in pathlib.Path(folder).iterdir():
        match = pattern.fullmatch(path.name)
        if not match or _lives(int(match[2])):
            continue
        with contextlib.suppress(OSError):
            target = path.with_name(match[3])
            os.rename(path, target) if match[1] == "old" and not os.path.lexists(target) else _remove(path)


def check_folder(folder: str | os.PathLike) -> None:
    """Refuses a folder that cannot be written to, before long work; it may not exist yet. Buckets are not checked.

    Raises:
        OSError: naming the file or folder in the way.
    """
    if "://" in str(folder):
        return
    place = pathlib.Path(os.path.abspath(os.path.expanduser(folder)))
    while not os.path.lexists(place):
        place = place.parent
    if not place.is_dir():
        raise NotADirectoryError(f'Cannot write to the folder "{folder}": "{place}" is a file.')
    if not os.access(place, os.W_OK | os.X_OK):
        raise PermissionError(f'Cannot write to the folder "{folder}": "{place}" is read-only.')


@contextlib.contextmanager
def _naming(path):
    """A context in which an OSError names `path` instead of a temporary file or nothing."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None and ".tmp-" not in str(error.filename):
            raise
        raise OSError(error.errno, error.strerror, path) from error


@contextlib.contextmanager
def replacing(path: str | os.PathLike) -> Iterator[str]:
    """Yields a temporary path next to `path` for a file or folder, which replaces `path` at the end. Expands "~".

    An error inside leaves `path` as it was. The temporary name begins with "." and ends like `path`; leftovers of a
    killed process under such names are removed.

    Raises:
        ValueError: for a path in a bucket.
        OSError: if writing fails, naming `path`.
    """
    if "://" in os.fspath(path):
        raise ValueError(
            f'"{path}" is in a bucket, but this can only be written to a local path. Write it locally, then copy it.'
        )
    path = os.path.abspath(os.path.expanduser(os.fspath(path)))
    folder, name = os.path.split(path)
    temporary, old = (
        os.path.join(folder, f".{what}-{socket.gethostname()}-{os.getpid()}-{name}") for what in ("tmp", "old")
    )
    with _naming(path):
        os.makedirs(folder, exist_ok=True)
        remove_leftovers(folder, name)
        try:
            yield temporary
            sync_all(temporary)
            if os.path.isdir(temporary) and os.path.isdir(path):
                _replace_folder(path, temporary, old)
            else:
                os.replace(temporary, path)
            _sync(folder)
        finally:
            if os.path.lexists(old) and not os.path.lexists(path):  # an error or Ctrl-C came between the renames
                os.rename(old, path)
            for leftover in (temporary, old):
                if os.path.lexists(leftover):
                    _remove(leftover)


def write_bytes(path: str | os.PathLike, data: bytes) -> None:
    """Writes `data` to `path`, local or in a bucket (gs://), atomically.

    Raises:
        OSError: if writing fails.
    """
    if "://" in str(path):
        with os_errors():
            epath.Path(path).write_bytes(data)  # object stores show only complete objects
        return
    with replacing(path) as temporary, open(temporary, "wb") as file:
        file.write(data)
