"""Scenes whose classes have another order than the model's, or are a subset or a superset of them."""

import types

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.data.sources.base import RandomAccess
from keras_vit.evaluation import matched_classes
from keras_vit.evaluation.matched_classes import matched_masks, matched_objects
from keras_vit.evaluation.segmentation_scores import _evaluation

OWN = ("cat", "dog", "bird")
# {case: (the data's classes, the scored ones, the objects' labels 0, 1, 2 by these, -1 for an object left out)}
CASES = {
    "same": (OWN, OWN, [0, 1, 2]),
    "another order": (("bird", "cat", "dog"), OWN, [2, 0, 1]),
    "a subset": (("dog",), ("dog",), [0]),
    "a superset": (("ant", "bird", "cat", "dog"), OWN, [-1, 2, 0, 1]),
    "some of both": (("bird", "horse"), ("bird",), [0, -1]),
}


def model(names=OWN):
    return types.SimpleNamespace(class_names=names, classes=3, output_shape=(None, 4, 4, 3), colors=None)


def objects(names):
    """A source of one image with an object of each class; its left edge is the class's number / 10."""
    count = len(names)
    boxes = np.float32([[0, i / 10, 1, 1] for i in range(count)])
    flat = {"labels": np.arange(count, dtype="int32"), "crowd": np.zeros(count, "int32"), "area": np.ones(count)}
    example = {"image": np.zeros((2, 2, 3), "uint8"), "boxes": boxes, **flat}
    return RandomAccess("x", names, None, lambda i: dict(example), count=1, most_objects=count)


@pytest.mark.parametrize("case", CASES)
def test_objects_are_matched_by_name(case):
    names, scored, labels = CASES[case]
    source, of_model = matched_objects(model(), objects(names))
    example = source.read(tf.constant(0, tf.int64))
    assert source.class_names == scored
    kept = [(label, i) for i, label in enumerate(labels) if label >= 0]
    assert np.asarray(example["labels"]).tolist() == [label for label, _ in kept]
    np.testing.assert_allclose(np.asarray(example["boxes"])[:, 1], [i / 10 for _, i in kept], rtol=1e-6)
    assert [scored[i] if i >= 0 else None for i in of_model] == [name if name in scored else None for name in OWN]


@pytest.mark.parametrize("case", CASES)
def test_masks_are_matched_by_name(case):
    names, scored, _ = CASES[case]
    values = np.uint8([[*range(len(names)), 255]])[..., None]
    example = {"image": np.zeros((1, values.shape[1], 3), "uint8"), "mask": tf.constant(values)}
    data = RandomAccess("x", names, None, lambda i: dict(example), count=1, void=255)
    source, is_scored = matched_masks(model(), data)
    mask = np.asarray(source.read(tf.constant(0, tf.int64))["mask"])[0, :, 0]
    assert mask.tolist() == [*(OWN.index(name) if name in OWN else 255 for name in names), 255]
    assert source.class_names == OWN and is_scored.tolist() == [name in scored for name in OWN]


def test_classes_left_out_and_not_scored_are_named(monkeypatch):
    logged = []
    monkeypatch.setattr(matched_classes, "log_once", lambda level, text: logged.append(text))
    matched_objects(model(), objects(("bird", "horse")))
    assert (
        "left out, because the model lacks them: horse; not scored, because the data lacks them: cat, dog" in logged[0]
    )


@pytest.mark.parametrize("names", [("Cat", "Dog"), ("_background_", "horse")])
def test_classes_without_a_common_name_are_refused(names):
    with pytest.raises(ValueError, match="share no class name. The model's 3: .*--load.class_names=FILE"):
        matched_objects(model(("cat", "dog", "background")), objects(names))


def test_a_model_without_names_needs_as_many_classes():
    assert matched_objects(model(None), objects(("a", "b", "c")))[1].tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="The model has 3 classes, the data 2"):
        matched_objects(model(None), objects(("a", "b")))


def test_the_mean_iou_is_over_the_classes_of_the_data():
    source = types.SimpleNamespace(name="x", class_names=OWN, void=255)
    pixels = np.array([[6, 0, 2], [0, 4, 0], [0, 0, 0]])  # 2 of 8 pixels of cat are taken for bird
    found = _evaluation({}, source, np.array([True, True, False]), pixels, None)
    assert found.measures["miou"] == pytest.approx((6 / 8 + 1) / 2)
    assert [row["iou"] for row in found.details["per_class"]] == [0.75, 1.0, None]
