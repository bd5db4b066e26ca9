"""Sources of examples. An example is a dict of "image", encoded bytes or uint8 pixels (h, w, c), and other values.

    label   an integer, the example's class
    labels  (m,) integers, one per object
    boxes   (m, 4) float32, one per object: top, left, bottom, right as fractions of the image's height and width
    segments (h, w, 2) int32, at each pixel the topmost and the lowest object, its row of boxes + 1, or 0
    mask    encoded PNG bytes or integers (h, w, 1), one per pixel
    void    an integer of the mask's dtype: the value of pixels without a class
    depth   (h, w, 1) float32 metres, 0 where void
    text, id, ...

A source yields keys, and `read(key)` returns the example, so unreadable examples are caught one by one
(data/errors.py). RandomAccess finds any example by number and so resumes exactly at no cost. Records reads files in
order through a shuffle buffer and resumes by skipping. For the rows of one host (data/sharding.py; by default all),
both have:

- `keys(shard)`: one pass in order.
- `shuffled_keys(seed, start_step, shard)`: endless passes of (number, key), a pure function of the arguments.
- `served_keys(seed, start_step, shard)`: the same for the workers of a tf.data service, which share it in any order.
- `ordered(shard)`, `shuffled(...)`: the examples, for scripts: dicts, and (number, dict).

Row numbers are unique over all hosts of a run, since augmentation seeds are folded from them.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit.data.mapping import EXAMPLES, fallible_map, untuned
from keras_vit.data.sharding import ENDLESS, WHOLE, HostShard

_FILES_AT_A_TIME = 16
_READ = 64  # examples read into memory at a time
# AutoGraph warns about lambdas that share a line, although it has nothing to convert.
_no_autograph = tf.autograph.experimental.do_not_convert


def fold(seed: int, number) -> tf.Tensor:
    """Folds an integer or scalar tensor into an integer seed; returns a (2,) int64 seed, one stream per number."""
    base = tf.constant([seed, 0x6B657261], tf.int64)
    return tf.cast(tf.random.experimental.stateless_fold_in(base, tf.cast(number, tf.int64)), tf.int64)


def record_name(path: str, number: int) -> str:
    """Names record `number` of a file in messages and lists of names."""
    return f"{path}, record {number}"


def _starts(counts):
    """Returns exclusive cumulative sums: (2, 3, 4) -> (0, 2, 5)."""
    return np.cumsum([0, *counts[:-1]])


@dataclasses.dataclass(frozen=True)
class CocoIds:
    """Ids in COCO's annotations.

    Attributes:
        images: {example's name: id}.
        categories: {class name: id}.
    """

    images: Mapping[str, int | str]
    categories: Mapping[str, int]


class Source:
    """Base class of both kinds.

    Attributes:
        name: str. Name in messages.
        class_names: tuple of str, in label order; () for examples without labels.
        void: int. Value of mask pixels without a class; None without class masks.
        colors: tuple of (red, green, blue), 0..255. Colour of each class in pictures; None for default colours.
        most_objects: int. Largest number of objects in one image; None without boxes of named classes.
        coco_ids: CocoIds. Ids in COCO's annotations; None for other sources.
        outlined: bool. Whether the objects have outlines, "segments".
        stuff: tuple of str. Classes of regions without a number of objects, such as "sky".
        size: int. Number of examples.
    """

    name: str
    class_names: tuple[str, ...]
    void: int | None
    colors: tuple[tuple[int, int, int], ...] | None
    most_objects: int | None
    coco_ids: CocoIds | None = None
    outlined: bool = False
    stuff: tuple[str, ...] = ()
    # Declared loosely, since the keys and ids of the two kinds below differ.
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
        """Cache of the functions and datasets that batches made for this source, by their arguments."""
        return {}

    def ordered(self, shard: HostShard = WHOLE) -> tf.data.Dataset:
        """One pass over the examples, dicts."""
        read = _no_autograph(lambda *key: self.read(key if len(key) > 1 else key[0]))
        return untuned(self.keys(shard).map(read, num_parallel_calls=EXAMPLES))

    def shuffled(self, seed: int, start_step: int = 0, shard: HostShard = WHOLE) -> tf.data.Dataset:
        """Endless stream of (number, example)."""
        numbered = self.shuffled_keys(seed, start_step, shard)
        read = _no_autograph(lambda number, key: (number, self.read(key)))
        return untuned(numbered.map(read, num_parallel_calls=EXAMPLES))


@dataclasses.dataclass(frozen=True)
class RandomAccess(Source):
    """Examples by number, an int64 that is also the key.

    Attributes:
        name: str. Name in messages.
        class_names: tuple of str, in label order; () without labels.
        labels: (size,) integers. Classes; None without labels.
        lookup: callable. Maps the number, a scalar int64 tensor, to a dict without the label; runs inside tf.data.
        names: callable. Maps the number to the example's name in messages, a scalar string tensor; None to use the
            number.
        count: int. Number of examples; required without labels.
        void, colors, most_objects, coco_ids, outlined, stuff: see Source.
        parse: callable. Maps the result of `lookup` to the example without its label; None for no change. `cached`
            stores the input of `parse`.

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
    coco_ids: CocoIds | None = None
    outlined: bool = False
    stuff: tuple[str, ...] = ()

    def __post_init__(self):
        if self.labels is None and self.count is None:
            raise ValueError(f"{self.name} has no labels: pass the number of examples as count.")

    @property
    def size(self) -> int:
        return self.count if self.labels is None else len(self.labels)

    def class_counts(self) -> np.ndarray:
        """Counts the examples of each class, (classes,) int64.

        Raises:
            ValueError: if the examples have no labels.
        """
        if self.labels is None:
            raise ValueError(f"{self.name} has no labels to count.")
        return np.bincount(self.labels, minlength=len(self.class_names))

    def read(self, key) -> dict[str, Any]:
        """Reads the example with number `key`."""
        example = self.lookup(key) if self.parse is None else self.parse(self.lookup(key))
        return example if self.labels is None else {**example, "label": tf.constant(self.labels, tf.int64)[key]}

    def ids(self, keys) -> tf.Tensor:
        """Returns the ids of a batch of keys, (b, 1) int64: the keys themselves."""
        return keys[:, None]

    def example_name(self, number: int) -> str:
        """Names the example with id `number` in messages."""
        return (
            f"{self.name}, example {int(number)}"
            if self.names is None
            else self.names(number).numpy().decode(errors="replace")
        )

    def make_key(self, number: int) -> tf.Tensor:
        """Returns the key of an id."""
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
        """The whole stream, of which workers take whole steps."""
        return self.shuffled_keys(seed, start_step, shard)

    def cached(self) -> "RandomAccess":
        """Returns this source with its encoded images and masks in memory; unreadable examples still fail."""
        numbers = tf.data.Dataset.zip((tf.data.Dataset.range(self.size),))

        def encoded(number):
            values = {key: value for key, value in self.lookup(number).items() if key in ("image", "mask", "depth")}
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
        # TensorFlow prunes the lookup's nodes that read files, since they are unused now.
        return dataclasses.replace(
            self, lookup=lambda i: {**self.lookup(i), **{key: values[i] for key, values in memory.items()}}
        )


@dataclasses.dataclass(frozen=True)
class Records(Source):
    """Serialized examples in files; an example's key is (file number, index in the file, record).

    Attributes:
        name: str. Name in messages.
        class_names: tuple of str, in label order; () without labels.
        files: tuple of (path, records to skip, records to take), one per file.
        parse: callable. Maps a serialized record to the example, a dict; runs inside tf.data.
        buffer: int. Size of the shuffle buffer, in encoded records.
        memory: string tensor. All records in file order; None to read the files each time.
        excluded: dict. Indices of the records to leave out, by path; see selection.py.
        void, colors, most_objects, outlined, stuff: see Source.
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
    outlined: bool = False
    stuff: tuple[str, ...] = ()

    @property
    def counts(self) -> list[int]:
        """Examples per file."""

        def left_out(path, skip, take):
            return sum(skip <= n < skip + take for n in self.excluded.get(path, ()))

        return [file[2] - left_out(*file) for file in self.files]

    @property
    def size(self) -> int:
        return sum(self.counts)

    def class_counts(self) -> np.ndarray:
        """Counts the examples of each class, (classes,) int64; reads all records.

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
        """Reads the example of `key`."""
        lost = ["This record, or one before it in the file, is damaged: copy or write the file again."]
        with tf.control_dependencies([tf.debugging.Assert(tf.strings.length(key[2]) > 0, lost)]):
            return self.parse(tf.identity(key[2]))

    def ids(self, keys) -> tf.Tensor:
        """Returns the ids of a batch of keys, (b, 2) int64: file numbers and indices."""
        return tf.stack(keys[:2], 1)

    def example_name(self, file: int, index: int) -> str:
        """Names the example with this id in messages."""
        return record_name(self.files[int(file)][0], int(index))

    def make_key(self, file: int, index: int) -> tuple:
        """Returns the key of an id; reads the record again."""
        record = next(iter(self._records(self.files[file][0], index, 1)))
        return tf.constant(file), tf.constant(index), record

    def cached(self) -> "Records":
        """Returns this source with its records in memory."""
        whole = dataclasses.replace(self, excluded={})
        records = whole._all_keys(tf.data.Dataset.range(len(self.files)), 1).map(
            _no_autograph(lambda file, number, record: record)
        )
        return dataclasses.replace(self, memory=tf.constant(list(records.as_numpy_iterator())))

    @staticmethod
    def _records(path, skip, take):
        """Reads records of a file. Unreadable ones become "", so each fails at its own position."""
        lost = tf.data.Dataset.from_tensors("").repeat()
        return tf.data.TFRecordDataset(path).ignore_errors().concatenate(lost).skip(skip).take(take)

    def _keys(self, i):
        """Yields the keys of file number `i`, a scalar tensor."""
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
        """Yields the keys of a dataset of file numbers, `parallel` files at a time; in order by default."""
        return files.interleave(_no_autograph(self._keys), cycle_length=parallel, num_parallel_calls=parallel)

    def keys(self, shard: HostShard = WHOLE) -> tf.data.Dataset:
        """Reads all records on every host and keeps its share."""
        return shard.select(self._all_keys(tf.data.Dataset.range(len(self.files)), 1))

    def _stream(self, seed, start, files):
        """Yields endless keys of these files from number `start`; each pass has a new file order and shuffle buffer."""
        size = sum(self.counts[i] for i in files)

        @_no_autograph
        def one_pass(epoch):
            key = fold(seed, epoch)
            order = tf.random.experimental.stateless_shuffle(tf.constant(files), key)
            keys = self._all_keys(tf.data.Dataset.from_tensor_slices(order), min(_FILES_AT_A_TIME, len(files)))
            # Dataset.shuffle also mixes in the graph's seed, by default the program's global seed. The first word of
            # the key is the same in every pass.
            tf.compat.v1.set_random_seed(1)
            return keys.shuffle(min(self.buffer, size), seed=key[0] + epoch, reshuffle_each_iteration=False)

        first, skip = divmod(start, size)
        return tf.data.Dataset.range(first, ENDLESS).flat_map(one_pass).skip(skip)

    def shuffled_keys(self, seed: int, start_step: int = 0, shard: HostShard = WHOLE) -> tf.data.Dataset:
        """Host i passes only over the files i, i + count, ...

        Raises:
            ValueError: if there are fewer files than hosts.
        """
        if shard.count > len(self.files):
            raise ValueError(
                f"{self.name} has {len(self.files)} files, but each of the {shard.count} hosts needs at least one."
                f" Write {shard.count} files or more, use at most {len(self.files)} hosts, or prepare the examples in"
                ' the tf.data service (service="grpc://host:port"; --data_service of the binaries).'
            )
        files = list(range(shard.index, len(self.files), shard.count))
        return tf.data.Dataset.zip(
            shard.row_numbers(start_step), self._stream(seed, start_step * shard.per_host, files)
        )

    def served_keys(self, seed: int, start_step: int, shard: HostShard) -> tf.data.Dataset:
        """Workers read whole files, in a new order each pass; `start_step` is rounded down to a file."""
        files, size = len(self.files), self.size

        @_no_autograph
        def visit(v):
            i = tf.random.experimental.index_shuffle(v % files, fold(seed, v // files), files - 1)
            return self._keys(i).enumerate(v // files * size + tf.constant(_starts(self.counts), tf.int64)[i])

        visits = tf.data.Dataset.range(start_step * shard.batch_size * files // size, ENDLESS)
        # Few enough files at a time that 64 workers still share the files of one pass.
        together = min(_FILES_AT_A_TIME, max(1, files // 64))
        keys = visits.interleave(visit, cycle_length=together, num_parallel_calls=together)
        return keys.shuffle(min(self.buffer, size), seed)
