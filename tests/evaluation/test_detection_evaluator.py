"""The evaluator of detectors: measures, padding, thresholds, pictures, and what it refuses."""

import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf
from small_detectors import NAMES, SCALE, SIZE, detector, random_examples, written
from small_scenes import NAMES as SEEN
from small_scenes import drawn, seeing

import keras_vit
from keras_vit.data import from_arrays
from keras_vit.evaluation import AveragePrecision, Setting, make_evaluator
from keras_vit.io.json_files import json_text

A, B = (0.0, 0.0, 0.4, 0.4), (0.4, 0.4, 0.8, 0.8)
EXAMPLES = [
    ([(A, 0, 0), (B, 1, 0)], [(A, 0, 0.8), (B, 0, 0.6)]),
    ([], [(A, 1, 0.4)]),
    ([(B, 1, 0)], [(B, 1, 0.8)]),
]


SOURCE = written(EXAMPLES)
FEATURES = {
    "boxes": np.tile(np.float32(A), (2, 1, 1)),
    "labels": np.int32([[0], [1]]),
    "crowd": np.zeros((2, 1), "int32"),
    "area": np.full((2, 1), 40, "float32"),
    "size": np.full((2, 2), 16, "int32"),
}


@pytest.fixture(scope="module")
def model():
    return detector()


def evaluate(model, source=SOURCE, batch_size=2, **options):
    setting = Setting(model, batch_size=batch_size, source=source, preprocess="decode(1)")
    return make_evaluator("detection", options).prepare(setting)()


@pytest.mark.extended
def test_measures_are_those_of_average_precision_and_count_each_example_once(model):
    examples, expected = random_examples(), AveragePrecision(NAMES)
    for objects, detections in examples:
        boxes, labels, scores = zip(*detections)
        rows = [(*box, label, crowd, 2e4 * (box[2] - box[0]) * (box[3] - box[1])) for box, label, crowd in objects]
        expected.add(
            SIZE, np.array(rows), np.array(boxes), np.round(SCALE * np.array(scores)) / SCALE, np.array(labels)
        )
    found = evaluate(model, written(examples), batch_size=4, pictures=0)
    assert found.measures.pop("examples") == len(examples)
    assert found.measures == pytest.approx(expected.result()[0], abs=1e-6)
    assert not found.pictures


@pytest.mark.extended
def test_classes_in_another_order_measure_the_same_and_a_missing_one_is_not_scored(model):
    def relabelled(names, labels):
        return dataclasses.replace(
            SOURCE,
            class_names=names,
            parse=lambda example: example | {"labels": tf.gather(labels, example["labels"])},
        )

    expected = evaluate(model, pictures=0)
    found = evaluate(model, relabelled(("dog", "ant", "cat"), [2, 0]), pictures=0)
    assert found.measures == expected.measures and found.details == expected.details
    cats = evaluate(model, relabelled(("cat", "ant"), [0, 1]), pictures=0)  # dogs are called ants
    (row,) = cats.details["per_class"]
    assert row == expected.details["per_class"][0] | {key: row[key] for key in ("precision", "recall")}
    assert cats.details["classes"] == ["cat"]


@pytest.mark.extended
def test_details_are_json_and_name_the_classes(model):
    found = evaluate(model)
    details = json.loads(json_text(found.details))
    assert details["classes"] == list(NAMES)
    assert [(row["name"], row["objects"]) for row in details["per_class"]] == [("cat", 1), ("dog", 2)]
    assert found.measures["ap50"] == pytest.approx((1 + 51 / 101) / 2)


@pytest.mark.extended
def test_the_threshold_is_the_best_of_the_data_unless_given(model):
    best, given = evaluate(model), evaluate(model, threshold=0.5)
    assert best.measures["threshold"] == given.measures["threshold"] == best.details["score_threshold"]
    assert best.measures["threshold"] == pytest.approx(0.8)
    assert best.details["confusion"] == [[1, 0, 0], [0, 1, 1], [0, 0, 0]]
    assert given.details["confusion"] == [[1, 0, 0], [1, 1, 0], [0, 0, 0]]


