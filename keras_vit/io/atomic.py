"""Writing files so that a crash at any moment leaves the old file or the new one, never half of one."""

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

_AT_FDCWD, _EXCHANGE = -100, 2  # of Linux' renameat2


def _sync(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_all(path: str | os.PathLike) -> None:
    """Syncs a local file, or a folder with all that is in it: synced alone, it would name files without content after a
    power failure.
    """
    if not os.path.isdir(path):
        return _sync(path)
    for folder, _, names in os.walk(path, topdown=False):
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
    """Lets two paths change places at one instant. Returns False if the system cannot do that."""
    if not sys.platform.startswith("linux"):
        return False
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    return rename is not None and not rename(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _EXCHANGE)


def _replace_folder(path, new, old):
    """Puts the folder `new` at `path`; what was there is moved to `old` or `new`. Stopped between, it leaves `old`
    alone.
    """
    if _exchange(new, path):
        return
    os.rename(path, old)  # a folder cannot be renamed over another
    os.rename(new, path)


def _lives(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it is another user's
        return True
    return True


def remove_leftovers(folder: str | os.PathLike, name: str = "") -> None:
    """Removes what processes of this machine that are gone left in a local folder while writing a file `name`, or any
    file.

    A folder that was moved away and not yet replaced comes back.
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
    """Refuses a folder that could not be written to, before long work; it need not exist yet. Buckets are not checked.

    Raises:
        OSError: naming the file or folder that is in the way.
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
    """A context in which an OSError names `path`, not a temporary file or none."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None and ".tmp-" not in str(error.filename):
            raise
        raise OSError(error.errno, error.strerror, path) from error


@contextlib.contextmanager
def replacing(path: str | os.PathLike) -> Iterator[str]:
    """Yields a temporary path next to `path`, where a file or folder is to be written; at the end it replaces `path`.
    "~" is expanded.

    An error inside leaves `path` as it was. The temporary name begins with "." and ends as `path` does; what a killed
    process left under such a name is removed.

    Raises:
        ValueError: for a path in a bucket.
        OSError: if it cannot be written, naming `path`.
    """
    if "://" in os.fspath(path):
        raise ValueError(
            f'"{path}" is in a bucket, and this can be written to local paths only. Write it here, then copy it there.'
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
            if os.path.lexists(old) and not os.path.lexists(path):  # an error or Ctrl-C came between the two
                os.rename(old, path)
            for leftover in (temporary, old):
                if os.path.lexists(leftover):
                    _remove(leftover)


def write_bytes(path: str | os.PathLike, data: bytes) -> None:
    """Writes `data` to `path`, local or in a bucket (gs://), all or nothing.

    Raises:
        OSError: if it cannot be written.
    """
    path = epath.Path(path)
    if "://" in str(path):
        with os_errors():
            path.write_bytes(data)  # object stores show an object once it is complete
        return
    with replacing(path) as temporary, open(temporary, "wb") as file:
        file.write(data)
