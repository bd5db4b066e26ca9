"""Sources of examples. An example is a dict: "image", encoded bytes or uint8 pixels (h, w, c), and other values.

    label   an integer, the example's class
    labels  (m,) integers, one per object
    boxes   (m, 4) float32, one per object: top, left, bottom, right as fractions of the image's height and width
    mask    encoded PNG bytes or integers (h, w, 1), one per pixel
    void    an integer of the mask's dtype: its value for pixels without a class
    text, id, ...

A source gives keys, and `read(key)` the example, so that unreadable examples are caught one by one (data/errors.py).
RandomAccess finds any example by number, so that a run resumes exactly at no cost; Records reads files in order through
a shuffle buffer, and resumes by skipping. For the rows of one host (data/sharding.py; by default all), both have:

- `keys(shard)`: one pass in order.
- `shuffled_keys(seed, start_step, shard)`: endless passes of (number, key), a pure function of the arguments.
- `served_keys(seed, start_step, shard)`: the same for a tf.data service's workers, in whatever order they share it.
- `ordered(shard)`, `shuffled(...)`: the examples themselves, for scripts: dicts, and (number, dict).

Row numbers of a run are unique over all hosts: augmentation seeds are folded from them.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit.data.mapping import EXAMPLES, fallible_map, untuned
from keras_vit.data.sharding import ENDLESS, WHOLE, HostShard

_FILES_AT_A_TIME = 16
_READ = 64  # examples read into memory at a time
# AutoGraph warns about lambdas that share a line, and has nothing to convert.
_no_autograph = tf.autograph.experimental.do_not_convert


def fold(seed: int, number) -> tf.Tensor:
    """A (2,) int64 seed from an integer seed and an integer (or scalar tensor): one stream per number."""
    base = tf.constant([seed, 0x6B657261], tf.int64)
    return tf.cast(tf.random.experimental.stateless_fold_in(base, tf.cast(number, tf.int64)), tf.int64)


def record_name(path: str, number: int) -> str:
    """The name of a file's record `number` in messages and files of names."""
    return f"{path}, record {number}"


def _starts(counts):
    """The sum of the counts before each: (2, 3, 4) -> (0, 2, 5)."""
    return np.cumsum([0, *counts[:-1]])


class Source:
    """The base of both kinds.

    Attributes:
        name: in messages.
        class_names: in label order; () for examples without labels.
        void: the value of a mask's pixels without a class; None for sources without masks of classes.
        colors: (red, green, blue), 0..255, of each class in pictures; None for default colours.
        most_objects: the largest number of objects in one image; None for sources without boxes of named classes.
        size: number of examples.
    """

    name: str
    class_names: tuple[str, ...]
    void: int | None
    colors: tuple[tuple[int, int, int], ...] | None
    most_objects: int | None
    # Declared as in the two kinds below, whose keys and ids differ.
    read: Callable[..., dict[str, Any]]
    ids: Callable[..., tf.Tensor]
    example_name: Callable[..., str]
    keys: Callable[..., tf.data.Dataset]
    shuffled_keys: Callable[..., tf.data.Dataset]
    served_keys: Callable[..., tf.data.Dataset]
    cached: Callable[[], "Source"]
    class_counts: Callable[[], np.ndarray]

    @property
    def size(self) -> int:
        raise NotImplementedError

    @functools.cached_property
    def traced(self) -> dict[tuple, Any]:
        """Functions and datasets that batches made for this source, by what they were made from."""
        return {}

    def ordered(self, shard: HostShard = WHOLE) -> tf.data.Dataset:
        """One pass of examples, dicts."""
        read = _no_autograph(lambda *key: self.read(key if len(key) > 1 else key[0]))
        return untuned(self.keys(shard).map(read, num_parallel_calls=EXAMPLES))

    def shuffled(self, seed: int, start_step: int = 0, shard: HostShard = WHOLE) -> tf.data.Dataset:
        """Endless (number, example)."""
        numbered = self.shuffled_keys(seed, start_step, shard)
        read = _no_autograph(lambda number, key: (number, self.read(key)))
        return untuned(numbered.map(read, num_parallel_calls=EXAMPLES))


