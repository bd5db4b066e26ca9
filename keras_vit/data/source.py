"""Where examples come from. An example is (image, label): encoded bytes or a uint8 array (h, w, c), and an integer.

Two kinds: RandomAccess finds any example by its number, so that a run resumes at the exact example at no cost; Records reads
files in order through a shuffle buffer, and resumes by skipping. Both give, of the rows of one host (see rows.py; by default all)
  `ordered(rows)`: one pass of (image, label);
  `shuffled(seed, start_step, rows)`: (number, image, label), pass after pass without end, a pure function of its arguments; and
  `served(seed, start_step, rows)`: the like for the workers of a tf.data service, in whatever order they share it out.
No two rows of a run have the same number, over all hosts: the seeds of the augmentation are folded from it.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit.data.rows import ENDLESS, Rows

_ALL = Rows(1)
_FILES_AT_A_TIME = 16


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

    def ordered(self, rows=_ALL):
        labels = tf.constant(self.labels, tf.int64)
        own = rows.numbers().take(rows.below(self.size))
        return own.map(lambda i: (self.lookup(i), labels[i]), num_parallel_calls=tf.data.AUTOTUNE)

    def shuffled(self, seed, start_step=0, rows=_ALL):
        """Row number n of the stream is example permutation(pass = n // size)[n % size], on whatever host."""
        labels = tf.constant(self.labels, tf.int64)

        def example(number):
            key = fold(seed, number // self.size)
            i = tf.random.experimental.index_shuffle(number % self.size, key, self.size - 1)
            return number, self.lookup(i), labels[i]

        return rows.numbers(start_step).map(example, num_parallel_calls=tf.data.AUTOTUNE)

    def served(self, seed, start_step, rows):
        """The stream itself: workers take whole steps of it."""
        return self.shuffled(seed, start_step, rows)


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

    def _read(self, i):
        """The records of file number `i`, a scalar tensor."""
        path, skip, take = (tf.constant(column)[i] for column in zip(*self.files))
        return tf.data.TFRecordDataset(path).skip(tf.cast(skip, tf.int64)).take(tf.cast(take, tf.int64))

    def _records(self, files, parallel):
        """The records of a dataset of file numbers, `parallel` files at a time."""
        return files.interleave(self._read, cycle_length=parallel, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)

    def _examples(self, numbered):
        """(number, record) -> (number, image, label)."""
        return numbered.map(lambda number, record: (number, *self.parse(record)), num_parallel_calls=tf.data.AUTOTUNE)

    def ordered(self, rows=_ALL):
        """Every host reads all records and parses its own."""
        records = self._records(tf.data.Dataset.range(len(self.files)), 1)
        return rows.cut(records).map(self.parse, num_parallel_calls=tf.data.AUTOTUNE)

    def _stream(self, seed, start):
        """Records pass after pass, without the first `start`: each with an order of files of its own, and a shuffle buffer."""

        def one_pass(epoch):
            key = fold(seed, epoch)
            order = tf.random.experimental.stateless_shuffle(tf.range(len(self.files)), key)
            records = self._records(tf.data.Dataset.from_tensor_slices(order), min(_FILES_AT_A_TIME, len(self.files)))
            # Dataset.shuffle mixes the graph's seed in, which is the program's global one unless it is fixed here. The first word of
            # the key is the same in every pass.
            tf.compat.v1.set_random_seed(1)
            return records.shuffle(min(self.buffer, self.size), seed=key[0] + epoch, reshuffle_each_iteration=False)

        first, skip = divmod(start, self.size)
        return tf.data.Dataset.range(first, ENDLESS).flat_map(one_pass).skip(skip)

    def shuffled(self, seed, start_step=0, rows=_ALL):
        """Host i has the files i, i + count, ... for itself, and its own passes over them.

        Raises:
            ValueError: if there are fewer files than hosts.
        """
        if rows.count > len(self.files):
            raise ValueError(
                f"{self.name} has {len(self.files)} files for {rows.count} hosts, and each host needs files of its own. Write at "
                f"least {rows.count} files, use at most {len(self.files)} hosts, or prepare the examples in the tf.data service "
                '(service="grpc://host:port"; --data_service of the binaries).'
            )
        own = dataclasses.replace(self, files=self.files[rows.index :: rows.count])
        records = own._stream(seed, start_step * rows.per_host)
        return self._examples(tf.data.Dataset.zip(rows.numbers(start_step), records))

    def served(self, seed, start_step, rows):
        """Workers take whole files, of each pass in an order of its own; `start_step` is rounded down to a file."""
        files, size = len(self.files), self.size
        offsets = np.cumsum([0] + [take for _, _, take in self.files[:-1]])

        def visit(v):
            i = tf.random.experimental.index_shuffle(v % files, fold(seed, v // files), files - 1)
            return self._read(i).enumerate(v // files * size + tf.constant(offsets, tf.int64)[i])

        visits = tf.data.Dataset.range(start_step * rows.batch_size * files // size, ENDLESS)
        # What a worker reads at a time it has taken from the others: with 64 workers, still files of one pass.
        together = min(_FILES_AT_A_TIME, max(1, files // 64))
        records = visits.interleave(visit, cycle_length=together, num_parallel_calls=tf.data.AUTOTUNE)
        return self._examples(records.shuffle(min(self.buffer, size), seed))