@pytest.mark.extended
def test_the_limit_leaves_out_further_detections(model):
    assert evaluate(model, limit=1, threshold=0.5).details["confusion"] == [[1, 0, 0], [0, 1, 1], [0, 0, 0]]


@pytest.mark.extended
def test_pictures_show_examples_of_the_model_size_enlarged(model):
    pictures = evaluate(model, pictures=2).pictures
    assert list(pictures) == ["examples"] and pictures["examples"].shape[1] == 2 * 320 + 8


@pytest.mark.extended
def test_with_tiles_small_objects_of_large_images_are_measured_at_their_own_size():
    size, boxes = (200, 300), [(0, 0, 9, 11), (92, 250, 101, 261), (60, 90, 190, 240)]
    image = drawn([(box, 0, 0.8) for box in boxes], size)
    features = {"boxes": np.array(boxes, "float32") / np.array([*size, *size], "float32")}
    features |= {"labels": np.zeros(3, "int32"), "crowd": np.zeros(3, "int32")}
    features |= {"area": np.array([99, 99, 19500], "float32"), "size": np.int32(size)}
    source = from_arrays(image[None], features={name: value[None] for name, value in features.items()})
    setting = Setting(seeing(), source=dataclasses.replace(source, class_names=SEEN, most_objects=3), batch_size=4)
    plain, tiled = (
        make_evaluator("detection", {"pictures": 1, **how}).prepare(setting)()
        for how in ({"preprocess": "decode(3)|resize(64, 64, 'nearest', False)"}, {"tiles": 64, "tile_overlap": 0.25})
    )
    assert (plain.details["sizes"]["small"]["ar"], tiled.details["sizes"]["small"]["ar"]) == (0, 1)
    assert tiled.measures["ap50"] == tiled.measures["ap_small"] == pytest.approx(1) and tiled.measures["examples"] == 1
    assert (tiled.details["tiles"], tiled.details["tile_overlap"]) == (64, 0.25) and "tiles" not in plain.details
    assert tiled.pictures["examples"].shape[1] == 1024
    for options, text in (
        ({"tiles": 0}, "tiles must be a positive integer, got 0"),
        ({"tiles": 64, "tile_overlap": 1}, "tile_overlap is a share"),
        ({"tiles": 64, "preprocess": "decode"}, "preprocess has no effect with tiles"),
    ):
        with pytest.raises(ValueError, match=text):
            make_evaluator("detection", options)


@pytest.mark.extended
def test_an_unreadable_example_does_not_count(model):
    def broken(i):
        with tf.control_dependencies([tf.debugging.Assert(i != 0, ["broken"])]):
            return SOURCE.lookup(tf.identity(i))

    found = evaluate(model, dataclasses.replace(SOURCE, lookup=broken))
    assert found.measures["examples"] == 2 and [row["objects"] for row in found.details["per_class"]] == [0, 1]


@pytest.mark.extended
def test_data_without_objects_and_models_without_boxes_are_refused(model):
    with pytest.raises(ValueError, match=r"The 1 images of arrays have no objects to find"):
        evaluate(model, written([EXAMPLES[1]]))
    with pytest.raises(ValueError, match=r"arrays has no boxes: give a source of images and boxes"):
        evaluate(model, dataclasses.replace(SOURCE, most_objects=None))
    with pytest.raises(ValueError, match=r"needs a keras_vit.DetectionModel, got a object"):
        evaluate(object())


@pytest.mark.extended
def test_a_detection_model_is_evaluated():
    images = from_arrays(np.zeros((2, 16, 16, 3), "uint8"), features=FEATURES)
    source = dataclasses.replace(images, class_names=NAMES, most_objects=1)
    model = keras_vit.DetectionModel(
        "Ti/8", classes=2, class_names=NAMES, image_size=16, depth=1, width=8, heads=1, mlp_dim=8
    )
    found = make_evaluator("detection", {}).prepare(Setting(model, batch_size=2, source=source, preprocess="decode"))()
    assert found.measures["examples"] == 2 and 0 <= found.measures["ap"] <= 1
    with pytest.raises(ValueError, match="share no class name"):
        make_evaluator("detection", {}).prepare(
            Setting(model, source=dataclasses.replace(source, class_names=("zebra",)))
        )
