"""Where examples come from. A source yields (image, label): encoded bytes or a uint8 array (h, w, c), and an integer.

Two kinds: RandomAccess finds any example by its number, so that a run resumes at the exact example at no cost; Records reads files
in order through a shuffle buffer, and resumes by skipping. Both give
  `shuffled(seed, start)`: an endless dataset, pass after pass, a pure function of its arguments; and
  `ordered()`: one pass.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf


def fold(seed, number):
    """A (2,) int64 seed from an integer seed and an integer (or scalar tensor): a stream for each number."""
    base = tf.constant([seed, 0x6B657261], tf.int64)
    return tf.cast(tf.random.experimental.stateless_fold_in(base, tf.cast(number, tf.int64)), tf.int64)


@dataclasses.dataclass(frozen=True)
class RandomAccess:
    """Examples by number.

    Attributes:
        name: for messages.
        class_names: in the order of the labels.
        labels: (size,) integers.
        lookup: a scalar int64 tensor, the number, -> the image; runs inside tf.data.
    """

    name: str
    class_names: tuple
    labels: np.ndarray
    lookup: Callable[[Any], Any]

    @property
    def size(self):
        return len(self.labels)

    def class_counts(self):
        return np.bincount(self.labels, minlength=len(self.class_names))

    def _dataset(self, numbers):
        labels = tf.constant(self.labels, tf.int64)
        return numbers.map(lambda i: (self.lookup(i), labels[i]), num_parallel_calls=tf.data.AUTOTUNE)

    def ordered(self):
        return self._dataset(tf.data.Dataset.range(self.size))

    def shuffled(self, seed, start=0):
        """Example number i of the stream is number permutation(pass = i // size)[i % size]."""

        def place(i):
            return tf.random.experimental.index_shuffle(i % self.size, fold(seed, i // self.size), self.size - 1)

        return self._dataset(tf.data.Dataset.range(start, np.iinfo(np.int64).max).map(place))


@dataclasses.dataclass(frozen=True)
class Records:
    """Serialized examples in files.

    Attributes:
        name: for messages.
        class_names: in the order of the labels.
        files: (path, records to skip, records to take) of each file.
        parse: a serialized record -> (image, label); runs inside tf.data.
        buffer: records in the shuffle buffer; they stay encoded there.
    """

    name: str
    class_names: tuple
    files: tuple
    parse: Callable[[Any], Any]
    buffer: int = 10_000

    @property
    def size(self):
        return sum(take for _, _, take in self.files)

    def class_counts(self):
        counts = np.zeros(len(self.class_names), "int64")
        for _, label in self.ordered().as_numpy_iterator():
            counts[label] += 1
        return counts

    def _read(self, order, parallel):
        """The records of the files in `order` (a tensor of file numbers), `parallel` files at a time."""
        paths, skips, takes = (tf.constant(column) for column in zip(*self.files))

        def read(i):
            skip, take = tf.cast(skips[i], tf.int64), tf.cast(takes[i], tf.int64)
            return tf.data.TFRecordDataset(paths[i]).skip(skip).take(take)

        files = tf.data.Dataset.from_tensor_slices(order)
        return files.interleave(read, cycle_length=parallel, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)

    def _parsed(self, records):
        return records.map(self.parse, num_parallel_calls=tf.data.AUTOTUNE)

    def ordered(self):
        return self._parsed(self._read(tf.range(len(self.files)), 1))

    def shuffled(self, seed, start=0):
        """Each pass reads the files in an order of its own, 16 at a time, through a shuffle buffer of its own seed."""

        def one_pass(epoch):
            key = fold(seed, epoch)
            order = tf.random.experimental.stateless_shuffle(tf.range(len(self.files)), key)
            records = self._read(order, min(16, len(self.files)))
            # Dataset.shuffle mixes the graph's seed in, which is the program's global one unless it is fixed here.
            tf.compat.v1.set_random_seed(1)
            return records.shuffle(min(self.buffer, self.size), seed=key[0], reshuffle_each_iteration=False)

        first, skip = divmod(start, self.size)
        passes = tf.data.Dataset.range(first, np.iinfo(np.int64).max)
        return self._parsed(passes.flat_map(one_pass).skip(skip))
