"""Models whose variables have no values: only names, shapes and layers."""

import contextlib
from collections.abc import Iterator

import keras
from keras.src.backend.common import global_state


@contextlib.contextmanager
def without_values() -> Iterator[None]:
    """A context in which new models' variables get no values."""
    waiting = global_state.get_global_attribute("uninitialized_variables", [], set_to_default=True)
    before = len(waiting)
    with keras.StatelessScope():
        try:
            yield
        finally:
            del waiting[before:]  # or the scope's end would initialise them
