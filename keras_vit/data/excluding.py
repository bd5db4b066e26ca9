"""Leaving examples out of a source by name: near-duplicates of a test set, pictures that somebody asked to have removed.

An example's name is what messages call it: an image's path, or "FILE, record NUMBER". A file of names holds one a line; lines that begin
with "# " are comments. A name may be shortened from the left at a "/": "cat/a.jpg" is "/data/photos/cat/a.jpg".
"""

import dataclasses

import numpy as np
import tensorflow as tf
from absl import logging

from keras_vit.data.paths import read_text
from keras_vit.data.source import RandomAccess, record_name


def read_names(path):
    """The names in a file, one a line.

    Raises:
        FileNotFoundError: if there is no such file.
    """
    lines = (line.strip() for line in read_text(path).splitlines())
    return [line for line in lines if line and not line.startswith("# ")]


def _names(source):
    """The number of an example of a RandomAccess source -> its name, a scalar string tensor."""
    return source.names or (lambda i: tf.strings.join([f"{source.name}, example ", tf.strings.as_string(i)]))


def example_names(source):
    """The names of all examples of a source, in its order.

    Returns:
        A list of text.
    """
    if not isinstance(source, RandomAccess):
        records = ((path, n) for path, skip, take in source.files for n in range(skip, skip + take))
        return [record_name(path, n) for path, n in records if n not in source.excluded.get(path, ())]
    return [name.decode() for name in tf.data.Dataset.range(source.size).map(_names(source)).as_numpy_iterator()]


def _matches(name, names):
    """Which of the set `names` is `name`, whole or shortened from the left; None if none is."""
    while name not in names:
        _, slash, name = name.partition("/")
        if not slash:
            return None
    return name


def _without_numbers(source, numbers):
    """A RandomAccess source without the examples of those numbers."""
    kept = np.setdiff1d(np.arange(source.size), numbers)
    old = tf.constant(kept, tf.int64)
    lookup, names = lambda i: source.lookup(old[i]), lambda i: _names(source)(old[i])
    return dataclasses.replace(source, labels=source.labels[kept], lookup=lookup, names=names)


def without(source, names):
    """`source` without the examples of those names. Names of no example are counted in a warning: a slice may not hold them.

    Args:
        source: from `open_source` or `from_arrays`.
        names: text, as `example_names` gives it, whole or shortened from the left.

    Raises:
        ValueError: if none of the names is an example's, or all are.
    """
    names = set(names)
    every = example_names(source)
    found = {i: _matches(name, names) for i, name in enumerate(every)}
    found = {i: match for i, match in found.items() if match is not None}
    if names and not found:
        raise ValueError(
            f"None of the {len(names)} names to leave out, such as {min(names)!r}, is an example of {source.name}, such as {every[0]!r}."
        )
    if len(found) == len(every):
        raise ValueError(f"All {len(every)} examples of {source.name} are to be left out.")
    unknown = names - set(found.values())
    if unknown:
        text = "%d of %d names to leave out are no examples of %s: %s..."
        logging.warning(text, len(unknown), len(names), source.name, min(unknown))
    logging.info("%s: %d examples of %d left out by name.", source.name, len(found), len(every))
    if isinstance(source, RandomAccess):
        return _without_numbers(source, sorted(found))
    excluded = {path: set(numbers) for path, numbers in source.excluded.items()}
    for i in found:
        path, _, number = every[i].rpartition(", record ")
        excluded.setdefault(path, set()).add(int(number))
    return dataclasses.replace(source, excluded={path: tuple(sorted(numbers)) for path, numbers in excluded.items()})
