"""Paths, local or in a bucket (gs://, through TensorFlow), and options after a path."""

import concurrent.futures
import contextlib
import os
import pathlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from etils import epath

_OPTIONS = re.compile(r"\?(?P<options>\w+=[^?]*)$")  # a "?" without key=value after it is a wildcard
THREADS = 32  # at once: a bucket answers slowly, but many requests at a time


@contextlib.contextmanager
def os_errors() -> Iterator[None]:
    """A context that turns TensorFlow's errors from buckets into the OSErrors that a disk would raise.

    Raises:
        OSError: or its FileNotFoundError or PermissionError.
    """
    try:
        yield
    except Exception as error:
        tensorflow = sys.modules.get("tensorflow")  # not loaded: none of its errors
        if tensorflow is None or not isinstance(error, tensorflow.errors.OpError):
            raise
        kinds = {
            tensorflow.errors.NotFoundError: FileNotFoundError,
            tensorflow.errors.PermissionDeniedError: PermissionError,
        }
        raise kinds.get(type(error), OSError)(error.message or type(error).__name__) from None


def split_options(text: str, /, **defaults: str) -> tuple[str, dict[str, str]]:
    """Splits "PATH?key=value&key=value" into (PATH, {key: value}), all text, with defaults for missing keys.

    Raises:
        ValueError: for a key not in `defaults`.
    """
    match = _OPTIONS.search(text)
    if not match:
        return text, defaults
    chosen = dict(defaults)
    for part in match["options"].split("&"):
        key, equals, value = part.partition("=")
        if key not in defaults or not equals:
            raise ValueError(f'"{text}" has the option "{part}". Valid: {", ".join(f"{name}=" for name in defaults)}.')
        chosen[key] = value
    return text[: match.start()], chosen


def locate(path: str, data_dir: str | os.PathLike | None = None) -> str:
    """The full path of `path`, with "~" expanded; below `data_dir` if given and `path` is relative."""
    if "://" in path:
        return path
    path = os.path.expanduser(path)
    return path if data_dir is None else os.path.join(os.path.expanduser(str(data_dir)), path)


def paths_in(folder: str | os.PathLike, start: str = "", end: str = "") -> list[epath.Path]:
    """A folder's sorted entries with names of this `start` and `end`; [] if it does not exist.

    epath's own `glob` also takes the folder's name as a pattern, and finds nothing in "train[:90%]".
    """
    place = epath.Path(folder)
    if not place.is_dir():
        return []
    return sorted(path for path in place.iterdir() if path.name.startswith(start) and path.name.endswith(end))


def read_text(path: str | os.PathLike) -> str:
    """The text of a UTF-8 file, with or without a byte order mark.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is not UTF-8.
    """
    read = _read_from_bucket if "://" in str(path) else _read
    try:
        return read(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f'"{path}" is not UTF-8 text: {error}. Save it as UTF-8.') from None


def _read(path):
    try:
        return pathlib.Path(path).read_bytes()
    except OSError as error:
        raise FileNotFoundError(f'Cannot read "{path}": {error.strerror}.') from None


def _read_from_bucket(path):
    import tensorflow as tf  # imported here: models load without it on JAX

    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            return file.read()
    except tf.errors.OpError as error:
        raise FileNotFoundError(f'Cannot read "{path}": {error.message or type(error).__name__}.') from None


def in_threads(function: Callable[[Any], Any], items: Iterable) -> list:
    """[function(item) for item in items], many at once: for calls that wait for a file system."""
    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(function, items))
