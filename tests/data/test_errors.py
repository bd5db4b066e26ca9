"""Examples that cannot be used: skipped, named once, counted, an error above the limit; the rest is in its place."""

import itertools
import logging
import shutil

import numpy as np
import pytest
import tensorflow as tf
from interpreters import Interpreter
from quick_tensorflow import without_optimizing

from keras_vit.data import ExampleErrors, evaluation_batches, from_arrays, open_source, training_batches
from keras_vit.data.errors import TooManyErrors, replaced
from keras_vit.data.sources.base import Records

TEXT = "decode(1)|resize(4, 4)"


def encoded(number):
    return tf.io.encode_png(np.full((4, 4, 1), number, "uint8")).numpy()


def with_failing(n, failing):
    """A source of n PNGs whose every pixel is their number and label; the numbers in `failing` are damaged."""
    return from_arrays([b"damaged" if i in failing else encoded(i) for i in range(n)], np.arange(n))


def folder_of(root, n):
    """A folder of n PNGs in the classes c0 and c1; its path."""
    for i in range(n):
        (root / f"c{i % 2}").mkdir(parents=True, exist_ok=True)
        (root / f"c{i % 2}" / f"{i}.png").write_bytes(encoded(i))
    return str(root)


def collect(dataset, count=None):
    return list((dataset if count is None else dataset.take(count)).as_numpy_iterator())


@pytest.fixture
def warnings(caplog):
    logging.getLogger("absl").propagate = True
    with caplog.at_level("WARNING"):
        yield caplog


def test_each_failed_row_is_replaced_by_the_nearest_good_one():
    """All ways in which rows of six can fail."""
    values = {"x": tf.range(6), "y": tf.range(6) * 10}
    replace = tf.function(lambda good: replaced(values, good, ExampleErrors()))
    for good in itertools.product([False, True], repeat=6):
        if any(good):
            kept = [i for i in range(6) if good[i]]
            nearest = [min(kept, key=lambda j: (abs(i - j), j)) for i in range(6)]
            result = replace(tf.constant(good))
            assert result["x"].numpy().tolist() == nearest and (result["y"] == result["x"] * 10).numpy().all()


@pytest.mark.extended
def test_the_rows_of_failed_examples_are_replaced_and_the_others_stay():
    failing, errors = {0, 1, 9, 20, 21}, ExampleErrors()
    source = with_failing(24, failing)
    expected = np.reshape([key for _, key in collect(source.shuffled_keys(1), 96)], (12, 8))
    for (images, labels), numbers in zip(collect(training_batches(source, TEXT, 8, 1, errors=errors), 12), expected):
        good = [i for i, number in enumerate(numbers) if number not in failing]
        nearest = [min(good, key=lambda j: (abs(i - j), j)) for i in range(8)]
        np.testing.assert_array_equal(labels, numbers[nearest])
        assert (images == labels[:, None, None, None]).all()
    assert set(errors.names) == {f"arrays, example {i}" for i in failing}


@pytest.mark.extended
def test_evaluation_gives_failed_examples_weight_0():
    failing = {0, 6, 7, *range(16, 21)}  # a whole batch among them
    batches = collect(evaluation_batches(with_failing(21, failing), TEXT, 8))
    images, labels, weights = (np.concatenate(part) for part in zip(*batches))
    expected = [float(i < 21 and i not in failing) for i in range(24)]
    np.testing.assert_array_equal(weights, expected)
    np.testing.assert_array_equal(labels, np.arange(24) * weights)
    np.testing.assert_array_equal(images[:, 0, 0, 0], np.arange(24) * weights)


@pytest.mark.extended
def test_files_are_named_with_the_reason_once(tmp_path, warnings):
    source = open_source(f"folder:{folder_of(tmp_path, 8)}", "train")
    (tmp_path / "c0" / "0.png").unlink()  # vanished since
    (tmp_path / "c1" / "1.png").write_bytes(b"")
    (tmp_path / "c0" / "2.png").write_text("no image")
    (tmp_path / "c1" / "3.png").write_bytes(encoded(3)[:-20])
    errors = ExampleErrors()
    collect(training_batches(source, TEXT, 8, errors=errors), 5)
    reasons = {name[len(str(tmp_path)) + 1 :]: reason for name, reason in errors.names.items()}
    assert sorted(reasons) == ["c0/0.png", "c0/2.png", "c1/1.png", "c1/3.png"]
    assert "No such file" in reasons["c0/0.png"] and reasons["c1/1.png"].startswith("It is empty")
    assert reasons["c0/2.png"].startswith("It is not an image") and reasons["c1/3.png"].startswith("Invalid PNG data")
    assert sum("2.png" in record.message for record in warnings.records) == 1
    assert errors.report().count("\n") == 4 and f"{tmp_path}/c0/2.png\tIt is not an image" in errors.report()


