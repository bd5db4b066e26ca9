"""Examples that cannot be used: skipped, named once, counted, and an error past the limit, with everything else in its place."""

import logging

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.data import Broken, evaluation_batches, from_arrays, open_source, training_batches
from keras_vit.data.broken import TooManyBroken
from keras_vit.data.source import Records

TEXT = "decode(1)|resize(4, 4)"


def encoded(number):
    return tf.io.encode_png(np.full((4, 4, 1), number, "uint8")).numpy()


def with_broken(n, broken):
    """A source of n PNGs whose every pixel is their number and label; those numbers in `broken` are damaged."""
    return from_arrays([b"damaged" if i in broken else encoded(i) for i in range(n)], np.arange(n))


def collect(dataset, count=None):
    return list((dataset if count is None else dataset.take(count)).as_numpy_iterator())


@pytest.fixture
def warnings(caplog):
    logging.getLogger("absl").propagate = True
    with caplog.at_level("WARNING"):
        yield caplog


@pytest.mark.parametrize(("rows", "broken"), [(8, {3}), (8, {0, 1, 9, 20, 21}), (6, {5, 6, 7, 8, 9, 10}), (3, {23})])
def test_a_broken_row_is_replaced_by_the_nearest_and_the_others_stay(rows, broken):
    whole = collect(training_batches(with_broken(24, {}), TEXT, rows, seed=1), 24)
    told = Broken()
    for (images, labels), (_, expected) in zip(
        collect(training_batches(with_broken(24, broken), TEXT, rows, 1, broken=told), 24), whole
    ):
        good = [i for i, number in enumerate(expected) if number not in broken]
        nearest = [min(good, key=lambda j: (abs(i - j), j)) for i in range(rows)]
        np.testing.assert_array_equal(labels, expected[nearest])
        assert (images == labels[:, None, None, None]).all()
    assert set(told.names) == {f"arrays, example {i}" for i in broken}


def test_runs_resume_exactly_with_broken_examples():
    whole = collect(training_batches(with_broken(21, {2, 3, 11}), TEXT, 8, seed=3), 9)
    resumed = collect(training_batches(with_broken(21, {2, 3, 11}), TEXT, 8, seed=3, start_step=4), 5)
    for a, b in zip(resumed, whole[4:]):
        assert all(np.array_equal(x, y) for x, y in zip(a, b))


@pytest.mark.parametrize("broken", [{0}, {20}, {6, 7, 8}, {16, 17, 18, 19, 20}])
def test_evaluation_gives_broken_rows_weight_0(broken):
    batches = collect(evaluation_batches(with_broken(21, broken), TEXT, 8))
    images, labels, weights = (np.concatenate(part) for part in zip(*batches))
    expected = [float(i < 21 and i not in broken) for i in range(24)]
    np.testing.assert_array_equal(weights, expected)
    np.testing.assert_array_equal(labels, np.arange(24) * weights)
    np.testing.assert_array_equal(images[:, 0, 0, 0], np.arange(24) * weights)


def test_files_are_named_with_the_reason_once(tmp_path, warnings):
    for i in range(8):
        (tmp_path / f"c{i % 2}").mkdir(exist_ok=True)
        (tmp_path / f"c{i % 2}" / f"{i}.png").write_bytes(encoded(i))
    source = open_source(f"folder:{tmp_path}", "train")
    (tmp_path / "c0" / "0.png").unlink()  # vanished since
    (tmp_path / "c1" / "1.png").write_bytes(b"")
    (tmp_path / "c0" / "2.png").write_text("no image")
    (tmp_path / "c1" / "3.png").write_bytes(encoded(3)[:-20])
    broken = Broken()
    collect(training_batches(source, TEXT, 8, broken=broken), 5)
    reasons = {name[len(str(tmp_path)) + 1 :]: reason for name, reason in broken.names.items()}
    assert sorted(reasons) == ["c0/0.png", "c0/2.png", "c1/1.png", "c1/3.png"]
    assert "No such file" in reasons["c0/0.png"] and reasons["c1/1.png"].startswith("Input is empty")
    assert reasons["c0/2.png"].startswith("Unknown image file format") and reasons["c1/3.png"].startswith("Invalid PNG data")
    assert sum("2.png" in record.message for record in warnings.records) == 1
    assert broken.report().count("\n") == 4 and f"{tmp_path}/c0/2.png\tUnknown image" in broken.report()


