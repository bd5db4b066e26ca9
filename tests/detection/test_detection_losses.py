"""Losses on objects: assignment beside plain loops, ignored regions, images without objects, gradients."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from keras_vit.detection.assignment import center_sampled, task_aligned
from keras_vit.detection.dense_loss import focal, packed, quality_focal, varifocal
from keras_vit.detection.heads.dense_detector import grid_points
from keras_vit.layers.boxes import areas, from_centers, giou, intersections, iou, to_centers
from keras_vit.training import DenseDetectionLoss

RNG = np.random.default_rng(0)
POINTS = grid_points([(8, 12), (4, 6)], [(8, 8), (16, 16)], (64, 96))
B, M, K, N = 3, 6, 4, len(POINTS)


def boxes_in(shape, least=0.0):
    corner, size = RNG.random((2, *shape, 2)).astype("float32")
    return np.concatenate([corner * (1 - least), np.minimum(corner * (1 - least) + least + size * 0.6, 1)], -1)


BOXES = boxes_in((B, M))
LABELS = RNG.integers(0, K, (B, M)).astype("int32")
POSITIVE = np.array([[True] * 6, [True, False, True, True, False, True], [False] * 6])
PREDICTED = (np.tile(POINTS[:, :2], 2) + [-0.2, -0.2, 0.2, 0.2] * RNG.random((B, N, 4))).astype("float32")
LOGITS = RNG.normal(size=(B, N, K)).astype("float32")


def overlaps(a, b):
    """(intersection, union, hull) of two boxes, numbers."""

    def area(box):
        return max(box[2] - box[0], 0) * max(box[3] - box[1], 0)

    inner = area([*np.maximum(a[:2], b[:2]), *np.minimum(a[2:], b[2:])])
    hull = area([*np.minimum(a[:2], b[:2]), *np.maximum(a[2:], b[2:])])
    return inner, area(a) + area(b) - inner, hull


def test_overlaps_of_boxes_are_those_of_their_definitions():
    a, b = boxes_in((20,)), boxes_in((20,))
    b[0] = a[0]
    expected = np.array([overlaps(x, y) for x, y in zip(a, b)])
    inner, union, hull = expected.T
    np.testing.assert_allclose(intersections(a, b), inner, atol=1e-6)
    np.testing.assert_allclose(iou(a, b), inner / union, atol=1e-5)
    np.testing.assert_allclose(giou(a, b), inner / union - (hull - union) / hull, atol=1e-5)
    np.testing.assert_allclose(from_centers(to_centers(a)), a, atol=1e-6)
    assert areas(np.array([0.5, 0.5, 0.2, 0.9])) == 0 and iou(a[0, :2].repeat(2), a[0, :2].repeat(2)) == 0


def is_inside(point, box):
    center, side = (box[:2] + box[2:]) / 2, np.maximum(box[2:] - box[:2], 1.02 * point[2:])
    return (np.abs(point[:2] - center) <= side / 2).all()


def test_task_aligned_assignment_is_that_of_a_plain_loop():
    scores = 1 / (1 + np.exp(-LOGITS))
    found, quality = map(np.asarray, task_aligned(POINTS, scores, PREDICTED, BOXES, LABELS, POSITIVE, top=5))
    for b in range(B):
        fits, ious, chosen = np.zeros((N, M)), np.zeros((N, M)), np.zeros((N, M), bool)
        for m in np.flatnonzero(POSITIVE[b]):
            within = [n for n in range(N) if is_inside(POINTS[n], BOXES[b, m])]
            for n in within:
                inner, union, _ = overlaps(PREDICTED[b, n], BOXES[b, m])
                ious[n, m] = inner / union
                fits[n, m] = scores[b, n, LABELS[b, m]] ** 0.5 * ious[n, m] ** 6
            chosen[sorted(within, key=lambda n, m=m: -fits[n, m])[:5], m] = True
        of = np.where(chosen.any(1), np.where(chosen, ious, -1).argmax(1), -1)
        np.testing.assert_array_equal(found[b], of)
        expected = np.zeros(N)
        for m in set(of) - {-1}:
            own = of == m
            expected[own] = fits[own, m] / fits[own, m].max() * ious[own, m].max()
        np.testing.assert_allclose(quality[b], expected, atol=1e-5)
    assert (found[2] == -1).all() and (found[0] >= 0).sum() > 10


def test_center_sampling_is_that_of_a_plain_loop():
    found = np.asarray(center_sampled(POINTS, BOXES, POSITIVE, radius=1.5))
    for b in range(B):
        for n, point in enumerate(POINTS):
            best = -1, np.inf
            for m in np.flatnonzero(POSITIVE[b]):
                box = BOXES[b, m]
                center, side = (box[:2] + box[2:]) / 2, box[2:] - box[:2]
                misfits = np.abs(np.log((side / POINTS[:, 2:]).max(1) / 6))
                near = (np.abs(point[:2] - center) <= 1.5 * point[2:]).all() and is_inside(point, box)
                if near and misfits[n] <= misfits.min() + 1e-4 and side.prod() < best[1]:
                    best = m, side.prod()
            assert found[b, n] == best[0]
    assert (found[0] >= 0).any()


def test_an_object_smaller_than_a_cell_has_a_point():
    tiny = np.array([[[0.501, 0.301, 0.503, 0.304]]], "float32")
    there, label = np.ones((1, 1), bool), np.zeros((1, 1), "int32")
    scores = np.full((1, N, K), 0.01, "float32")
    found, _ = task_aligned(POINTS, scores, PREDICTED[:1], tiny, label, there)
    assert (np.asarray(found) == 0).any() and (np.asarray(center_sampled(POINTS, tiny, there)) == 0).any()


def test_focal_losses_are_those_of_their_papers():
    x, t = RNG.normal(size=50).astype("float32"), RNG.random(50).astype("float32") * (RNG.random(50) < 0.5)
    p, hot = 1 / (1 + np.exp(-x)), t > 0
    entropy = -t * np.log(p) - (1 - t) * np.log(1 - p)
    np.testing.assert_allclose(quality_focal(x, t), np.abs(t - p) ** 2 * entropy, rtol=1e-4)
    np.testing.assert_allclose(varifocal(x, t), np.where(hot, t, 0.75 * p**2) * entropy, rtol=1e-4)
    right = np.where(hot, p, 1 - p)
    expected = -np.where(hot, 0.25, 0.75) * (1 - right) ** 2 * np.log(right)
    np.testing.assert_allclose(focal(x, hot.astype("float32")), expected, rtol=1e-4)


def targets(kinds=(0,) * M, images=B):
    """y (b, m, 7) of BOXES and LABELS, with padding where they are not POSITIVE in the first two images."""
    y = np.concatenate([BOXES, LABELS[..., None], np.broadcast_to(kinds, (B, M))[..., None], LABELS[..., None]], -1)
    y[~POSITIVE] = [0, 0, 0, 0, -1, 0, 0]
    return y[:images].astype("float32")


PREDICTION = np.asarray(packed(PREDICTED, LOGITS, POINTS))
LOSSES = [{}, {"assignment": "center", "classification": "focal"}, {"classification": "varifocal"}]


@pytest.mark.parametrize("options", LOSSES, ids=["quality", "center", "varifocal"])
def test_an_images_loss_does_not_depend_on_the_others_or_on_padding(options):
    loss = DenseDetectionLoss(reduction="none", **options)
    found = np.asarray(loss(targets(), PREDICTION))
    each = [float(loss(targets()[i : i + 1], PREDICTION[i : i + 1])[0]) for i in range(B)]
    np.testing.assert_allclose(found, each, rtol=1e-5)
    more = np.concatenate([targets(), np.full((B, 2, 7), -1, "float32")], axis=1)
    np.testing.assert_allclose(loss(more, PREDICTION), found, rtol=1e-5)


def test_the_loss_is_the_sum_of_its_parts():
    loss = DenseDetectionLoss("center", "focal", class_weight=0.7, box_weight=1.3)
    of = np.asarray(center_sampled(POINTS, BOXES, POSITIVE))[0]
    hot = np.zeros((N, K), "float32")
    hot[of >= 0, LABELS[0, of[of >= 0]]] = 1
    classes = np.asarray(focal(LOGITS[0], hot)).sum()
    boxes = sum(1 - float(giou(PREDICTED[0, n], BOXES[0, of[n]])) for n in np.flatnonzero(of >= 0))
    expected = (0.7 * classes + 1.3 * boxes) / (of >= 0).sum()
    assert float(loss(targets(images=1), PREDICTION[:1])) == pytest.approx(expected, rel=1e-4)


def gradient(y, loss, prediction=PREDICTION):
    """(loss, gradient of a prediction)."""
    x = tf.constant(prediction)
    with tf.GradientTape() as tape:
        tape.watch(x)
        value = loss(y, x)
    return value, tape.gradient(value, x)


@pytest.mark.parametrize("kind", [1, 2], ids=["crowd", "difficult"])
@pytest.mark.parametrize("assignment", ["task_aligned", "center"])
def test_points_in_crowds_and_difficult_objects_learn_nothing(kind, assignment):
    y = targets((kind,) * M, images=1)
    y[0, 1:, 4] = -1
    _, found = gradient(y, DenseDetectionLoss(assignment), PREDICTION[:1])
    within = np.array([is_inside(point, BOXES[0, 0]) for point in POINTS])
    learns = np.asarray(found)[0, :, 8:].any(-1)
    np.testing.assert_array_equal(learns, ~within)
    assert within.any() and not np.asarray(found)[0, :, :8].any()


@pytest.mark.parametrize("options", LOSSES, ids=["quality", "center", "varifocal"])
def test_images_without_objects_teach_negatives(options):
    y = np.full((B, M, 7), -1, "float32")
    value, found = gradient(y, DenseDetectionLoss(**options))
    assert np.isfinite(value) and np.isfinite(found).all() and value > 0
    assert (np.asarray(found)[..., 8:] > 0).all() and not np.asarray(found)[..., :8].any()


def test_images_of_weight_0_may_have_any_objects():
    loss, wrong = DenseDetectionLoss(), targets()
    wrong[1] = 77.0
    weights = np.array([1.0, 0.0, 1.0], "float32")
    clean = float(loss(targets(), PREDICTION, weights))
    assert float(loss(wrong, PREDICTION, weights)) == pytest.approx(clean, rel=1e-6)
    assert np.isnan(tf.function(lambda y: loss(y, PREDICTION), autograph=False)(tf.constant(wrong)))
    with pytest.raises(ValueError, match="The classes of objects should be whole numbers from 0 to 3"):
        loss(wrong, PREDICTION)


@pytest.mark.extended
def test_xla_gives_the_same_loss_and_gradient():
    loss, y = DenseDetectionLoss(), tf.constant(targets())
    eager = gradient(y, loss)
    for one, other in zip(eager, tf.function(lambda: gradient(y, loss), jit_compile=True, autograph=False)()):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_options_come_back_and_wrong_ones_are_refused():
    loss = DenseDetectionLoss("center", "varifocal", 0.5, 3.0, 1.5, 7, 1.0, 4.0, 2.0)
    config = keras.saving.serialize_keras_object(loss)
    assert keras.saving.deserialize_keras_object(config).get_config() == loss.get_config()
    assert ops.shape(packed(PREDICTED, LOGITS)) == (B, N, 4 + K)
    with pytest.raises(ValueError, match=r'assignment "centre". Did you mean "center"'):
        DenseDetectionLoss("centre")