@pytest.mark.extended
def test_twenty_are_named_and_too_many_are_an_error_that_says_what_to_do(warnings):
    errors = ExampleErrors()
    for i in range(30):
        errors.add(f"{i}.png", lambda: "damaged")
    assert len(errors.names) == 30 and sum("Skipping" in record.message for record in warnings.records) == 20
    errors = ExampleErrors(limit=2)
    batches = training_batches(with_failing(16, {1, 2, 3, 9}), TEXT, 8, errors=errors)
    with pytest.raises(
        TooManyErrors,
        match=r"^More than 2 examples cannot be used, including arrays, example \d+: It is not an image.*broken_limit",
    ):
        with errors.raised():
            collect(batches, 4)
    with pytest.raises(ValueError, match="limit of at least 0"):
        ExampleErrors(limit=-1)


def test_other_errors_are_left_as_they_are():
    with pytest.raises(tf.errors.OutOfRangeError), ExampleErrors().raised():
        raise tf.errors.OutOfRangeError(None, None, "the end")


def test_a_batch_without_any_good_example_is_a_clear_error():
    errors = ExampleErrors()
    with pytest.raises(ValueError, match="^None of the 4 examples of a batch"), errors.raised():
        collect(tf.data.Dataset.from_tensors(tf.fill((4,), False)).map(lambda good: replaced(good, good, errors)))


@pytest.mark.extended
def test_a_damaged_file_of_records_loses_its_records_by_name(tmp_path):
    """Of the second file the third record is damaged: TensorFlow cannot find those after it."""
    files = []
    for name, numbers in (("a", range(5)), ("b", range(5, 10))):
        path = str(tmp_path / name)
        with tf.io.TFRecordWriter(path) as writer:
            for number in numbers:
                writer.write(encoded(number))
        files.append((path, 0, 5))
    path = tmp_path / "b"
    data = bytearray(path.read_bytes())
    data[2 * (len(data) // 5) + 40] ^= 255
    path.write_bytes(data)

    def parse(r):
        return {"image": r, "label": tf.cast(tf.io.decode_png(r)[0, 0, 0], tf.int64)}

    source = Records("records", tuple("0123456789"), tuple(files), parse)
    errors = ExampleErrors()
    batches = collect(evaluation_batches(source, TEXT, 5, errors=errors))
    np.testing.assert_array_equal(np.concatenate([w for *_, w in batches]), [1] * 7 + [0] * 3)
    assert list(errors.names) == [f"{path}, record {i}" for i in (2, 3, 4)]


def over_the_service():
    """(labels, names of failed examples) of batches that a data service in this process prepares."""
    service = tf.data.experimental.service
    dispatcher = service.DispatchServer()
    address = dispatcher.target.split("://")[1]
    worker = service.WorkerServer(service.WorkerConfig(dispatcher_address=address))
    errors = ExampleErrors()
    batches = training_batches(with_failing(16, {5, 6}), TEXT, 8, service=dispatcher.target, errors=errors)
    labels = {int(i) for _, labels in collect(batches, 6) for i in labels}
    _KEPT.append(worker)
    return sorted(labels), sorted(errors.names)


_KEPT = []  # workers that must not end before their process


@pytest.mark.processes
def test_the_data_service_reports_them_too():
    """In a process that is killed: a worker that ends waits for its examples with Python's lock, which the report of a
    failed one needs.
    """
    with Interpreter() as other:
        labels, names = other.run(over_the_service)
    assert labels == sorted(set(range(16)) - {5, 6})
    assert names == ["arrays, example 5", "arrays, example 6"]


def test_a_name_that_is_not_utf8_is_logged_as_text(caplog):
    ExampleErrors().add("photos/\udcff.jpg", lambda: "truncated")
    assert "Skipping photos/\\xff.jpg: truncated" in caplog.text


@pytest.mark.extended
def test_cached_sources_give_the_same_stream(tmp_path):
    path = str(tmp_path / "r")
    with tf.io.TFRecordWriter(path) as writer:
        for number in range(9):
            writer.write(encoded(number))

    def parse(record):
        return {"image": record, "label": tf.constant(1, tf.int64)}

    records = Records("records", tuple("012345678"), ((path, 0, 4), (path, 4, 5)), parse, buffer=3)
    for source in (open_source(f"folder:{folder_of(tmp_path / 'photos', 9)}", "train"), records):
        assert collect(source.shuffled(2), 24) == collect(source.cached().shuffled(2), 24)
    assert from_arrays(np.zeros((2, 4, 4, 1)), [0, 1]).cached().size == 2


def labels_without_files(folder):
    """Labels of a cached folder whose files are gone."""
    without_optimizing(False)
    cached = open_source(f"folder:{folder}", "train").cached()
    shutil.rmtree(folder)
    return sorted(int(example["label"]) for example in collect(cached.ordered()))


@pytest.mark.processes
def test_cached_sources_read_no_file_again(tmp_path):
    """In a process that optimizes graphs, as programs do and these tests do not: what reads the files is pruned."""
    with Interpreter() as interpreter:
        assert interpreter.run(labels_without_files, folder_of(tmp_path / "photos", 4)) == [0, 0, 1, 1]