def test_the_first_twenty_are_named(warnings):
    broken = Broken()
    collect(training_batches(with_broken(60, set(range(30))), TEXT, 60, broken=broken), 3)
    assert len(broken.names) == 30
    assert sum("Skipping" in record.message for record in warnings.records) == 20


@pytest.mark.parametrize("make", [training_batches, evaluation_batches])
def test_too_many_are_an_error_that_says_what_to_do(make):
    broken = Broken(limit=2)
    batches = make(with_broken(16, {1, 2, 3, 9}), TEXT, 8, broken=broken)
    with pytest.raises(
        TooManyBroken, match=r"^More than 2 examples cannot be used, arrays, example \d+ among them: Unknown .*broken_limit"
    ):
        with broken.raised():
            collect(batches, 4)
    with pytest.raises(ValueError, match="limit of 0 or more"):
        Broken(limit=-1)


def test_other_errors_are_left_as_they_are():
    with pytest.raises(tf.errors.OutOfRangeError), Broken().raised():
        raise tf.errors.OutOfRangeError(None, None, "the end")


def test_a_batch_without_any_good_example_is_a_clear_error():
    broken = Broken()
    with pytest.raises(ValueError, match="^None of the 4 examples of a batch"), broken.raised():
        collect(training_batches(with_broken(8, set(range(8))), TEXT, 4, broken=broken), 1)


def test_a_damaged_file_of_records_loses_its_records_by_name(tmp_path):
    """Of the second file the third record is damaged: TensorFlow cannot find those behind it."""
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
    source = Records("records", tuple("0123456789"), tuple(files), lambda r: (r, tf.cast(tf.io.decode_png(r)[0, 0, 0], tf.int64)))
    broken = Broken()
    batches = collect(evaluation_batches(source, TEXT, 5, broken=broken))
    np.testing.assert_array_equal(np.concatenate([w for *_, w in batches]), [1] * 7 + [0] * 3)
    assert list(broken.names) == [f"{path}, record {i}" for i in (2, 3, 4)]
    seen = {int(label) for _, labels in collect(training_batches(source, TEXT, 5), 8) for label in labels}
    assert seen == set(range(7))


def test_the_data_service_tells_of_them_too():
    dispatcher = tf.data.experimental.service.DispatchServer()
    address = dispatcher.target.split("://")[1]
    worker = tf.data.experimental.service.WorkerServer(tf.data.experimental.service.WorkerConfig(dispatcher_address=address))
    broken = Broken()
    batches = training_batches(with_broken(16, {5, 6}), TEXT, 8, service=dispatcher.target, broken=broken)
    assert {int(i) for _, labels in collect(batches, 6) for i in labels} == set(range(16)) - {5, 6}
    assert set(broken.names) == {"arrays, example 5", "arrays, example 6"}
    del worker


def test_cached_sources_give_the_same_stream(tmp_path):
    for i in range(9):
        (tmp_path / f"c{i % 2}").mkdir(exist_ok=True)
        (tmp_path / f"c{i % 2}" / f"{i}.png").write_bytes(encoded(i))
    folder = open_source(f"folder:{tmp_path}", "train")
    path = str(tmp_path / "r")
    with tf.io.TFRecordWriter(path) as writer:
        for number in range(9):
            writer.write(encoded(number))
    files = ((path, 0, 4), (path, 4, 5))
    records = Records("records", tuple("012345678"), files, lambda r: (r, tf.constant(1, tf.int64)), buffer=3)
    for source in (folder, records):
        expected = collect(training_batches(source, TEXT, 4, seed=2), 6)
        cached = source.cached()
        if source is folder:
            (tmp_path / "c0" / "0.png").unlink()
        for a, b in zip(collect(training_batches(cached, TEXT, 4, seed=2), 6), expected):
            assert all(np.array_equal(x, y) for x, y in zip(a, b))
