"""Logging: how much, and how often."""

import contextlib
import os
from collections.abc import Iterator

from absl import logging

_said: set[str] = set()


@contextlib.contextmanager
def quiet(level: int = logging.WARNING) -> Iterator[None]:
    """A context that logs only `level` and above: TensorFlow logs a lot while it writes a SavedModel."""
    before = logging.get_verbosity()
    logging.set_verbosity(level)
    try:
        yield
    finally:
        logging.set_verbosity(before)


def printable(name: str) -> str:
    """A file name that can be written anywhere: bytes that are not UTF-8 become \\xff and the like."""
    return os.fsencode(name).decode(errors="backslashreplace")


@logging.skip_log_prefix
def log_once(level: int, text: str, about: str | None = None) -> None:
    """Logs `text` once per process: a run opens the same data for training and for evaluation.

    Args:
        level: of the message.
        text: the message.
        about: of messages about the same only the first is logged; None for the text itself.
    """
    key = text if about is None else about
    if key not in _said:
        _said.add(key)
        logging.log(level, "%s", text)
