"""Writing so that a crash at any moment leaves the old file or the new one, never half of one."""

import contextlib
import os
import shutil
import tempfile

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
def replacing(path):
    """Yields a temporary path beside `path`, for a file or folder to be written; puts it in the place of `path` at the end.

    An error inside leaves `path` as it was. The temporary name begins with "." and keeps the ending of `path`.
    """
    path = os.path.abspath(os.fspath(path))
    folder, name = os.path.split(path)
    os.makedirs(folder, exist_ok=True)
    temporary = os.path.join(folder, f".tmp-{os.getpid()}-{name}")
    try:
        yield temporary
        _sync(temporary)
        if os.path.isdir(temporary) and os.path.isdir(path):
            # A folder cannot be renamed over another: the old one steps aside first.
            aside = os.path.join(folder, f".old-{os.getpid()}-{name}")
            os.rename(path, aside)
            os.rename(temporary, path)
            _remove(aside)
        else:
            os.replace(temporary, path)
        _sync(folder)
    finally:
        if os.path.lexists(temporary):
            _remove(temporary)


def write_bytes(path, data):
    """Writes `data` to `path`, local or in a bucket (gs://), all or nothing."""
    path = epath.Path(path)
    if "://" in str(path):
        path.write_bytes(data)  # object stores show an object when it is whole
        return
    with replacing(path) as temporary, open(temporary, "wb") as file:
        file.write(data)


def save_model(model, path):
    """Writes `model` as a `.keras` file, all or nothing, without its optimizer, to a local path or a bucket (gs://)."""
    if "://" in str(path):
        with tempfile.TemporaryDirectory() as folder:
            local = os.path.join(folder, os.path.basename(str(path)))
            model.save(local, include_optimizer=False)
            epath.Path(path).write_bytes(epath.Path(local).read_bytes())
        return
    with replacing(path) as temporary:
        model.save(temporary, include_optimizer=False)
