"""Losses and scores of depth against numbers computed by hand."""

import keras
import numpy as np
import pytest

from keras_vit.training import DepthL1, DepthScores, ScaleInvariantLogLoss

# Four pixels, the last two void: errors of log 2 and log 1/2 of depths 1 and 4.
TRUTH = np.array([[[1.0, 4.0], [0.0, np.nan]], [[2.0, -1.0], [2.0, 8.0]]], "float32")
FOUND = np.array([[[2.0, 2.0], [9.0, 9.0]], [[2.0, 9.0], [2.2, 4.0]]], "float32")[..., None]


def test_the_log_loss_forgives_a_common_scale():
    log2, twice = np.log(2), np.where(TRUTH > 0, 2 * TRUTH, 7)[..., None]
    one = ScaleInvariantLogLoss(0.5, reduction=None)(TRUTH[:1], FOUND[:1])
    np.testing.assert_allclose(one, [log2**2], rtol=1e-5)  # the errors' mean is 0
    for invariance in (0.0, 0.5, 1.0):
        found = ScaleInvariantLogLoss(invariance, reduction=None)(TRUTH, twice)
        np.testing.assert_allclose(found, [(1 - invariance) * log2**2] * 2, atol=1e-6)


def test_the_l1_loss_skips_void_and_aligns_inverse_depths():
    np.testing.assert_allclose(DepthL1(reduction=None)(TRUTH, FOUND), [1.5, 4.2 / 3], rtol=1e-5)
    inverse = 3.0 / np.where(TRUTH > 0, TRUTH, 1)[..., None] + 5.0
    np.testing.assert_allclose(DepthL1(align=True, reduction=None)(TRUTH, inverse), [0, 0], atol=1e-5)
    assert float(DepthL1()(np.zeros((1, 2, 2)), FOUND[:1])) == 0


@pytest.mark.parametrize("weights", [None, [1.0, 1.0, 0.0]])
def test_scores_are_means_over_images_with_a_depth(weights):
    metric, nothing = DepthScores(), TRUTH[:1] * (0 if weights is None else 1)
    for rows in ([0], [1, 2]):  # batches of any size
        truth, found = (np.concatenate(both)[rows] for both in ((TRUTH, nothing), (FOUND, FOUND[:1] * 3)))
        metric.update_state(truth, found, None if weights is None else np.array(weights)[rows])
    scores = {name: float(value) for name, value in metric.result().items()}
    abs_rel, rmse, delta1 = (1 + 0.5) / 2, (1 + 4) / 2, 0
    other = (0.1 + 0.5) / 3, (0.2**2 + 4**2) / 3, 2 / 3
    expected = (abs_rel + other[0]) / 2, (rmse**0.5 + other[1] ** 0.5) / 2, (delta1 + other[2]) / 2
    np.testing.assert_allclose([scores[name] for name in ("abs_rel", "rmse", "delta1")], expected, rtol=1e-5)


def test_aligned_scores_of_an_inverse_depth_are_perfect():
    metric = DepthScores(align=True)
    metric.update_state(TRUTH[1:], 0.3 / np.where(TRUTH[1:] > 0, TRUTH[1:], 1)[..., None] - 2.0)
    scores = {name: float(value) for name, value in metric.result().items()}
    assert scores["abs_rel"] < 1e-4 and scores["delta1"] == 1
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(metric))
    assert again.align


def test_depths_of_another_size_are_refused():
    with pytest.raises(ValueError, match=r"size, \(2, 2\), got the shape \(2, 4, 2\)"):
        DepthL1()(np.ones((2, 4, 2), "float32"), FOUND)
