"""Boxes in arrays and in TFRecords."""

import json

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.data import from_arrays, open_source
from keras_vit.data.objects import complete
from keras_vit.data.records.write import write_records
from keras_vit.data.sources.selection import read_labels

IMAGES = np.zeros((3, 8, 10, 3), "uint8")
BOXES = [np.zeros((0, 4)), [[0, 0, 0.5, 1]], [[0, 0, 0.5, 0.5], [0.5, 0.5, 1, 1]]]
LABELS = [np.zeros(0, int), [1], [0, 1]]
NAMES = ("cat", "dog")
FEATURES = {"boxes": BOXES, "labels": LABELS}
KEYS = {"image", "boxes", "labels", "crowd", "area", "size"}


def examples(source):
    """The examples, by their number of objects."""
    return sorted(source.ordered().as_numpy_iterator(), key=lambda example: len(example["labels"]))


def test_arrays_have_all_that_detection_takes():
    source = from_arrays(IMAGES, None, NAMES, features=FEATURES)
    assert source.class_names == NAMES and source.most_objects == 2
    none, one, two = examples(source)
    assert set(one) == KEYS and none["boxes"].shape == (0, 4)
    assert one["area"].tolist() == [40] and two["area"].tolist() == [20, 20] and two["crowd"].tolist() == [0, 0]
    assert one["size"].tolist() == [8, 10] and two["labels"].dtype == "int32" and two["labels"].tolist() == [0, 1]


def test_difficult_objects_are_marked_unless_they_are_crowds():
    given = {"image": IMAGES[0], "boxes": np.zeros((3, 4), "float32"), "labels": np.arange(3)}
    found = complete({**given, "crowd": [False, True, False], "difficult": [True, True, False], "area": [1, 2, 3]})
    assert found["crowd"].numpy().tolist() == [2, 1, 0] and "difficult" not in found
    assert found["area"].numpy().tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"labels": [np.zeros(0, int), [1], [0]]}, "image 2 has 2 boxes and 1 labels"),
        ({"labels": [np.zeros(0, int), [2], [0, 1]]}, "range from 0 to 2; expected 0 to 1 for the 2 class_names"),
        ({"boxes": None}, r'features\["labels"\], the labels of objects, need'),
    ],
)
def test_objects_that_do_not_fit_are_refused(changed, message):
    features = {key: values for key, values in {**FEATURES, **changed}.items() if values is not None}
    with pytest.raises(ValueError, match=message):
        from_arrays(IMAGES, None, NAMES, features=features)


@pytest.fixture(scope="module")
def written(own_cache, tmp_path_factory):
    """(a source of boxes, the folder of its records, resized to 4 pixels)."""
    folder = str(tmp_path_factory.mktemp("records"))
    crowd, area = [[], [1], [2, 0]], [[], [7.5], [1000, 20]]
    features = FEATURES | {
        "crowd": [np.array(row, int) for row in crowd],
        "area": [np.array(row, float) for row in area],
    }
    source = from_arrays(IMAGES, None, NAMES, features=features)
    write_records(source, folder, "cells", "train", 1, resize=4)
    return source, folder


@pytest.mark.extended
def test_records_give_the_same_objects(written):
    source, folder = written
    copy = open_source(f"tfrecord:{folder}", "train")
    assert (copy.class_names, copy.most_objects, copy.size) == (NAMES, 2, 3)
    for before, after in zip(examples(source), examples(copy)):
        assert set(after) == KEYS
        for key in KEYS - {"image"}:
            np.testing.assert_array_equal(after[key], before[key])
            assert after[key].dtype == before[key].dtype


def test_records_of_objects_have_no_labels_and_say_what_they_hold(written):
    _, folder = written
    copy = open_source(f"tfrecord:{folder}", "train")
    for count in (lambda: read_labels(copy), copy.class_counts):
        with pytest.raises(ValueError, match="has no labels"):
            count()
    description = json.loads(open(f"{folder}/dataset.json").read())
    assert description["most_objects"] == {"train": 2} and "boxes" in description["features"]