@dataclasses.dataclass(frozen=True)
class RandomAccess(Source):
    """Examples by number, int64, which is the key.

    Attributes:
        name: in messages.
        class_names: in label order; () without labels.
        labels: (size,) integers, the classes; None without labels.
        lookup: number, a scalar int64 tensor -> the example without its label, a dict; runs inside tf.data.
        names: number -> the example's name in messages, a scalar string tensor; None to use the number.
        count: number of examples; required without labels.
        void, colors, most_objects: see Source.
        parse: what `lookup` returned, a dict -> the example without its label; None to leave it. `cached` keeps what
            comes before it.

    Raises:
        ValueError: without labels and count.
    """

    name: str
    class_names: tuple
    labels: np.ndarray | None
    lookup: Callable[[Any], dict[str, Any]]
    names: Callable[[Any], Any] | None = None
    count: int | None = None
    void: int | None = None
    colors: tuple | None = None
    parse: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    most_objects: int | None = None

    def __post_init__(self):
        if self.labels is None and self.count is None:
            raise ValueError(f"{self.name} has no labels: pass count, the number of examples.")

    @property
    def size(self) -> int:
        return self.count if self.labels is None else len(self.labels)

    def class_counts(self) -> np.ndarray:
        """Examples per class, (classes,) int64.

        Raises:
            ValueError: if the examples have no labels.
        """
        if self.labels is None:
            raise ValueError(f"{self.name} has no labels to count.")
        return np.bincount(self.labels, minlength=len(self.class_names))

    def read(self, key) -> dict[str, Any]:
        """The example with number `key`."""
        example = self.lookup(key) if self.parse is None else self.parse(self.lookup(key))
        return example if self.labels is None else {**example, "label": tf.constant(self.labels, tf.int64)[key]}

    def ids(self, keys) -> tf.Tensor:
        """The ids of a batch of keys, (b, 1) int64: the keys themselves."""
        return keys[:, None]

    def example_name(self, number: int) -> str:
        """The name of the example with id `number` in messages."""
        return (
            f"{self.name}, example {int(number)}"
            if self.names is None
            else self.names(number).numpy().decode(errors="replace")
        )

    def key_of(self, number: int) -> tf.Tensor:
        """The key of an id."""
        return tf.constant(number)

    def keys(self, shard: HostShard = WHOLE) -> tf.data.Dataset:
        return shard.row_numbers().take(shard.count_below(self.size))

    def shuffled_keys(self, seed: int, start_step: int = 0, shard: HostShard = WHOLE) -> tf.data.Dataset:
        """Row n of the stream is example permutation(pass = n // size)[n % size], on every host."""

        @_no_autograph
        def key(number):
            order = fold(seed, number // self.size)
            return number, tf.random.experimental.index_shuffle(number % self.size, order, self.size - 1)

        return shard.row_numbers(start_step).map(key)

    def served_keys(self, seed: int, start_step: int, shard: HostShard) -> tf.data.Dataset:
        """The whole stream: workers take whole steps of it."""
        return self.shuffled_keys(seed, start_step, shard)

    def cached(self) -> "RandomAccess":
        """This source with its encoded images and masks read into memory once; unreadable examples still fail."""
        numbers = tf.data.Dataset.zip((tf.data.Dataset.range(self.size),))

        def encoded(number):
            values = {key: value for key, value in self.lookup(number).items() if key in ("image", "mask")}
            return {key: value for key, value in values.items() if value.dtype == tf.string}

        read = tf.function(encoded, autograph=False).get_concrete_function(*numbers.element_spec)
        if not read.structured_outputs:
            return self
        batches = fallible_map(numbers, read, lambda number: number[:, None], _READ, -(-self.size // _READ))
        parts = {key: [] for key in read.structured_outputs}
        for values, good, *_ in batches.as_numpy_iterator():
            for key, value in values.items():
                parts[key].append(np.where(good, value, b""))
        memory = {key: tf.constant(np.concatenate(values)[: self.size]) for key, values in parts.items()}
        # The lookup's nodes that read from files are now unused, and pruned.
        return dataclasses.replace(
            self, lookup=lambda i: {**self.lookup(i), **{key: values[i] for key, values in memory.items()}}
        )


@dataclasses.dataclass(frozen=True)
class Records(Source):
    """Serialized examples in files; the key of an example is (file number, index in the file, record).

    Attributes:
        name: in messages.
        class_names: in label order; () without labels.
        files: (path, records to skip, records to take) of each file.
        parse: serialized record -> the example, a dict; runs inside tf.data.
        buffer: records in the shuffle buffer, still encoded.
        memory: all records as one tensor, in file order; None to read the files each time.
        excluded: {path: indices of records to leave out}; see selection.py.
        void, colors, most_objects: see Source.
    """

    name: str
    class_names: tuple
    files: tuple
    parse: Callable[[Any], dict[str, Any]]
    buffer: int = 10_000
    memory: Any = None
    excluded: dict = dataclasses.field(default_factory=dict)
    void: int | None = None
    colors: tuple | None = None
    most_objects: int | None = None

    @property
    def counts(self) -> list[int]:
        """Examples per file."""
        left_out = lambda path, skip, take: sum(skip <= n < skip + take for n in self.excluded.get(path, ()))  # noqa: E731
        return [file[2] - left_out(*file) for file in self.files]

    @property
    def size(self) -> int:
        return sum(self.counts)

    def class_counts(self) -> np.ndarray:
        """Examples per class, (classes,) int64; reads all records.

        Raises:
            ValueError: if the examples have no labels.
        """
        if not self.class_names or self.void is not None or self.most_objects is not None:
            raise ValueError(f"{self.name} has no labels to count.")
        counts = np.zeros(len(self.class_names), "int64")
        labels = self.ordered().map(_no_autograph(lambda example: example["label"])).batch(1000)
        for batch in labels.as_numpy_iterator():
            counts += np.bincount(batch, minlength=len(counts))
        return counts

    def read(self, key) -> dict[str, Any]:
        """The example of `key`."""
        lost = ["The record, or one before it in its file, is damaged: copy or write the file again."]
        with tf.control_dependencies([tf.debugging.Assert(tf.strings.length(key[2]) > 0, lost)]):
            return self.parse(tf.identity(key[2]))

    def ids(self, keys) -> tf.Tensor:
        """The ids of a batch of keys, (b, 2) int64: file numbers and indices."""
        return tf.stack(keys[:2], 1)

    def example_name(self, file: int, index: int) -> str:
        """The name of the example with that id in messages."""
        return record_name(self.files[int(file)][0], int(index))

    def key_of(self, file: int, index: int) -> tuple:
        """The key of an id; reads the record again."""
        record = next(iter(self._records(self.files[file][0], index, 1)))
        return tf.constant(file), tf.constant(index), record

    def cached(self) -> "Records":
        """This source with its records in memory, read once."""
        whole = dataclasses.replace(self, excluded={})
        records = whole._all_keys(tf.data.Dataset.range(len(self.files)), 1).map(
            _no_autograph(lambda file, number, record: record)
        )
        return dataclasses.replace(self, memory=tf.constant(list(records.as_numpy_iterator())))

    @staticmethod
    def _records(path, skip, take):
        """Records of a file. Unreadable ones are empty, so that each fails in its own place."""
        lost = tf.data.Dataset.from_tensors("").repeat()
        return tf.data.TFRecordDataset(path).ignore_errors().concatenate(lost).skip(skip).take(take)

    def _keys(self, i):
        """The keys of file number `i`, a scalar tensor."""
        path, skip, take = (tf.constant(column)[i] for column in zip(*self.files))
        skip, take = tf.cast(skip, tf.int64), tf.cast(take, tf.int64)
        if self.memory is None:
            records = self._records(path, skip, take)
        else:
            first = tf.constant(_starts([take for _, _, take in self.files]), tf.int64)[i]
            records = tf.data.Dataset.range(first, first + take).map(_no_autograph(lambda n: self.memory[n]))
        numbers = tf.data.Dataset.from_tensors(tf.cast(i, tf.int64)).repeat()
        keys = tf.data.Dataset.zip(numbers, tf.data.Dataset.counter(skip), records)
        if not self.excluded:
            return keys
        left_out = tf.ragged.constant([self.excluded.get(path, ()) for path, _, _ in self.files], tf.int64)[i]
        return keys.filter(_no_autograph(lambda file, number, record: tf.reduce_all(number != left_out)))

    def _all_keys(self, files, parallel):
        """The keys of a dataset of file numbers, `parallel` files at a time, in order unless its options relax that."""
        return files.interleave(_no_autograph(self._keys), cycle_length=parallel, num_parallel_calls=parallel)

    def keys(self, shard: HostShard = WHOLE) -> tf.data.Dataset:
        """Every host reads all records and keeps its own."""
        return shard.select(self._all_keys(tf.data.Dataset.range(len(self.files)), 1))

    def _stream(self, seed, start, files):
        """Endless keys of these files from number `start`; each pass has its own file order and shuffle buffer."""
        size = sum(self.counts[i] for i in files)

        @_no_autograph
        def one_pass(epoch):
            key = fold(seed, epoch)
            order = tf.random.experimental.stateless_shuffle(tf.constant(files), key)
            keys = self._all_keys(tf.data.Dataset.from_tensor_slices(order), min(_FILES_AT_A_TIME, len(files)))
            # Dataset.shuffle also mixes in the graph's seed, which is the program's global one unless set here. The
            # first word of the key is the same in every pass.
            tf.compat.v1.set_random_seed(1)
            return keys.shuffle(min(self.buffer, size), seed=key[0] + epoch, reshuffle_each_iteration=False)

        first, skip = divmod(start, size)
        return tf.data.Dataset.range(first, ENDLESS).flat_map(one_pass).skip(skip)

    def shuffled_keys(self, seed: int, start_step: int = 0, shard: HostShard = WHOLE) -> tf.data.Dataset:
        """Host i reads only the files i, i + count, ..., in its own passes over them.

        Raises:
            ValueError: if there are fewer files than hosts.
        """
        if shard.count > len(self.files):
            raise ValueError(
                f"{self.name} has {len(self.files)} files for {shard.count} hosts, and each host needs files of its"
                f" own. Write at least {shard.count} files, use at most {len(self.files)} hosts, or prepare the"
                ' examples in the tf.data service (service="grpc://host:port"; --data_service of the binaries).'
            )
        files = list(range(shard.index, len(self.files), shard.count))
        return tf.data.Dataset.zip(
            shard.row_numbers(start_step), self._stream(seed, start_step * shard.per_host, files)
        )

    def served_keys(self, seed: int, start_step: int, shard: HostShard) -> tf.data.Dataset:
        """Workers take whole files, in a new order each pass; `start_step` is rounded down to a file."""
        files, size = len(self.files), self.size

        @_no_autograph
        def visit(v):
            i = tf.random.experimental.index_shuffle(v % files, fold(seed, v // files), files - 1)
            return self._keys(i).enumerate(v // files * size + tf.constant(_starts(self.counts), tf.int64)[i])

        visits = tf.data.Dataset.range(start_step * shard.batch_size * files // size, ENDLESS)
        # A worker takes the files that it reads at a time from the other workers: with 64 workers, still files of one
        # pass.
        together = min(_FILES_AT_A_TIME, max(1, files // 64))
        keys = visits.interleave(visit, cycle_length=together, num_parallel_calls=together)
        return keys.shuffle(min(self.buffer, size), seed)
