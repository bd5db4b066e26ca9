"""LW-DETR's loss: transformers' values and gradients, and what does not take part in the matching."""

import json
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.layers.boxes import from_centers
from keras_vit.training import GroupedSetPredictionLoss

CASES = json.loads(pathlib.Path(__file__).with_name("grouped_losses.json").read_text())["cases"]
pytestmark = pytest.mark.usefixtures("eagerly")  # compiling would be most of the time
PADDING = np.array([0, 0, 0, 0, -1, 0, 0], "float32")


def corners(centers):
    """Boxes (..., 4) of centre x, centre y, width, height as top, left, bottom, right."""
    x, y, width, height = tf.unstack(centers, axis=-1)
    return from_centers(tf.stack([y, x, height, width], axis=-1))


def objects(case, rows=5):
    """(1, rows, 7), padded."""
    y = np.tile(PADDING, (1, rows, 1))
    if n := len(case["labels"]):
        y[0, :n, :4] = corners(tf.constant(case["objects"]))
        y[0, :n, 4] = case["labels"]
    return y


def packed(predictions):
    """(1, s, g, q, 4 + k) with boxes as corners."""
    return tf.concat([corners(predictions[..., :4]), predictions[..., 4:]], axis=-1)[None]


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(len(case["labels"])))
def test_loss_and_gradient_are_transformers(case):
    predictions = tf.Variable(case["predictions"])
    with tf.GradientTape() as tape:
        loss = GroupedSetPredictionLoss()(objects(case), packed(predictions))
    assert float(loss) == pytest.approx(case["loss"], rel=1e-6, abs=1e-5)
    np.testing.assert_allclose(tape.gradient(loss, predictions), case["gradient"], rtol=0, atol=1e-5)


def test_an_image_counts_for_itself_in_a_batch():
    cases = [case for case in CASES if len(case["predictions"][0]) == 2]
    y, predictions = (
        np.concatenate(parts) for parts in zip(*((objects(c), packed(tf.constant(c["predictions"]))) for c in cases))
    )
    loss = GroupedSetPredictionLoss()
    assert float(loss(y, predictions)) == pytest.approx(np.mean([case["loss"] for case in cases]), abs=1e-5)


def test_crowds_and_difficult_objects_are_not_matched():
    case = CASES[3]
    prediction, y, alone = packed(tf.constant(case["predictions"])), objects(case), objects(case)
    y[0, 1, 5], y[0, 2, 5] = 1, 2
    alone[0, 1:3] = PADDING
    assert float(GroupedSetPredictionLoss()(y, prediction)) == float(GroupedSetPredictionLoss()(alone, prediction))


def test_more_objects_than_queries_leave_some_out():
    case = CASES[3]
    prediction = packed(tf.constant(case["predictions"]))[:, :, :, :2]
    assert np.isfinite(GroupedSetPredictionLoss()(objects(case), prediction))