def others(path, records):
    """Writes records as TensorFlow's object detection does: {key: values} under image/object/, or image/encoded."""
    png = tf.io.encode_png(np.zeros((8, 10, 3), "uint8")).numpy()
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records:
            features = {"image/encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[png]))}
            for key, values in record.items():
                kind = "bytes" if key == "class/text" else "int64" if key == "class/label" else "float"
                lists = {f"{kind}_list": getattr(tf.train, f"{kind.capitalize()}List")(value=values)}
                features[f"image/object/{key}"] = tf.train.Feature(**lists)
            writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
    return f"tfrecord:{path}"


def sides(*boxes):
    """{key: values} of boxes top, left, bottom, right."""
    return {f"bbox/{side}": [box[i] for box in boxes] for i, side in enumerate(("ymin", "xmin", "ymax", "xmax"))}


ONE = {**sides([0, 0, 0.5, 1]), "class/label": [2], "class/text": [b"dog"]}
TWO = {**sides([0, 0, 0.5, 0.5], [0.5, 0.5, 1.005, 1]), "class/label": [1, 2], "class/text": [b"cat", b"dog"]}


@pytest.mark.extended
@pytest.mark.usefixtures("own_cache")
def test_records_of_tensorflows_object_detection_have_names_and_labels_from_1(tmp_path):
    source = open_source(others(tmp_path / "a.tfrecord", [ONE, {}, TWO]), "train")
    assert (source.class_names, source.most_objects, source.size) == (("cat", "dog"), 2, 3)
    none, one, two = examples(source)
    assert set(none) == KEYS and none["labels"].shape == (0,)
    assert one["labels"].tolist() == [1] and one["size"].tolist() == [8, 10] and one["area"].tolist() == [40]
    assert two["labels"].tolist() == [0, 1] and two["boxes"].max() == 1 and two["crowd"].tolist() == [0, 0]


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize(
    ("record", "options", "message"),
    [
        (
            sides([0, 0, 1, 1]),
            "",
            'have no "image/object/class/label", which objects need. They have "image/object/bbox',
        ),
        ({}, "?boxes=image/object/bbox", 'have no "image/object/bbox/ymin", which objects need'),
        ({**ONE, "class/label": [0]}, "", "have the label 0, but classes are numbered from 1: .*first_label"),
        ({**TWO, "class/text": [b"cat", b"cat"]}, "", 'name several labels "cat"'),
    ],
)
def test_records_without_what_objects_need_are_refused(record, options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        open_source(others(tmp_path / "a.tfrecord", [record]) + options, "train")


@pytest.mark.extended
@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({**ONE, **sides([0, 0, 8, 10])}, "Boxes should be fractions of the image"),
        ({**TWO, "class/label": [1]}, "Boxes and labels differ in number"),
        ({**ONE, "class/label": [3]}, "it has 2 classes from 1 to 2, and the labels"),
    ],
)
def test_a_record_with_damaged_objects_fails_when_it_is_read(record, message, tmp_path):
    source = open_source(others(tmp_path / "a.tfrecord", [TWO, record]) + "?classes=2", "train")
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        examples(source)


@pytest.mark.usefixtures("own_cache")
def test_label_maps_that_contradict_records_or_each_other_are_refused(tmp_path):
    def write(split, *names):
        items = [f'item {{ name: "{name}" id: {i} }}' for i, name in enumerate(names, 1)]
        (tmp_path / split / "cells_label_map.pbtxt").write_text("\n".join(items))

    for split in ("train", "valid"):
        (tmp_path / split).mkdir()
        others(tmp_path / split / "cells.tfrecord", [ONE])
    write("train", "cat", "dog")
    write("valid", "bird", "dog")
    assert open_source(f"tfrecord:{tmp_path}", "train").class_names == ("cat", "dog")
    with pytest.raises(ValueError, match='call label 1 "cat" in train and "bird" in another split'):
        open_source(f"tfrecord:{tmp_path}", "val")
    write("train", "dog", "cat")
    with pytest.raises(ValueError, match='calls label 2 "cat", but the records call it "dog"'):
        open_source(f"tfrecord:{tmp_path}", "train")
