"""Subsets of a source by position or by name, and the names and labels of its examples.

Exclusion by name serves for near-duplicates of a test set and for removal requests. An example's name is the one in
messages: the image's path, or "FILE, record NUMBER". A file of names has one per line; lines that start with "# " are
comments. Names may be shortened from the left at a "/": "cat/a.jpg" matches "/data/photos/cat/a.jpg".
"""

import dataclasses
import os
import zlib
from collections.abc import Iterable, Sequence

import numpy as np
import tensorflow as tf
from absl import logging

from keras_vit.data.errors import reason
from keras_vit.data.sharding import WHOLE
from keras_vit.data.sources.base import RandomAccess, Records, Source, record_name
from keras_vit.io.paths import read_text


def read_names(path: str | os.PathLike) -> list[str]:
    """Reads names from a file, one per line.

    Raises:
        FileNotFoundError: if there is no such file.
    """
    lines = (line.strip() for line in read_text(path).splitlines())
    return [line for line in lines if line and not line.startswith("# ")]


def _names(source):
    """Returns a RandomAccess source's function from number to name, a scalar string tensor."""
    return source.names or (lambda i: tf.strings.join([f"{source.name}, example ", tf.strings.as_string(i)]))


def example_names(source: Source) -> list[str]:
    """Lists the names of a source's examples, in order."""
    if isinstance(source, Records):
        records = ((path, n) for path, skip, take in source.files for n in range(skip, skip + take))
        return [record_name(path, n) for path, n in records if n not in source.excluded.get(path, ())]
    batches = tf.data.Dataset.range(source.size).map(_names(source)).batch(1000).as_numpy_iterator()
    return [name.decode(errors="replace") for batch in batches for name in batch]


def names_at(source: Source, numbers: Sequence[int]) -> list[str]:
    """Lists the names of the examples at positions `numbers`; reads no example."""
    if not isinstance(source, Records):
        return example_names(_picked(source, np.asarray(numbers, "int64")))
    starts = np.cumsum([0, *source.counts])
    names = []
    for file in np.unique(np.searchsorted(starts, numbers, side="right") - 1):
        path, skip, take = source.files[file]
        kept = np.setdiff1d(np.arange(skip, skip + take), source.excluded.get(path, ()))
        in_file = [number for number in numbers if starts[file] <= number < starts[file + 1]]
        names += [record_name(path, kept[number - starts[file]]) for number in in_file]
    return names


def digest(source: Source) -> str:
    """Computes a checksum of a source's examples and order from names, or files and positions; reads no example."""
    if isinstance(source, Records):
        names = [f"{path} {skip} {take} {sorted(source.excluded.get(path, ()))}" for path, skip, take in source.files]
    elif isinstance(source, RandomAccess) and source.names is None:
        names = [f"{source.name}, {source.size}"]
    else:
        names = example_names(source)
    return f"{zlib.crc32(chr(10).join(names).encode(errors='replace')):08x}"


def digest_of_files(source: Source) -> str | None:
    """Computes a checksum of a source's files and order, which survives moving their folder; None without files."""
    if not isinstance(source, RandomAccess) or source.names is None:
        return None
    names = example_names(source)
    start = len(os.path.commonprefix(names).rpartition("/")[0])
    return f"{zlib.crc32(chr(10).join(name[start:] for name in names).encode(errors='replace')):08x}"


def read_labels(source: Source) -> np.ndarray:
    """Returns a source's labels in order, (size,) int64. Reads records once, without decoding images.

    Raises:
        ValueError: if the examples have no labels, or a label is not a class.
    """
    targets = source.void is not None or source.most_objects is not None  # for pixels or objects
    if source.labels is None if isinstance(source, RandomAccess) else not source.class_names or targets:
        raise ValueError(f"{source.name} has no labels.")
    if isinstance(source, RandomAccess):
        return np.asarray(source.labels, "int64")
    labels = source.ordered().map(lambda example: example["label"]).batch(4096)
    try:
        return np.concatenate(list(labels.as_numpy_iterator())).astype("int64")
    except tf.errors.OpError as error:
        raise ValueError(f"{source.name}: {reason(error)}") from None


