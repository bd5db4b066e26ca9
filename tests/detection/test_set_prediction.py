"""DETR's loss: transformers' values and gradients, and what does not take part in the matching."""

import json
import pathlib

import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit.detection.dense_loss import packed
from keras_vit.layers.boxes import from_centers
from keras_vit.training import SetPredictionLoss

CASES = json.loads(pathlib.Path(__file__).with_name("set_losses.json").read_text())["cases"]
PADDING = np.array([0, 0, 0, 0, -1, 0, 0], "float32")


def corners(centers):
    """Boxes (..., 4) of centre x, centre y, width, height as top, left, bottom, right."""
    x, y, width, height = tf.unstack(centers, axis=-1)
    return from_centers(tf.stack([y, x, height, width], axis=-1))


def objects(case, rows=9):
    """(1, rows, 7), padded."""
    y = np.tile(PADDING, (1, rows, 1))
    if n := len(case["labels"]):
        y[0, :n, :4] = corners(tf.constant(case["objects"]))
        y[0, :n, 4] = case["labels"]
    return y


@pytest.mark.extended
@pytest.mark.parametrize("case", CASES, ids=lambda case: str(len(case["labels"])))
def test_loss_and_gradients_are_transformers(case):
    logits, boxes = (tf.Variable(case[name]) for name in ("logits", "boxes"))
    with tf.GradientTape() as tape:
        loss = SetPredictionLoss()(objects(case), packed(corners(boxes), logits))
    gradients = tape.gradient(loss, [logits, boxes])
    assert float(loss) == pytest.approx(case["loss"], abs=1e-5)
    for found, name in zip(gradients, ("logits_gradient", "boxes_gradient")):
        np.testing.assert_allclose(found, case[name], rtol=0, atol=1e-5)


@pytest.mark.extended
def test_an_image_counts_for_itself_in_a_batch():
    y, predictions = (
        np.concatenate(parts)
        for parts in zip(*((objects(c), packed(corners(tf.constant(c["boxes"])), c["logits"])) for c in CASES))
    )
    loss = SetPredictionLoss()
    assert float(loss(y, predictions)) == pytest.approx(np.mean([case["loss"] for case in CASES]), abs=1e-5)
    weights = np.array([0, 0, 1, 0], "float32")
    y[3] = 99.0  # what an image without weight holds does not matter
    assert float(loss(y, predictions, weights)) == pytest.approx(CASES[2]["loss"] / 4, abs=1e-5)


@pytest.mark.extended
def test_crowds_and_difficult_objects_are_not_matched():
    case = CASES[2]
    prediction = packed(corners(tf.constant(case["boxes"])), case["logits"])
    y, alone = objects(case), objects(case)
    y[0, 1, 5], y[0, 2, 5] = 1, 2
    alone[0, 1:] = PADDING
    assert float(SetPredictionLoss()(y, prediction)) == float(SetPredictionLoss()(alone, prediction))


@pytest.mark.extended
def test_more_objects_than_predictions_leave_some_out():
    case = CASES[3]
    prediction = packed(corners(tf.constant(case["boxes"])), case["logits"])[:, :4]
    assert np.isfinite(SetPredictionLoss()(objects(case), prediction))


@pytest.mark.extended
def test_it_trains_yolos_and_each_loss_refuses_the_others_head():
    sizes = {"image_size": 16, "depth": 1, "width": 8, "heads": 2, "mlp_dim": 8, "classes": 3}
    model = keras_vit.DetectionModel("Ti/8", head="yolos", head_options={"tokens": 4}, **sizes)
    with pytest.raises(ValueError, match=r'"yolos" cannot be trained with the loss DenseDetectionLoss'):
        model.compile("sgd", keras_vit.training.DenseDetectionLoss())
    model.compile(keras_vit.training.AdamW(1e-2), SetPredictionLoss(), run_eagerly=True, jit_compile=False)
    y = np.concatenate([objects(case) for case in CASES])
    images = np.random.default_rng(0).integers(0, 256, (4, 16, 16, 3), dtype="uint8")
    history = model.fit(images, y, epochs=6, verbose=0).history["loss"]
    assert history[-1] < 0.9 * history[0]
    boxes, scores, labels = model.detections(images, threshold=0.0)
    assert boxes.shape == (4, 100, 4) and (labels[:, 4:] <= 2).all() and (np.diff(scores) <= 0).all()
