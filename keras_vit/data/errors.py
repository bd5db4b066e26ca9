"""Handles examples that cannot be read or decoded: a run skips and names them, and stops if there are too many."""

import ast
import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from absl import logging

from keras_vit.io.logs import printable

_NAMED = 20
DESCRIBED_WRONGLY = "The source is described wrongly:"  # prefix of failures that are not the example's fault


class WrongDescription(ValueError):
    """An example contradicts the description of its source, so others would fail or be misread, too."""


def wrong_description(name: str, found: str) -> WrongDescription | None:
    """Returns a WrongDescription if `found`, the reason why example `name` failed, is not the example's fault."""
    return WrongDescription(f"{name}. {found}") if found.startswith(DESCRIBED_WRONGLY) else None


class TooManyErrors(ValueError):
    """More examples failed than the limit, or no good example can replace a failed one."""


def _line(name, reason):
    return f"{name}\t{reason}\n"


class ExampleErrors:
    """Failed examples of a run, passed to training_batches and evaluation_batches as `errors`.

    Attributes:
        limit: int. How many examples may fail; one more raises.
        added: callable or None. Called with each new line of the report.
        names: dict. Reasons by name, in order of failure.

    Raises:
        ValueError: if the limit is negative.
    """

    def __init__(self, limit: int = 100, added: Callable[[str], None] | None = None):
        if limit < 0:
            raise ValueError(f"Expected a limit of at least 0 failed examples, got {limit}.")
        self.limit, self.names, self.added = limit, {}, added
        self._error: ValueError | None = None
        self._lock = threading.Lock()

    def add(self, name: str, reason: Callable[[], str]) -> None:
        """Counts a failed example and warns about it, once per name; calls `reason` once.

        Raises:
            TooManyErrors: above the limit.
            WrongDescription: if the reason starts with DESCRIBED_WRONGLY.
        """
        with self._lock:
            if name in self.names:
                return
            found = reason()
            wrong = wrong_description(name, found)
            if wrong is not None:
                self._error = wrong
                raise wrong
            self.names[name] = found
            if self.added is not None:
                self.added(_line(name, self.names[name]))
            if len(self.names) <= _NAMED:
                logging.warning("Skipping %s: %s", printable(name), self.names[name])
            elif len(self.names) == _NAMED + 1:
                logging.warning(
                    "More than %d examples failed: from now on they are only counted, not named here.", _NAMED
                )
            if len(self.names) > self.limit:
                self.stop(f"More than {self.limit} examples cannot be used, including {name}: {self.names[name]} ")

    def stop(self, what: str) -> None:
        """Raises TooManyErrors, which `raised` passes on to the user."""
        self._error = TooManyErrors(
            f"{what.strip()} Fix or remove the files named in the warnings, or raise the limit:"
            " --config.data.broken_limit for training, --broken_limit for evaluate, probe, vtab and predict,"
            " ExampleErrors(limit=...) in a script."
        )
        raise self._error

    @contextlib.contextmanager
    def raised(self) -> Iterator[None]:
        """Context for reading batches that raises the original of an error that TensorFlow wrapped inside a dataset.

        Raises:
            TooManyErrors, WrongDescription: from `add`.
        """
        try:
            yield
        except tf.errors.OpError:
            if self._error is not None:
                raise self._error from None
            raise

    def report(self) -> str:
        """Returns one line per failed example, name and reason separated by a tab, or ""."""
        return "".join(_line(name, reason) for name, reason in self.names.items())


def _plain(line):
    return ast.literal_eval(line).decode(errors="replace") if line[:2] in ("b'", 'b"') else line


# Replacements for messages of TensorFlow that list other formats than we support.
_OURS = (
    ("Unknown image file format", "It is not an image of a known format."),
    ("Input is empty", "It is empty: there are no bytes."),
)


def reason(error: Exception) -> str:
    """Extracts the message of a TensorFlow error, without its location in the program and graph."""
    _, failed, lines = str(error).partition(" to be true. Summarized data: ")  # tf.debugging.Assert outside a graph
    if failed:
        return " ".join(map(_plain, lines.split("\n")))
    message = str(error).split("\n\t [[")[0].split("\nTraceback (most recent call last)")[0].rstrip().split("\n")[-1]
    message = message.rsplit("}} ", 1)[-1].split(" [Op:")[0]
    _, failed, what = message.rpartition("assertion failed: ")  # [what] [number]...; in a dataset after the location
    if failed:
        message = what.strip("[]").replace("] [", " ")
    message = message.removeprefix("ValueError: ")  # raised in Python inside a graph
    return next((ours for theirs, ours in _OURS if message.startswith(theirs)), message) or type(error).__name__


def why(function: Callable[[], Any]) -> str:
    """Returns the reason why `function`, which reads a failed example, fails."""
    try:
        function()
    except (tf.errors.OpError, ValueError) as error:
        return reason(error)
    return "the first attempt to read it failed, but a second one succeeded"


def report_errors(failed: tf.Tensor, ids: tf.Tensor, errors: ExampleErrors, function: Callable, source) -> tf.Tensor:
    """Adds the failed rows to `errors`, in a graph. Returns a tensor to wait for.

    Args:
        failed: (b,) bool. From fallible_map.
        ids: (n, m) int64. From fallible_map: (row number, *source.ids(key)).
        errors: ExampleErrors. Receives the failed examples.
        function: callable. The function of (number, key) that failed; called again to find the reason.
        source: Source of the keys.
    """

    def add(failed, ids):
        for number, *example_id in ids[failed[: len(ids)]]:

            def again(number=number, example_id=tuple(example_id)):
                function(tf.constant(number), source.make_key(*example_id))

            errors.add(source.example_name(*example_id), functools.partial(why, again))
        return True

    return tf.cond(tf.reduce_any(failed), lambda: tf.numpy_function(add, [failed, ids], tf.bool), lambda: True)


def _nearest(good):
    """Returns each row's nearest good row, the upper one of two; `good` is (b,) bool."""
    row = tf.range(tf.size(good))
    distance = tf.abs(row[:, None] - row[None])  # b b
    return tf.argmin(tf.where(good[None], distance, tf.size(good)), 1)


@functools.partial(tf.function, autograph=False)  # traced once for all datasets with these values
def _all_good(values, good):
    """Replaces bad rows of `values` by the nearest good row."""

    def replace():
        nearest = _nearest(good)
        return tf.nest.map_structure(lambda value: tf.gather(value, nearest), values)

    return tf.cond(tf.reduce_all(good), lambda: values, replace)


def replaced(values, good: tf.Tensor, errors: ExampleErrors):
    """Replaces bad rows of `values` by the nearest good row, in a graph. Raises TooManyErrors if none is good."""

    def stop(rows):
        errors.stop(f"None of the {rows} examples of a batch can be used.")

    def none():
        return tf.numpy_function(stop, [tf.size(good)], tf.bool)

    with tf.control_dependencies([tf.cond(tf.reduce_any(good), lambda: True, none)]):
        return _all_good(values, tf.identity(good))
