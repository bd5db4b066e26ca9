"""Faster R-CNN's loss: offsets, which anchors and regions learn what, the mean over samples, and the loss by a loop."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_vit.detection.assignment import overlapping, sampling_weights
from keras_vit.detection.region_loss import ANCHORS, REGIONS, objectness_logits, region_rows
from keras_vit.layers.boxes import iou, moved, offsets
from keras_vit.training import RegionLoss

RNG = np.random.default_rng(0)
B, M, A, R, K = 3, 4, 40, 12, 3


def boxes_in(*shape, least=0.05):
    corner, size = RNG.random((2, *shape, 2)).astype("float32")
    return np.concatenate([corner * 0.7, corner * 0.7 + least + size * 0.25], axis=-1)


def near(boxes, by=0.03):
    """Boxes moved a little."""
    return (boxes + RNG.uniform(-by, by, boxes.shape)).astype("float32")


BOXES, LABELS = boxes_in(B, M), RNG.integers(0, K, (B, M)).astype("int32")
OBJECTS = np.array([[True] * 4, [True, False, True, False], [False] * 4])
REFERENCES = np.concatenate([near(np.repeat(BOXES, 6, axis=1)), boxes_in(B, A - 6 * M)], axis=1)
PROPOSALS = np.concatenate([near(np.repeat(BOXES, 2, axis=1), 0.02), np.zeros((B, R - 2 * M, 4))], axis=1)
OUTPUTS = RNG.normal(size=(B, A + R, 4)).astype("float32")
OBJECTNESS, LOGITS = RNG.normal(size=(B, A)).astype("float32"), RNG.normal(size=(B, R, K + 1)).astype("float32")
PREDICTION = np.concatenate(
    [
        region_rows(ANCHORS, REFERENCES, OUTPUTS[:, :A], objectness_logits(OBJECTNESS, K)),
        region_rows(REGIONS, PROPOSALS.astype("float32"), OUTPUTS[:, A:], LOGITS),
    ],
    axis=1,
)


def targets(kind=0):
    y = np.concatenate([BOXES, LABELS[..., None], np.full((B, M, 1), kind), np.ones((B, M, 1))], axis=-1)
    y[~OBJECTS] = [0, 0, 0, 0, -1, 0, 0]
    return y.astype("float32")


def test_offsets_are_those_of_centres_and_sides():
    found = offsets(np.array([0.3, 0.2, 0.7, 0.4], "float32"), np.array([0.1, 0.1, 0.3, 0.5], "float32"))
    np.testing.assert_allclose(found, [(0.5 - 0.2) / 0.2, 0, np.log(0.4 / 0.2), np.log(0.2 / 0.4)], atol=1e-6)


def test_a_box_moved_by_its_offsets_is_the_other_box():
    a, b = boxes_in(20), boxes_in(20)
    np.testing.assert_allclose(moved(a, offsets(b, a)), b, atol=1e-6)
    assert np.isfinite(moved(a, np.full((20, 4), 1e9, "float32"))).all()
    assert np.isfinite(offsets(np.zeros((20, 4), "float32"), a)).all()


SQUARE = [0.0, 0.0, 0.4, 0.4]
WIDE = [0.5, 0.0, 0.7, 1.0]


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ([0.0, 0.0, 0.4, 0.38], 0),  # IoU 0.95
        ([0.0, 0.0, 0.4, 0.2], -2),  # 0.5
        ([0.0, 0.0, 0.4, 0.1], -1),  # 0.25
        ([0.5, 0.0, 0.7, 0.35], 1),  # 0.35, and the best of the wide box
        ([0.8, 0.0, 0.9, 1.0], -1),  # none
        ([0.0, 0.0, 0.0, 0.0], -1),
    ],
    ids=["high", "between", "low", "best", "apart", "empty"],
)
def test_a_reference_learns_the_object_that_it_overlaps(reference, expected):
    others = [[0.0, 0.0, 0.4, 0.4], [0.5, 0.0, 0.7, 0.3]]  # the best of the square, and less than the best
    references, boxes = np.array([[*others, reference]], "float32"), np.array([[SQUARE, WIDE]], "float32")
    there = np.ones((1, 3), bool)
    found = overlapping(references, boxes, np.ones((1, 2), bool), there, 0.3, 0.7, best_too=True)
    assert found[0, 2] == expected


def test_only_objects_and_references_that_count_are_assigned():
    references, boxes = np.array([[SQUARE, WIDE]], "float32"), np.array([[SQUARE, WIDE]], "float32")
    first, none = np.array([[True, False]]), np.zeros((1, 2), bool)
    assert np.asarray(overlapping(references, boxes, first, first | True, 0.3, 0.7, True)).tolist() == [[0, -1]]
    assert np.asarray(overlapping(references, boxes, none, first | True, 0.3, 0.7, True)).tolist() == [[-1, -1]]
    assert np.asarray(overlapping(references, boxes, first | True, first, 0.3, 0.7, True)).tolist() == [[0, -2]]


@pytest.mark.parametrize(("p", "q"), [(3, 50), (40, 50), (40, 5), (0, 50), (0, 0)])
def test_weights_are_the_mean_over_random_samples(p, q):
    positive, negative = np.arange(100) < p, (np.arange(100) >= 50) & (np.arange(100) < 50 + q)
    found = np.asarray(sampling_weights(positive[None], negative[None], 16, 0.25))[0]
    drawn, rng = np.zeros(100), np.random.default_rng(0)
    for _ in range(2000):
        chosen = rng.permutation(np.flatnonzero(positive))[: int(16 * 0.25)]
        others = rng.permutation(np.flatnonzero(negative))[: 16 - len(chosen)]
        drawn[np.concatenate([chosen, others])] += 1 / max(len(chosen) + len(others), 1) / 2000
    np.testing.assert_allclose(found, drawn, atol=0.006)


def loop(y, prediction, beta=1 / 9):
    """The loss of an image by a loop over the rows of both stages."""
    there = y[:, 4] >= 0
    boxes, labels, total = y[there, :4], y[there, 4].astype(int), 0.0
    for stage in (ANCHORS, REGIONS):
        rows = [r for r in prediction if r[8] == stage.number and (r[2] - r[0]) * (r[3] - r[1]) > 0]
        overlaps = np.array([[float(iou(r[:4], box)) for box in boxes] for r in rows]).reshape(len(rows), -1)
        best = overlaps.max(0, initial=0)
        losses = {"positive": [], "negative": []}
        for row, ious in zip(rows, overlaps):
            logits = row[9:].astype("float64")
            log_p, highest = logits - np.log(np.exp(logits).sum()), ious.max(initial=0)
            if highest >= stage.high or (stage.best_too and ((ious >= best) & (ious > 0)).any()):
                own = ious.argmax()
                label = 0 if stage is ANCHORS else labels[own]
                wrong = np.abs(row[4:8] - np.asarray(offsets(boxes[own], row[:4])) * stage.units)
                smooth = np.where(wrong < beta, wrong**2 / beta / 2, wrong - beta / 2).sum()
                losses["positive"].append(smooth - log_p[label])
            elif highest < stage.low:
                losses["negative"].append(-log_p[-1])
        taken = min(len(losses["positive"]), stage.samples * stage.share)
        others = min(len(losses["negative"]), stage.samples - taken)
        means = [np.mean(losses[name]) if losses[name] else 0.0 for name in ("positive", "negative")]
        total += (taken * means[0] + others * means[1]) / (taken + others)
    return total


@pytest.mark.extended
def test_the_loss_is_that_of_a_plain_loop():
    found = np.asarray(RegionLoss(reduction="none")(targets(), PREDICTION))
    np.testing.assert_allclose(found, [loop(y, rows) for y, rows in zip(targets(), PREDICTION)], rtol=1e-4)


def test_an_images_loss_does_not_depend_on_the_others_or_on_padding():
    loss = RegionLoss(reduction="none")
    found = np.asarray(loss(targets(), PREDICTION))
    np.testing.assert_allclose(found[1:2], loss(targets()[1:2], PREDICTION[1:2]), rtol=1e-5)
    more = np.concatenate([targets(), np.full((B, 2, 7), -1, "float32")], axis=1)
    np.testing.assert_allclose(loss(more, PREDICTION), found, rtol=1e-5)


def gradient(y, prediction=PREDICTION):
    """(loss, gradient of a prediction)."""
    x = tf.constant(prediction)
    with tf.GradientTape() as tape:
        tape.watch(x)
        value = RegionLoss()(y, x)
    return value, tape.gradient(value, x)


def test_only_outputs_and_logits_learn():
    _, found = gradient(targets())
    found = np.asarray(found)
    assert found[..., 4:8].any() and not found[..., :4].any() and not found[..., 8].any()
    assert not found[:, A + 2 * M :].any()  # empty places


def test_images_without_objects_teach_that_there_is_none():
    value, found = gradient(np.full((B, M, 7), -1, "float32"))
    found = np.asarray(found)
    assert value > 0 and not found[..., :9].any()
    assert (found[:, :A, 9] > 0).all() and (found[:, A : A + 2 * M, 9 + K] < 0).all()


@pytest.mark.parametrize("kind", [1, 2], ids=["crowd", "difficult"])
def test_what_lies_in_crowds_and_difficult_objects_learns_nothing(kind):
    y = np.full((1, M, 7), -1, "float32")
    y[0, 0] = [*BOXES[0, 0], 0, kind, 1]
    _, found = gradient(y, PREDICTION[:1])
    top, left, bottom, right = PREDICTION[0, :, :4].T
    inner = np.maximum(np.minimum(bottom, BOXES[0, 0, 2]) - np.maximum(top, BOXES[0, 0, 0]), 0)
    inner *= np.maximum(np.minimum(right, BOXES[0, 0, 3]) - np.maximum(left, BOXES[0, 0, 1]), 0)
    area = (bottom - top) * (right - left)
    learns = (inner <= 0.5 * area) & (area > 0)
    np.testing.assert_array_equal(np.asarray(found)[0].any(-1), learns)
    assert 0 < learns.sum() < (area > 0).sum()


@pytest.mark.extended
def test_xla_gives_the_same_loss_and_gradient():
    y = tf.constant(targets())
    for one, other in zip(gradient(y), tf.function(lambda: gradient(y), jit_compile=True, autograph=False)()):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_options_come_back_and_wrong_ones_are_refused():
    loss = RegionLoss(2.0, 0.5, 3.0, 1.0)
    config = keras.saving.serialize_keras_object(loss)
    assert keras.saving.deserialize_keras_object(config).get_config() == loss.get_config()
    with pytest.raises(ValueError, match="RegionLoss: box_weight must be 0 or more, got -1"):
        RegionLoss(box_weight=-1)
