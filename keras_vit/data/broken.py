"""Examples that cannot be read or decoded: a run leaves them out, names them, and stops when there are too many."""

import contextlib
import functools
import threading

import tensorflow as tf
from absl import logging

_NAMED = 20


class TooManyBroken(ValueError):
    """More examples than the limit are broken, or there is no good one to take a broken one's place."""


class Broken:
    """What a run knows of its broken examples; give one to training_batches and evaluation_batches as `broken`.

    Attributes:
        limit: how many examples may be broken; one more is an error.
        names: {name: reason} of the examples, in the order in which they were found.

    Raises:
        ValueError: if the limit is negative.
    """

    def __init__(self, limit=100):
        if limit < 0:
            raise ValueError(f"Expected a limit of 0 or more broken examples, got {limit}.")
        self.limit, self.names = limit, {}
        self._error, self._lock = None, threading.Lock()

    def add(self, name, reason):
        """Counts an example, once, and warns of it; `reason` is a function, called once.

        Raises:
            TooManyBroken: past the limit.
        """
        with self._lock:
            if name in self.names:
                return
            self.names[name] = reason()
            if len(self.names) <= _NAMED:
                logging.warning("Skipping %s: %s", name, self.names[name])
            elif len(self.names) == _NAMED + 1:
                logging.warning("More broken examples than %d: they are counted, and no longer named here.", _NAMED)
            if len(self.names) > self.limit:
                self.stop(f"More than {self.limit} examples cannot be used, {name} among them: {self.names[name]} ")

    def stop(self, what):
        """Raises the error that `raised` brings to the user."""
        self._error = TooManyBroken(
            f"{what.strip()} Mend or remove the files that the warnings name, or raise the limit: --config.data.broken_limit, or "
            "Broken(limit=...)."
        )
        raise self._error

    @contextlib.contextmanager
    def raised(self):
        """Around what reads the batches: TensorFlow wraps an error from inside a dataset in its own; this brings out the clean one.

        Raises:
            TooManyBroken: as `add` raised it.
        """
        try:
            yield
        except tf.errors.OpError:
            if self._error is not None:
                raise self._error from None
            raise

    def report(self):
        """A line for each example, its name and the reason with a tab between; "" without any."""
        return "".join(f"{name}\t{reason}\n" for name, reason in self.names.items())


def reason(error):
    """A TensorFlow error's message alone, without where it happened in the program and in the graph."""
    message = str(error).split("\n\t [[")[0].rstrip().split("\n")[-1]
    message = message.rsplit("}} ", 1)[-1].split(" [Op:")[0]
    if message.startswith("assertion failed: "):  # [what] [number]...
        message = message.removeprefix("assertion failed: ").strip("[]").replace("] [", " ")
    return message or type(error).__name__


def _why(function, source, number, identity):
    """Why `function` of (number, key) fails for an example."""
    try:
        function(tf.constant(number), source.found(*identity))
    except (tf.errors.OpError, ValueError) as error:
        return reason(error)
    return "it could not be read at first, and could a moment later"


def told(failed, identities, broken, function, source):
    """Tells `broken` of the rows (b,) bool that failed; in a graph. A tensor to wait for.

    Args:
        failed, identities: of attempts.attempted, the identities being (number of the row, source.identity(key)...).
        broken: a Broken.
        function: what failed, of (number, key), to find out why.
        source: of the keys.
    """

    def tell(failed, identities):
        rows = tf.io.parse_tensor(identities, tf.int64).numpy()
        for number, *identity in rows[failed[: len(rows)]]:
            key = identity[0] if len(identity) == 1 else identity
            broken.add(source.called(key), functools.partial(_why, function, source, number, identity))
        return True

    return tf.cond(tf.reduce_any(failed), lambda: tf.numpy_function(tell, [failed, identities], tf.bool), lambda: True)


def _nearest(good):
    """For each row (b,) bool the nearest that is good, of two the upper."""
    row = tf.range(tf.size(good))
    distance = tf.abs(row[:, None] - row[None])  # b b
    return tf.argmin(tf.where(good[None], distance, tf.size(good)), 1)


def filled(values, good, broken):
    """Each row that is not good replaced by the nearest good one of its batch; in a graph. Raises TooManyBroken if none is good."""

    def stop(rows):
        broken.stop(f"None of the {rows} examples of a batch can be used, so that nothing can take their place.")

    def fill():
        none = lambda: tf.numpy_function(stop, [tf.size(good)], tf.bool)  # noqa: E731
        with tf.control_dependencies([tf.cond(tf.reduce_any(good), lambda: True, none)]):
            places = _nearest(good)
        return tf.nest.map_structure(lambda value: tf.gather(value, places), values)

    return tf.cond(tf.reduce_all(good), lambda: values, fill)