def _picked(source, numbers):
    """Returns a RandomAccess source of the examples `numbers`, in that order."""
    places = tf.constant(numbers, tf.int64)

    def lookup(i):
        return source.lookup(places[i])

    def names(i):
        return _names(source)(places[i])

    labels = None if source.labels is None else source.labels[numbers]
    return dataclasses.replace(source, labels=labels, lookup=lookup, names=names, count=len(numbers))


@dataclasses.dataclass(frozen=True)
class _RecordSubset(Records):
    """Records with only the examples `numbers` in `ordered` and `keys`."""

    numbers: np.ndarray = ()

    @property
    def size(self):
        return len(self.numbers)

    def keys(self, shard=WHOLE):
        wanted = np.zeros(sum(self.counts), bool)
        wanted[self.numbers] = True
        wanted = tf.constant(wanted)
        numbered = super().keys().enumerate().filter(lambda i, key: wanted[i])
        return shard.select(numbered.map(lambda i, key: key).take(self.size))


def _around(source, numbers):
    """Narrows Records to the files with the examples `numbers`; returns them and the examples' numbers there."""
    counts = source.counts
    starts, files, places, before = np.cumsum([0, *counts]), [], [], 0
    for i in np.unique(np.searchsorted(starts, numbers, side="right") - 1):
        path, skip, take = source.files[i]
        count, in_file = counts[i], numbers[slice(*np.searchsorted(numbers, starts[i : i + 2]))] - starts[i]
        if count == take:  # with excluded records, a number is not a position in the file
            skip, take, in_file = skip + int(in_file[0]), int(in_file[-1] - in_file[0]) + 1, in_file - in_file[0]
            count = take
        files.append((path, skip, take))
        places.append(in_file + before)
        before += count
    return dataclasses.replace(source, files=tuple(files)), np.concatenate(places)


def subset(source: Source, numbers) -> Source:
    """Returns the examples at `numbers`, ascending positions, as a source for evaluation_batches.

    RandomAccess reads only these examples. Records reads only the files that contain them, each up to the last one,
    and decodes only these.
    """
    numbers = np.asarray(numbers, "int64")
    if isinstance(source, RandomAccess):
        return _picked(source, numbers)
    if isinstance(source, Records) and source.memory is None and len(numbers):
        source, numbers = _around(source, numbers)
    fields = {field.name: getattr(source, field.name) for field in dataclasses.fields(Records)}
    return _RecordSubset(**fields, numbers=numbers)


def _matches(name, names):
    """Returns the element of `names` that equals `name`, or `name` shortened from the left; None without a match."""
    while name not in names:
        _, slash, name = name.partition("/")
        if not slash:
            return None
    return name


def without(source: Source, names: Iterable[str]) -> Source:
    """Excludes examples by name; warns about names that match no example, as in a slice.

    Args:
        source: Source. From `open_source` or `from_arrays`.
        names: iterable of str. Names as from `example_names`, complete or shortened from the left.

    Raises:
        ValueError: if no name matches, or no example is left.
    """
    names = set(names)
    every = example_names(source)
    matches = {i: _matches(name, names) for i, name in enumerate(every)}
    matches = {i: match for i, match in matches.items() if match is not None}
    if names and not matches:
        raise ValueError(
            f"None of the {len(names)} names to exclude, such as {min(names)!r}, matches an example of {source.name},"
            f" such as {every[0]!r}."
        )
    if len(matches) == len(every):
        raise ValueError(f"The names would exclude all {len(every)} examples of {source.name}.")
    unknown = names - set(matches.values())
    if unknown:
        text = "%d of %d names to exclude are not examples of %s: %s..."
        logging.warning(text, len(unknown), len(names), source.name, min(unknown))
    logging.info("%s: data.exclude excludes %d of %d examples.", source.name, len(matches), len(every))
    if not isinstance(source, Records):
        return _picked(source, np.setdiff1d(np.arange(source.size), sorted(matches)))
    excluded = {path: set(numbers) for path, numbers in source.excluded.items()}
    for i in matches:
        path, _, number = every[i].rpartition(", record ")
        excluded.setdefault(path, set()).add(int(number))
    return dataclasses.replace(source, excluded={path: tuple(sorted(numbers)) for path, numbers in excluded.items()})
