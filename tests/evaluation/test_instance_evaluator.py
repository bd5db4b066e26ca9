"""The evaluators of instances and of panoptic scenes: measures at the images' own size, pictures, and refusals."""

import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf
from written_masks import NAMES, SIDE, box, instance_model, written, written_model

from keras_vit.evaluation import Setting, make_evaluator
from keras_vit.io.json_files import json_text

A, B, LOWER, SKY = box(0, 0, 8, 8), box(0, 8, 8, 12), box(0, 8, 8, 16), box(8, 0, 16, 16)
EXAMPLES = [
    ([(A, 0, 0), (B, 1, 0), (SKY, 2, 0)], [(A, 0, 0), (LOWER, 1, 0), (SKY, 2, 0)]),  # the dog is found by half
    ([(A, 0, 0)], []),
    ([], [(A, 0, 1), (SKY, 2, 0)]),
]
SOURCE = written(EXAMPLES, stuff=("sky",))


@pytest.fixture(scope="module")
def model():
    return written_model(stuff=("sky",))


def evaluate(model, name="instances", source=SOURCE, **options):
    return make_evaluator(name, options).prepare(Setting(model, batch_size=2, source=source))()


def test_masks_and_boxes_are_measured_without_stuff(model):
    found = evaluate(model)
    assert found.measures["examples"] == 3
    # The cat is found first; the dog's IoU is .5, of masks and of boxes, enough for one of ten thresholds.
    assert found.measures["ap"] == pytest.approx((1 + 0.1) / 2) == pytest.approx(found.measures["box_ap"])
    rows = {row["name"]: row for row in found.details["per_class"]}
    assert [rows[name]["objects"] for name in NAMES] == [1, 1, 0]
    assert rows["sky"]["ap"] is None and (rows["dog"]["ap50"], rows["dog"]["ap"]) == (1, 0.1)
    json.loads(json_text(found.details))


def test_masks_count_where_boxes_are_equal(model):
    corner = box(0, 0, 8, 1) | box(7, 0, 8, 8)  # 15 of 64 pixels
    found = evaluate(model, source=written([([(corner, 0, 0)], [(A, 0, 0)])]))
    assert found.measures["ap"] == 0 and found.measures["box_ap"] == pytest.approx(1)


def test_boundaries_are_measured_if_asked(model):
    assert "boundary_ap" not in evaluate(model).measures
    # Of the dog's outline and that of its half, 28 and 20 pixels, 14 are common: an IoU of .41.
    assert evaluate(model, boundary=True).measures["boundary_ap"] == pytest.approx((1 + 0) / 2)
    with pytest.raises(ValueError, match="boundary=1: expected True or False"):
        make_evaluator("instances", {"boundary": 1})


def doubled(example):
    twice = {key: tf.repeat(tf.repeat(example[key], 2, 0), 2, 1) for key in ("image", "segments")}
    return {**example, **twice, "area": 4 * example["area"]}


def test_images_are_measured_at_their_own_size(model):
    larger = dataclasses.replace(SOURCE, parse=doubled)
    assert evaluate(model, source=larger).measures["ap50"] == evaluate(model).measures["ap50"]
    assert evaluate(model, "panoptic", larger).measures == evaluate(model, "panoptic").measures


def test_segments_are_measured_by_class_and_kind(model):
    found = evaluate(model, "panoptic")
    rows = {row["name"]: row for row in found.details["per_class"]}
    assert [rows[name]["matches"] for name in NAMES] == [1, 0, 1]
    assert [rows[name]["missed"] for name in NAMES] == [0, 1, 1]
    assert [rows[name]["false_alarms"] for name in NAMES] == [0, 1, 0]  # the lone cat lies in void
    assert found.measures["pq_stuff"] == pytest.approx(2 / 3) and found.measures["pq_things"] == pytest.approx(1 / 2)
    assert found.details["stuff"] == ["sky"]


@pytest.mark.extended
def test_classes_are_matched_by_name_and_others_left_out(model):
    reordered = written(
        [(found, [(mask, 2 - label, crowd) for mask, label, crowd in true]) for found, true in EXAMPLES]
    )
    reordered = dataclasses.replace(reordered, class_names=("sky", "dog", "cat"), stuff=("sky",))
    for name in ("instances", "panoptic"):
        assert evaluate(model, name, reordered).measures == evaluate(model, name).measures
    zebras = dataclasses.replace(SOURCE, class_names=("cat", "zebra", "sky"))
    assert evaluate(model, source=zebras).details["classes"] == ["cat", "sky"]
    assert [row["name"] for row in evaluate(model, "panoptic", zebras).details["per_class"]] == ["cat", "sky"]


def test_options_choose_the_threshold_and_the_limit(model):
    assert evaluate(model, threshold=0.99).details["confusion"] == [[0, 0, 0, 1], [0, 0, 0, 1], [0] * 4, [0] * 4]
    assert evaluate(model, limit=1).details["confusion"][1] == [0, 0, 0, 1]
    assert evaluate(model, "panoptic", threshold=0.99).measures["pq"] == 0


def test_pictures_show_examples_side_by_side(model):
    (drawn,) = evaluate(model, pictures=3).pictures.values()
    assert drawn.shape[1] == 2 * 320 + 8
    for color in ((0, 158, 115), (255, 0, 255)):
        assert (drawn == np.array(color)).all(-1).any()
    (drawn,) = evaluate(model, "panoptic", pictures=3).pictures.values()
    assert drawn.shape[1] >= 4 * SIDE
    assert not evaluate(model, pictures=0).pictures


@pytest.mark.extended
def test_a_model_is_evaluated():
    model = instance_model(stuff=("sky",))
    assert 0 <= evaluate(model).measures["ap"] <= 1
    assert 0 <= evaluate(model, "panoptic", threshold=0.0).measures["pq"] <= 1


@pytest.mark.parametrize("name", ["instances", "panoptic"])
def test_other_data_and_models_are_refused(model, name):
    with pytest.raises(ValueError, match="arrays has no outlines of objects: give a source of images and masks"):
        evaluate(model, name, dataclasses.replace(SOURCE, outlined=False))
    with pytest.raises(ValueError, match=f'"{name}" needs a keras_vit.InstanceModel, got a object'):
        evaluate(object(), name)
    with pytest.raises(ValueError, match="preprocess has no effect"):
        evaluate(model, name, preprocess="decode")
    with pytest.raises(ValueError, match=r"of arrays have no (objects|segments) to find"):
        evaluate(model, name, written([([(A, 0, 0)], [(A, 0, 1)])]))
    with pytest.raises(ValueError, match=f"{name}: pictures=-1: expected a whole number"):
        make_evaluator(name, {"pictures": -1})
