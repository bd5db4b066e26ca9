"""Several hosts on one global batch: together they see what one host sees, and each resumes at its exact example."""

import socket

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.data import evaluation_batches, from_arrays, training_batches
from keras_vit.data.data_service import distribute
from keras_vit.data.sharding import HostShard
from keras_vit.data.sources.base import RandomAccess, Records

RANDOM = "decode(1)|random_flip|random_shift(1)|noise(20)"
FIXED = "decode(1)"
SHARES = [(1, 2), (2, 2), (4, 1)]  # hosts, replicas of each


def arrays(n=21):
    """Images whose every pixel is their number, which is their label too."""
    images = np.broadcast_to(np.arange(n, dtype="uint8")[:, None, None, None], (n, 4, 4, 1)).copy()
    return from_arrays(images, np.arange(n))


@pytest.fixture
def records(tmp_path):
    """Makes Records of the same images in files of these sizes; `parsed` gets the numbers that are parsed."""

    def make(*sizes, buffer=5, parsed=None):
        def parse(record):
            number = tf.strings.to_number(record, tf.int64)
            if parsed is not None:
                tf.py_function(lambda n: parsed.append(int(n)), [number], [])
            return {"image": tf.fill((4, 4, 1), tf.cast(number, tf.uint8)), "label": number}

        files, first = [], 0
        for i, size in enumerate(sizes):
            path = str(tmp_path / f"{i}.tfrecord")
            with tf.io.TFRecordWriter(path) as writer:
                for number in range(first, first + size):
                    writer.write(str(number))
            files.append((path, 0, size))
            first += size
        return Records("records", tuple(str(i) for i in range(first)), tuple(files), parse, buffer)

    return make


def collect(dataset, count=None):
    return list((dataset if count is None else dataset.take(count)).as_numpy_iterator())


def joined(batches):
    """Batches concatenated to one."""
    return tuple(np.concatenate(part) for part in zip(*batches))


def same(a, b):
    return len(a) == len(b) and all(all(np.array_equal(x, y) for x, y in zip(p, q)) for p, q in zip(a, b))


