"""How much is logged."""

import contextlib
from collections.abc import Iterator

from absl import logging


@contextlib.contextmanager
def quiet(level: int = logging.WARNING) -> Iterator[None]:
    """A context in which only messages of `level` or above are logged: TensorFlow logs a lot while it writes a SavedModel."""
    before = logging.get_verbosity()
    logging.set_verbosity(level)
    try:
        yield
    finally:
        logging.set_verbosity(before)
