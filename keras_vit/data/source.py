"""Where examples come from. An example is (image, label): encoded bytes or a uint8 array (h, w, c), and an integer.

A source hands out keys, and `read(key)` gives the example: so that what cannot be read is caught row by row (broken.py). Two kinds:
RandomAccess finds any example by its number, so that a run resumes at the exact example at no cost; Records reads files in order
through a shuffle buffer, and resumes by skipping. Both give, of the rows of one host (see rows.py; by default all)
  `keys(rows)`: one pass in order;
  `shuffled_keys(seed, start_step, rows)`: (number, key), pass after pass without end, a pure function of its arguments;
  `served_keys(seed, start_step, rows)`: the like for the workers of a tf.data service, in whatever order they share it out; and
  `ordered(rows)`, `shuffled(...)`: the examples themselves, for scripts: (image, label) and (number, image, label).
No two rows of a run have the same number, over all hosts: the seeds of the augmentation are folded from it.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit.data.attempts import attempted
from keras_vit.data.parallel import EXAMPLES, untuned
from keras_vit.data.rows import ENDLESS, Rows

_ALL = Rows(1)
_FILES_AT_A_TIME = 16
_READ = 64  # examples read into memory at a time
_plain = tf.autograph.experimental.do_not_convert  # it warns of lambdas that share a line, and there is nothing to convert


def fold(seed, number):
    """A (2,) int64 seed from an integer seed and an integer (or scalar tensor): a stream for each number."""
    base = tf.constant([seed, 0x6B657261], tf.int64)
    return tf.cast(tf.random.experimental.stateless_fold_in(base, tf.cast(number, tf.int64)), tf.int64)


def record_name(path, number):
    """What messages, and files of names, call record `number` of a file."""
    return f"{path}, record {number}"


def _before(counts):
    """How many lie before each: (2, 3, 4) -> (0, 2, 5)."""
    return np.cumsum([0, *counts[:-1]])


class Source:
    """What both kinds have."""

    def ordered(self, rows=_ALL):
        """One pass of (image, label)."""
        read = _plain(lambda *key: self.read(key if len(key) > 1 else key[0]))
        return untuned(self.keys(rows).map(read, num_parallel_calls=EXAMPLES))

    def shuffled(self, seed, start_step=0, rows=_ALL):
        """(number, image, label) without end."""
        numbered = self.shuffled_keys(seed, start_step, rows)
        read = _plain(lambda number, key: (number, *self.read(key)))
        return untuned(numbered.map(read, num_parallel_calls=EXAMPLES))


@dataclasses.dataclass(frozen=True)
class RandomAccess(Source):
    """Examples by number; the key of an example is its number, int64.

    Attributes:
        name: for messages.
        class_names: in the order of the labels.
        labels: (size,) integers.
        lookup: a scalar int64 tensor, the number, -> the image; runs inside tf.data.
        names: the number -> a scalar string tensor, what messages call the example; None for its number.
    """

    name: str
    class_names: tuple
    labels: np.ndarray
    lookup: Callable[[Any], Any]
    names: Callable[[Any], Any] | None = None

    @property
    def size(self):
        return len(self.labels)

    def class_counts(self):
        return np.bincount(self.labels, minlength=len(self.class_names))

    def read(self, key):
        """The example (image, label) of that number."""
        return self.lookup(key), tf.constant(self.labels, tf.int64)[key]

    def identities(self, keys):
        """What identifies a batch of keys, (b, 1) int64: themselves."""
        return keys[:, None]

    def called(self, key):
        """What messages call the example."""
        return f"{self.name}, example {int(key)}" if self.names is None else self.names(key).numpy().decode()

    def found(self, number):
        """The key of an identity."""
        return tf.constant(number)

    def keys(self, rows=_ALL):
        return rows.numbers().take(rows.below(self.size))

    def shuffled_keys(self, seed, start_step=0, rows=_ALL):
        """Row number n of the stream is example permutation(pass = n // size)[n % size], on whatever host."""

        @_plain
        def key(number):
            order = fold(seed, number // self.size)
            return number, tf.random.experimental.index_shuffle(number % self.size, order, self.size - 1)

        return rows.numbers(start_step).map(key)

    def served_keys(self, seed, start_step, rows):
        """The stream itself: workers take whole steps of it."""
        return self.shuffled_keys(seed, start_step, rows)

    def cached(self):
        """This source with its encoded images read into memory, once; arrays are there already. What cannot be read stays broken."""
        if self.lookup(tf.constant(0, tf.int64)).dtype != tf.string:
            return self
        numbers = tf.data.Dataset.zip((tf.data.Dataset.range(self.size),))
        read = tf.function(self.lookup, autograph=False).get_concrete_function(*numbers.element_spec)
        batches = attempted(numbers, read, lambda number: number[:, None], _READ, -(-self.size // _READ))
        images = [np.where(good, image, b"") for image, good, *_ in batches.as_numpy_iterator()]
        images = tf.constant(np.concatenate(images)[: self.size])
        return dataclasses.replace(self, lookup=lambda i: images[i])


@dataclasses.dataclass(frozen=True)
class Records(Source):
    """Serialized examples in files; the key of an example is (file number, index in the file, record).

    Attributes:
        name: for messages.
        class_names: in the order of the labels.
        files: (path, records to skip, records to take) of each file.
        parse: a serialized record -> (image, label); runs inside tf.data.
        buffer: records in the shuffle buffer; they stay encoded there.
        memory: all records as one tensor, in the order of the files; None to read the files each time.
        excluded: {path: indices of the file's records that are left out}; see excluding.py.
    """

    name: str
    class_names: tuple
    files: tuple
    parse: Callable[[Any], Any]
    buffer: int = 10_000
    memory: Any = None
    excluded: dict = dataclasses.field(default_factory=dict)

    @property
    def counts(self):
        """How many examples each file gives."""
        left_out = lambda path, skip, take: sum(skip <= n < skip + take for n in self.excluded.get(path, ()))  # noqa: E731
        return [file[2] - left_out(*file) for file in self.files]

    @property
    def size(self):
        return sum(self.counts)

    def class_counts(self):
        counts = np.zeros(len(self.class_names), "int64")
        labels = self.ordered().map(lambda image, label: label).batch(1000)
        for batch in labels.as_numpy_iterator():
            counts += np.bincount(batch, minlength=len(counts))
        return counts

    def read(self, key):
        """The example (image, label) of that key."""
        return self.parse(key[2])

    def identities(self, keys):
        """What identifies a batch of keys, (b, 2) int64: file numbers and indices."""
        return tf.stack(keys[:2], 1)

    def called(self, key):
        """What messages call the example; the key's record is not looked at."""
        return record_name(self.files[int(key[0])][0], int(key[1]))

    def found(self, file, index):
        """The key of an identity; the record is read again."""
        record = next(iter(self._records(self.files[file][0], index, 1)))
        return tf.constant(file), tf.constant(index), record

    def cached(self):
        """This source with its records in memory, read once."""
        whole = dataclasses.replace(self, excluded={})
        records = whole._all_keys(tf.data.Dataset.range(len(self.files)), 1).map(lambda file, number, record: record)
        return dataclasses.replace(self, memory=tf.constant(list(records.as_numpy_iterator())))

    @staticmethod
    def _records(path, skip, take):
        """Records of a file. Those that cannot be read any more are empty, so that each is a broken example and has its place."""
        lost = tf.data.Dataset.from_tensors("").repeat()
        return tf.data.TFRecordDataset(path).ignore_errors().concatenate(lost).skip(skip).take(take)

    def _keys(self, i):
        """The keys of file number `i`, a scalar tensor."""
        path, skip, take = (tf.constant(column)[i] for column in zip(*self.files))
        skip, take = tf.cast(skip, tf.int64), tf.cast(take, tf.int64)
        if self.memory is None:
            records = self._records(path, skip, take)
        else:
            first = tf.constant(_before([take for _, _, take in self.files]), tf.int64)[i]
            records = tf.data.Dataset.range(first, first + take).map(lambda n: self.memory[n])
        numbers = tf.data.Dataset.from_tensors(tf.cast(i, tf.int64)).repeat()
        keys = tf.data.Dataset.zip(numbers, tf.data.Dataset.counter(skip), records)
        if not self.excluded:
            return keys
        left_out = tf.ragged.constant([self.excluded.get(path, ()) for path, _, _ in self.files], tf.int64)[i]
        return keys.filter(lambda file, number, record: tf.reduce_all(number != left_out))

    def _all_keys(self, files, parallel):
        """The keys of a dataset of file numbers, `parallel` files at a time; in order unless the dataset's options say otherwise."""
        return files.interleave(self._keys, cycle_length=parallel, num_parallel_calls=parallel)

    def keys(self, rows=_ALL):
        """Every host reads all records and keeps its own."""
        return rows.cut(self._all_keys(tf.data.Dataset.range(len(self.files)), 1))

    def _stream(self, seed, start, own):
        """Keys of the files `own` pass after pass, without the first `start`: each with an order of files of its own, and a shuffle buffer."""
        size = sum(self.counts[i] for i in own)

        def one_pass(epoch):
            key = fold(seed, epoch)
            order = tf.random.experimental.stateless_shuffle(tf.constant(own), key)
            keys = self._all_keys(tf.data.Dataset.from_tensor_slices(order), min(_FILES_AT_A_TIME, len(own)))
            # Dataset.shuffle mixes the graph's seed in, which is the program's global one unless it is fixed here. The first word of
            # the key is the same in every pass.
            tf.compat.v1.set_random_seed(1)
            return keys.shuffle(min(self.buffer, size), seed=key[0] + epoch, reshuffle_each_iteration=False)

        first, skip = divmod(start, size)
        return tf.data.Dataset.range(first, ENDLESS).flat_map(one_pass).skip(skip)

    def shuffled_keys(self, seed, start_step=0, rows=_ALL):
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
        own = list(range(rows.index, len(self.files), rows.count))
        return tf.data.Dataset.zip(rows.numbers(start_step), self._stream(seed, start_step * rows.per_host, own))

    def served_keys(self, seed, start_step, rows):
        """Workers take whole files, of each pass in an order of its own; `start_step` is rounded down to a file."""
        files, size = len(self.files), self.size

        def visit(v):
            i = tf.random.experimental.index_shuffle(v % files, fold(seed, v // files), files - 1)
            return self._keys(i).enumerate(v // files * size + tf.constant(_before(self.counts), tf.int64)[i])

        visits = tf.data.Dataset.range(start_step * rows.batch_size * files // size, ENDLESS)
        # What a worker reads at a time it has taken from the others: with 64 workers, still files of one pass.
        together = min(_FILES_AT_A_TIME, max(1, files // 64))
        keys = visits.interleave(visit, cycle_length=together, num_parallel_calls=together)
        return keys.shuffle(min(self.buffer, size), seed)