def global_batches(hosts, replicas):
    """The global batches of hosts' lists of batches, `replicas` per step."""
    steps = range(len(hosts[0]) // replicas)
    return [joined([b for host in hosts for b in host[s * replicas : (s + 1) * replicas]]) for s in steps]


def numbered_keys(source, start, shard, count):
    """The first (row number, key's id) of a host's stream; the pixels of a row are a function of these."""
    keys = source.shuffled_keys(3, start, shard).take(count)
    return [
        (int(number), *np.ravel(key[:2] if isinstance(key, tuple) else key).tolist())
        for number, key in keys.as_numpy_iterator()
    ]


@pytest.mark.parametrize(("count", "replicas"), SHARES)
def test_the_hosts_examples_are_those_of_one_host(count, replicas):
    """21 examples in batches of 8: steps straddle passes, step 4 is in the middle of one."""
    whole, per_host = numbered_keys(arrays(), 0, HostShard(8), 64), 8 // count
    for start in (0, 4):
        shards = [HostShard(8, index, count, replicas) for index in range(count)]
        hosts = [numbered_keys(arrays(), start, shard, 4 * per_host) for shard in shards]
        steps = [key for s in range(4) for host in hosts for key in host[s * per_host : (s + 1) * per_host]]
        assert steps == whole[8 * start : 8 * (start + 4)] and shards[0].per_replica == per_host // replicas


@pytest.mark.extended
def test_the_hosts_batches_are_the_one_host_batch():
    whole = collect(training_batches(arrays(), RANDOM, 8, seed=3), 6)
    datasets = [training_batches(arrays(), RANDOM, 8, 3, 2, (index, 2), 2) for index in range(2)]
    assert {d.element_spec[0].shape[0] for d in datasets} == {2}
    assert same(global_batches([collect(d, 8) for d in datasets], 2), whole[2:])


def test_a_host_looks_up_only_its_own_examples():
    looked_up = []

    def lookup(i):
        tf.py_function(lambda n: looked_up.append(int(n)), [i], [])
        return {"image": tf.zeros((4, 4, 1), tf.uint8)}

    source = RandomAccess("watched", ("0",), np.zeros(21, "int64"), lookup)
    collect(evaluation_batches(source, FIXED, 8, shard=(1, 2)))
    assert sorted(looked_up) == [4, 5, 6, 7, 12, 13, 14, 15, 20]


@pytest.mark.extended
def test_each_host_resumes_at_its_exact_record(records):
    source = records(5, 3, 6, 4, 3)
    for index in range(2):
        shard = HostShard(8, index, 2, 2)
        whole = numbered_keys(source, 0, shard, 48)
        for start in (1, 5):
            assert numbered_keys(source, start, shard, 48 - 4 * start) == whole[4 * start :]


def test_hosts_have_the_files_of_records_to_themselves(records):
    source = records(5, 3, 6, 4, 3)
    # Files 0, 2, 4 and 1, 3.
    numbers_of = [{0, 1, 2, 3, 4, 8, 9, 10, 11, 12, 13, 18, 19, 20}, {5, 6, 7, 14, 15, 16, 17}]
    rows = []  # an example's augmentation is folded from its row number
    for index, numbers in enumerate(numbers_of):
        examples = collect(source.shuffled(1, 0, HostShard(2, index, 2)), 3 * len(numbers))
        rows += [int(row) for row, _ in examples]
        seen = [int(example["label"]) for _, example in examples]
        passes = [seen[i : i + len(numbers)] for i in range(0, len(seen), len(numbers))]
        assert all(sorted(p) == sorted(numbers) for p in passes) and passes[0] != sorted(numbers)
        assert passes[0] != passes[1] != passes[2]
    assert len(set(rows)) == len(rows)


def test_too_few_files_say_what_to_do(records):
    with pytest.raises(
        ValueError,
        match=r"2 files, but each of the 4 hosts .*Write 4 files or more, use at most 2 hosts, .*--data_service",
    ):
        training_batches(records(3, 3), FIXED, 8, shard=(1, 4))


@pytest.mark.extended
@pytest.mark.parametrize(("count", "size"), [(1, 21), (2, 16), (4, 3), (4, 21)])
def test_each_evaluation_example_belongs_to_one_host(count, size, records):
    """Of 3 some hosts have only padding, of 16 none; of 21 it begins in the middle of a host's rows."""
    for source in (arrays(size), records(1, size - 1)):
        shards = [HostShard(8, index, count) for index in range(count)]
        hosts = [[int(source.read(key)["label"]) for key in source.keys(shard)] for shard in shards]
        per_host = 8 // count
        rows = [
            n
            for step in range(0, size, 8)
            for i in range(count)
            for n in range(step + i * per_host, step + (i + 1) * per_host)
        ]
        assert rows == list(range(-(-size // 8) * 8))
        for shard, numbers in zip(shards, hosts):
            expected = [n for n in range(size) if n % 8 // per_host == shard.index]
            assert numbers == expected and shard.count_below(size) == len(expected)


@pytest.mark.extended
def test_evaluation_counts_each_example_once_over_all_hosts():
    whole = collect(evaluation_batches(arrays(), FIXED, 8))
    datasets = [evaluation_batches(arrays(), FIXED, 8, (index, 2), 2) for index in range(2)]
    assert {int(d.cardinality()) for d in datasets} == {len(whole) * 2}
    together = global_batches([collect(d) for d in datasets], 2)
    assert same(together, whole)
    _, labels, weights = joined(together)
    assert labels[weights == 1].tolist() == list(range(21)) and set(weights) <= {0, 1}


def test_evaluation_parses_only_a_hosts_own_records(records):
    parsed = []
    collect(evaluation_batches(records(5, 16, parsed=parsed), FIXED, 8, shard=(1, 2)))
    assert sorted(parsed) == [4, 5, 6, 7, 12, 13, 14, 15, 20]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((10, (0, 4), 1), "batch_size=10, .*hosts: 4, replicas per host: 1.*Nearest valid sizes: 8 or 12"),
        ((12, (0, 2), 8), "batch_size=12, .* 16 replicas .*Nearest valid sizes: 16"),
        ((0, (0, 1), 1), "Nearest valid sizes: 1"),
        ((8, (2, 2), 1), r"shard=\(2, 2\): expected"),
        ((8, (0, 1), 0), "replicas=0: expected"),
    ],
)
def test_what_cannot_be_shared_is_a_clear_error(arguments, message):
    batch_size, shard, replicas = arguments
    with pytest.raises(ValueError, match=message):
        training_batches(arrays(), FIXED, batch_size, shard=shard, replicas=replicas)
    with pytest.raises(ValueError, match=message):
        evaluation_batches(arrays(), FIXED, batch_size, shard, replicas)


@pytest.fixture(scope="module")
def service():
    """The address of a data service with two workers."""
    lib = tf.data.experimental.service
    dispatcher = lib.DispatchServer()
    address = dispatcher.target.split("://")[1]
    workers = [lib.WorkerServer(lib.WorkerConfig(dispatcher_address=address)) for _ in range(2)]
    yield dispatcher.target
    del workers, dispatcher


def take_in_turn(datasets, enough, limit=2000):
    """Elements of the datasets in turn until `enough` of them, or `limit`."""
    iterators, elements = [d.as_numpy_iterator() for d in datasets], []
    while not enough(elements) and len(elements) < limit:
        elements += [next(iterator) for iterator in iterators]
    return elements


@pytest.mark.extended
def test_the_service_hands_out_the_batches_of_the_stream(service):
    local = collect(training_batches(arrays(24), RANDOM, 8, 3, 2, replicas=2), 200)
    place = {images.tobytes(): i for i, (images, _) in enumerate(local)}
    hosts = [training_batches(arrays(24), RANDOM, 8, 3, 2, (index, 2), service=service) for index in range(2)]
    assert all(d.element_spec[0].shape == (4, 4, 4, 1) for d in hosts)

    # The first six batches are a whole pass: 24 examples in batches of 4, from step 2 of 8 on. A worker may be ahead.
    def places_of(got):
        return [place[images.tobytes()] for images, _ in got]

    def whole_pass(got):
        return len(got) >= 12 and set(range(6)) <= set(places_of(got))

    places = places_of(elements := take_in_turn(hosts, whole_pass))
    assert whole_pass(elements) and len(set(places)) == len(places)


@pytest.mark.extended
def test_the_service_gives_each_record_of_a_pass_once(service, records):
    source = records(5, 3, 6, 4, 3)
    stream = source.served_keys(1, 0, HostShard(4)).map(lambda number, key: (number, source.read(key)))
    hosts = [distribute(stream, service, "each record") for _ in range(2)]

    def complete(got):
        return set(range(21)) <= {n for n, _ in got}

    elements = take_in_turn(hosts, complete)
    numbers = [n for n, _ in elements]
    assert complete(elements) and len(set(numbers)) == len(numbers)
    assert all(e["label"] == n % 21 and (e["image"] == e["label"]).all() for n, e in elements)


@pytest.mark.extended
def test_a_service_that_does_not_answer_is_a_clear_error():
    with socket.create_server(("localhost", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(ValueError, match=f'No dispatcher .* answers at "grpc://localhost:{port}".*DispatchServer'):
        training_batches(arrays(), FIXED, 8, service=f"grpc://localhost:{port}")
    with pytest.raises(ValueError, match='"grpc://HOST:PORT", got "localhost:5000"'):
        training_batches(arrays(), FIXED, 8, service="localhost:5000")
