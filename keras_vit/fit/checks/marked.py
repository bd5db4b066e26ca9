"""Messages of checks that reach `fit` through a data pipeline, inside TensorFlow's text."""

import contextlib
import re
from collections.abc import Iterator
from typing import Any

# An error inside a data pipeline reaches fit within other text: ours stands between these.
_OPEN, _CLOSE = "<<<", ">>>"


def filled_in(template: str, *values: Any) -> Any:
    """A marked message with tensors, numbers or text for each {}."""
    import tensorflow as tf

    if not values:
        return f"{_OPEN}{template}{_CLOSE}"
    texts = [value if value.dtype == tf.string else tf.strings.as_string(value, shortest=True) for value in values]
    pieces = template.split("{}")
    parts = [part for pair in zip(pieces, [*texts[: len(pieces) - 1], _CLOSE]) for part in pair]
    return tf.strings.join([_OPEN, *parts])


def assert_true(condition: Any, template: str, *values: Any) -> Any:
    """A TensorFlow assertion with a marked message: `values`, tensors, for each {} of the template."""
    import tensorflow as tf

    return tf.debugging.Assert(condition, [filled_in(template, *values)])


@contextlib.contextmanager
def marked() -> Iterator[None]:
    """Marks the message of a ValueError, for `plain_errors`."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{_OPEN}{error}{_CLOSE}") from None


@contextlib.contextmanager
def plain_errors() -> Iterator[None]:
    """Turns a check's error, wrapped by tf.data, into a ValueError with its message."""
    try:
        yield
    except Exception as error:
        found = re.search(re.escape(_OPEN) + "(.*?)" + re.escape(_CLOSE), str(error), re.DOTALL)
        if found is None:
            raise
        raise ValueError(found.group(1).replace('\\"', '"').replace("\\'", "'")) from None
