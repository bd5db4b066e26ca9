"""TFRecord files from elsewhere: splits by name, counting, labels from 1, keys, class names, and errors in files."""

import gzip
import json
import logging

import pytest
import tensorflow as tf

from keras_vit.data import ExampleErrors, evaluation_batches, open_source
from keras_vit.data.errors import WrongDescription
from keras_vit.data.records import index
from keras_vit.data.scan import scan
from keras_vit.data.sources.selection import example_names, names_at, read_labels, subset, without


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    """A cache folder of the test's own."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("KERAS_VIT_CACHE", str(folder))
    return folder / "scanned"


def example(image, label, image_key="image/encoded", label_key="image/class/label"):
    features = {
        image_key: tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
        label_key: tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
    }
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def write(path, labels, **keys):
    with tf.io.TFRecordWriter(str(path)) as file:
        for i, label in enumerate(labels):
            file.write(example(f"{path.name} {i}".encode(), label, **keys))


def contents(source):
    return [(example["image"].decode(), int(example["label"])) for example in source.ordered().as_numpy_iterator()]


def imagenet_like(folder):
    """Files as tf-slim names and labels them: from 1."""
    for i, labels in enumerate(([1, 2, 3], [3], [2, 1])):
        write(folder / f"train-{i:05d}-of-00003", labels)
    write(folder / "validation-00000-of-00001", [2])


@pytest.mark.extended
@pytest.mark.parametrize("left_out", [(), (2, 19)])
def test_a_subset_reads_the_files_around_its_examples_alone(left_out, tmp_path):
    for i in range(4):
        write(tmp_path / f"train-{i:05d}-of-00004", range(1, 6))
    source = open_source(f"tfrecord:{tmp_path}?first_label=1", "train[1:19]")
    every = contents(source)
    source = without(source, [example_names(source)[i - 1] for i in left_out if i < 19]) if left_out else source
    every = [one for i, one in enumerate(every, 1) if i not in left_out]
    numbers = [7, 9, 11]
    part = subset(source, numbers)
    for path in tmp_path.iterdir():
        if path.name[:11] not in {every[i][0][:11] for i in numbers}:
            path.unlink()
    assert contents(part) == [every[i] for i in numbers] and part.size == 3
    assert sum(part.counts) < 10
    names = [part.example_name(file, index) for file, index, _ in part.keys().as_numpy_iterator()]
    assert names == names_at(source, numbers)


@pytest.mark.extended
def test_files_named_by_split_with_labels_from_one(tmp_path):
    imagenet_like(tmp_path)
    (tmp_path / "labels.txt").write_text("tench\ngoldfish\nshark\n")
    text = f"tfrecord:{tmp_path}?first_label=1"
    source = open_source(text, "train")
    assert source.size == 6 and source.class_names == ("tench", "goldfish", "shark")
    assert contents(source)[2:5] == [
        ("train-00000-of-00003 2", 2),
        ("train-00001-of-00003 0", 2),
        ("train-00002-of-00003 0", 1),
    ]
    assert contents(open_source(text, "val")) == [("validation-00000-of-00001 0", 1)]
    assert contents(open_source(text, "train[2:5]")) == contents(source)[2:5]
    assert contents(open_source(f"tfrecord:{tmp_path}/train-*1-of*?first_label=1", "train")) == contents(source)[3:4]
    with pytest.raises(ValueError, match='have no split "test". Valid: train, val'):
        open_source(text, "test")


def test_without_class_names_the_labels_are_read_once(tmp_path, cache, monkeypatch):
    imagenet_like(tmp_path)
    text = f"tfrecord:{tmp_path}/*"
    assert open_source(text, "train").class_names == ("0", "1", "2", "3")
    assert len(list(cache.iterdir())) == 2  # the number of records, the largest label
    monkeypatch.setattr(index, "count_records", lambda path: 1 / 0)
    assert open_source(text, "train").size == 6
    monkeypatch.undo()
    write(tmp_path / "train-00001-of-00003", [1, 1, 1, 7])
    monkeypatch.setenv("KERAS_VIT_CACHE", str(cache.parent))
    source = open_source(text, "train")
    assert source.size == 9 and len(source.class_names) == 8
    assert open_source(f"{text}?classes=12", "train").class_names[-1] == "11"


@pytest.mark.extended
def test_excluded_records_are_gone_from_every_pass(tmp_path):
    for i in range(3):
        write(tmp_path / f"{i}.tfrecord", [0] * 6)
    whole = open_source(f"tfrecord:{tmp_path}?classes=1", "train[2:]")
    names = example_names(whole)
    assert len(names) == 16 and names[0] == f"{tmp_path}/0.tfrecord, record 2"
    source = without(whole, [names[0], "1.tfrecord, record 5", names[-1]])
    kept = [example for i, example in enumerate(contents(whole)) if i not in (0, 9, 15)]
    assert source.size == 13 and source.counts == [3, 5, 5] and contents(source) == contents(source.cached()) == kept
    stream = [(int(n), example["image"].decode()) for n, example in source.shuffled(3).take(30).as_numpy_iterator()]
    assert (
        sorted(image for _, image in stream[:13])
        == sorted(image for _, image in stream[13:26])
        == sorted(i for i, _ in kept)
    )
    assert [
        (int(n), example["image"].decode()) for n, example in source.shuffled(3, 20).take(10).as_numpy_iterator()
    ] == stream[20:]


def test_other_keys_and_files_without_a_splits_name(tmp_path):
    write(tmp_path / "part-0.tfrecord", [0, 1], image_key="img", label_key="y")
    text = f"tfrecord:{tmp_path}/part-*?image=img&label=y&classes=2"
    assert contents(open_source(text, "train")) == [("part-0.tfrecord 0", 0), ("part-0.tfrecord 1", 1)]
    with pytest.raises(
        ValueError, match=r'no "image/encoded" in its first record, only \[.img., .y.\]. Write ".*[?]image=KEY"'
    ):
        open_source(f"tfrecord:{tmp_path}/part-*", "train")


def test_labels_outside_the_classes_are_named_when_they_are_read(tmp_path):
    imagenet_like(tmp_path)
    source = open_source(f"tfrecord:{tmp_path}?classes=3", "train")
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="3 classes from 0 to 2, and the label. .3. .here. .*first_label=1"
    ):
        contents(source)


@pytest.mark.extended
def test_a_label_outside_the_classes_ends_a_run(tmp_path):
    """It is no image to be left out: all others would have the name of another class."""
    image = tf.io.encode_png(tf.zeros((4, 4, 3), tf.uint8)).numpy()
    with tf.io.TFRecordWriter(str(tmp_path / "train")) as file:
        for label in (1, 2, 3):
            file.write(example(image, label))
    (tmp_path / "labels.txt").write_text("tench\ngoldfish\nshark\n")
    source, errors = open_source(f"tfrecord:{tmp_path}/train", "train"), ExampleErrors()
    with pytest.raises(ValueError, match="train: The source .* the label 3 here"):
        read_labels(source)
    with pytest.raises(WrongDescription, match="record 2. The source"):
        list(scan(source, lambda example, image: (example["label"],)))  # as `prepare` reads it
    batches = evaluation_batches(source, "decode|resize(4, 4)", 6, errors=errors)
    with (
        pytest.raises(WrongDescription, match="record 2. The source .* the label 3 here. .*first_label=1"),
        errors.raised(),
    ):
        list(batches)


def test_labels_from_one_without_names_are_told(tmp_path, caplog, cache):
    imagenet_like(tmp_path)
    logging.getLogger("absl").propagate = True
    assert open_source(f"tfrecord:{tmp_path}", "train").class_names == ("0", "1", "2", "3")
    assert 'class 0 is empty. If the classes start at 1, add "?first_label=1"' in caplog.text
    write(tmp_path / "other", [0, 1])
    with pytest.raises(ValueError, match="have the label 0; expected at least 1"):
        open_source(f"tfrecord:{tmp_path}/other?first_label=1", "train")


def test_damaged_files_are_clear_errors(tmp_path):
    with pytest.raises(FileNotFoundError, match="No file matches"):
        open_source(f"tfrecord:{tmp_path}", "train")
    write(tmp_path / "a.tfrecord", [0, 1])
    whole = (tmp_path / "a.tfrecord").read_bytes()
    (tmp_path / "a.tfrecord").write_bytes(whole[:-5])
    with pytest.raises(ValueError, match='a.tfrecord" is not a complete TFRecord file: record 2 does not end'):
        open_source(f"tfrecord:{tmp_path}?classes=2", "train")
    (tmp_path / "a.tfrecord").write_text("these are not records, but text")
    with pytest.raises(ValueError, match="is not a TFRecord file of tf.train.Examples: corrupted record at 0"):
        open_source(f"tfrecord:{tmp_path}?classes=2", "train")
    (tmp_path / "a.tfrecord").write_bytes(b"")
    with pytest.raises(ValueError, match="has no records"):
        open_source(f"tfrecord:{tmp_path}?classes=2", "train")
    with pytest.raises(ValueError, match="first_label=x: expected an integer"):
        open_source(f"tfrecord:{tmp_path}?first_label=x", "train")


def described(folder, **changes):
    content = {
        "name": "x",
        "class_names": ["a", "b"],
        "splits": {"train": {"0.tfrecord": 2, "1.tfrecord": 1}},
        **changes,
    }
    (folder / "dataset.json").write_text(json.dumps(content))


def test_with_a_description_no_file_is_opened(tmp_path, cache):
    for i in range(2):
        (tmp_path / f"{i}.tfrecord").write_bytes(b"0" * 32)
    described(tmp_path)
    source = open_source(f"tfrecord:{tmp_path}", "train[1:]")
    assert source.files == ((f"{tmp_path}/0.tfrecord", 1, 1), (f"{tmp_path}/1.tfrecord", 0, 1)) and not cache.exists()
    assert open_source(f"tfrecord:{tmp_path}/0*", "train").size == 2
    with pytest.raises(ValueError, match='no split "test". Valid: train'):
        open_source(f"tfrecord:{tmp_path}", "test")
    with pytest.raises(ValueError, match=r"remove the options classes, which dataset.json"):
        open_source(f"tfrecord:{tmp_path}?classes=3", "train")
    (tmp_path / "1.tfrecord").unlink()
    with pytest.raises(FileNotFoundError, match="1 of 2 files are missing: .*1.tfrecord"):
        open_source(f"tfrecord:{tmp_path}", "train")


@pytest.mark.parametrize(
    "changes", [{"splits": {"train": {"0.tfrecord": "two"}}}, {"features": {}}, {"rows": 3}, {"splits": []}]
)
def test_a_description_of_another_form(tmp_path, changes):
    (tmp_path / "0.tfrecord").write_bytes(b"")
    described(tmp_path, **changes)
    with pytest.raises(ValueError, match="does not describe TFRecord files"):
        open_source(f"tfrecord:{tmp_path}", "train")


def test_files_that_are_not_as_long_as_they_were_are_named_at_the_start(tmp_path, cache):
    for i, labels in enumerate(([0, 1], [0])):
        write(tmp_path / f"{i}.tfrecord", labels)
    sizes = {f"{i}.tfrecord": (tmp_path / f"{i}.tfrecord").stat().st_size for i in range(2)}
    described(tmp_path, bytes=sizes)
    assert open_source(f"tfrecord:{tmp_path}", "train").size == 3
    whole = (tmp_path / "1.tfrecord").read_bytes()
    (tmp_path / "1.tfrecord").write_bytes(whole[:-1])
    with pytest.raises(
        ValueError, match=r'1.tfrecord" has [\d,]+ bytes; expected [\d,]+ by dataset.json. Copy or write it'
    ):
        open_source(f"tfrecord:{tmp_path}", "train")
    described(tmp_path)  # as version 0.3 wrote it
    assert open_source(f"tfrecord:{tmp_path}", "train").size == 3
    (tmp_path / "0.tfrecord").write_bytes(b"")
    with pytest.raises(ValueError, match='0.tfrecord" has 0 bytes; expected 32 or more'):
        open_source(f"tfrecord:{tmp_path}", "train")


def test_a_folder_may_have_the_name_of_a_glob(tmp_path, cache):
    folder = tmp_path / "train[:90%]"
    folder.mkdir()
    imagenet_like(folder)
    assert open_source(f"tfrecord:{folder}?classes=4", "train").size == 6
    assert open_source(f"tfrecord:{folder}/train-00000-*?classes=4", "train").size == 3
    for path in folder.iterdir():
        path.unlink()
    write(folder / "0.tfrecord", [0, 1])
    described(folder, splits={"train": {"0.tfrecord": 2}})
    assert open_source(f"tfrecord:{folder}", "train").size == 2


def test_missing_files_of_a_numbered_set(tmp_path):
    imagenet_like(tmp_path)
    (tmp_path / "train-00001-of-00003").unlink()
    with pytest.raises(FileNotFoundError, match="1 of 3 files are missing: .*/train-00001-of-00003. To read only"):
        open_source(f"tfrecord:{tmp_path}?classes=4", "train")
    assert open_source(f"tfrecord:{tmp_path}/train-*?classes=4", "train").size == 5


def test_flipped_bytes_are_named(tmp_path):
    """In a record's length: at the start. In a record: at the start if all are read for their labels, or when read."""
    write(tmp_path / "a.tfrecord", [0, 1])
    write(tmp_path / "b.tfrecord", [0, 1, 2])
    good = (tmp_path / "b.tfrecord").read_bytes()

    def flip(place):
        data = bytearray(good)
        data[place] ^= 255
        (tmp_path / "b.tfrecord").write_bytes(data)

    flip(3)
    with pytest.raises(ValueError, match='b.tfrecord" is not a complete TFRecord file: record 1 does not end'):
        open_source(f"tfrecord:{tmp_path}?classes=3", "train")
    flip(len(good) // 2)
    with pytest.raises(ValueError, match='b.tfrecord" is damaged: corrupted record'):
        open_source(f"tfrecord:{tmp_path}", "train")
    source = open_source(f"tfrecord:{tmp_path}?classes=3", "train")
    assert source.example_name(1, 1) == f"{tmp_path}/b.tfrecord, record 1"
    with pytest.raises(tf.errors.InvalidArgumentError, match="This record, or one before it in the file, is damaged"):
        source.read(source.make_key(1, 1))


def test_compressed_and_empty_files(tmp_path, caplog):
    logging.getLogger("absl").propagate = True
    write(tmp_path / "a.tfrecord", [0, 1])
    (tmp_path / "b.tfrecord").write_bytes(b"")
    assert open_source(f"tfrecord:{tmp_path}?classes=2", "train").size == 2
    assert "1 of 2 files have no records: " in caplog.text
    (tmp_path / "b.tfrecord").write_bytes(gzip.compress((tmp_path / "a.tfrecord").read_bytes()))
    with pytest.raises(ValueError, match='b.tfrecord" is not a complete TFRecord file: gzip compression'):
        open_source(f"tfrecord:{tmp_path}?classes=2", "train")
