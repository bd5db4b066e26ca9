"""Losses, accuracy and mixup, against Keras' own and against numpy."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_vit.classification.mixup import beta_from_uniform
from keras_vit.fit.losses import balanced_class_weights
from keras_vit.training import Accuracy, Mixup, SigmoidCrossEntropy, SoftmaxCrossEntropy

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(6, 4)).astype("float32")
LABELS = RNG.integers(0, 4, 6)
ROWS = np.eye(4, dtype="float32")[LABELS]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_softmax_equals_keras(smoothing):
    expected = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=smoothing)(ROWS, LOGITS)
    for labels in (LABELS, LABELS[:, None], ROWS):
        np.testing.assert_allclose(SoftmaxCrossEntropy(label_smoothing=smoothing)(labels, LOGITS), expected, rtol=1e-5)


def test_sigmoid_equals_keras_summed_over_classes():
    expected = 4 * keras.losses.BinaryCrossentropy(from_logits=True)(ROWS, LOGITS)
    np.testing.assert_allclose(SigmoidCrossEntropy()(LABELS, LOGITS), expected, rtol=1e-5)


def test_class_weights_scale_each_example():
    weights = (1.0, 2.0, 3.0, 4.0)
    each = keras.ops.convert_to_numpy(keras.losses.sparse_categorical_crossentropy(LABELS, LOGITS, from_logits=True))
    expected = (each * np.array(weights)[LABELS]).mean()
    np.testing.assert_allclose(SoftmaxCrossEntropy(class_weights=weights)(LABELS, LOGITS), expected, rtol=1e-5)
    assert balanced_class_weights([10, 30]) == (2.0, pytest.approx(2 / 3))
    with pytest.raises(ValueError, match="2 values for 4 classes"):
        SoftmaxCrossEntropy(class_weights=(1, 2))(LABELS, LOGITS)
    with pytest.raises(ValueError, match="every class; without any, from 0: 1"):
        balanced_class_weights([3, 0])
    for weights in ({0: 1.0, 1: 2.0}, "balanced", (1.0, -1.0)):
        with pytest.raises(ValueError, match="one number per class"):
            SoftmaxCrossEntropy(class_weights=weights)


def test_class_weights_of_several_labels_are_their_mean_and_of_none_1():
    rows = np.array([[1, 1, 0, 0], [0, 0, 0, 0], [0, 1, 1, 1], [0, 0, 0, 1]], "float32")
    logits, weights = LOGITS[:4], np.array([1, 2, 3, 5], "float32")
    each = np.array([float(SigmoidCrossEntropy()(rows[i : i + 1], logits[i : i + 1])) for i in range(4)])
    weighted = float(SigmoidCrossEntropy(class_weights=weights)(rows, logits))
    assert weighted == pytest.approx((each * [1.5, 1, 10 / 3, 5]).mean(), rel=1e-5)
    assert float(SigmoidCrossEntropy(class_weights=(1,) * 4)(rows, logits)) == pytest.approx(each.mean(), rel=1e-6)
    one = SigmoidCrossEntropy(class_weights=(3,))(np.array([0, 1]), logits[:2, :1])
    expected = np.log1p(np.exp(logits[:2, 0] * [1, -1])) * [1, 3]
    assert float(one) == pytest.approx(expected.mean(), rel=1e-5)


@pytest.mark.parametrize(
    "loss", [SoftmaxCrossEntropy(label_smoothing=0.1, class_weights=(1, 2)), SigmoidCrossEntropy()]
)
def test_losses_round_trip(loss):
    copy = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(loss))
    assert type(copy) is type(loss) and copy.get_config() == loss.get_config()


def test_accuracy_takes_integers_rows_and_weights():
    best = LOGITS.argmax(-1)
    order = np.argsort(-LOGITS, -1)
    for labels in (LABELS, ROWS):
        assert float(Accuracy()(labels, LOGITS)) == pytest.approx((best == LABELS).mean())
        assert float(Accuracy(k=2)(labels, LOGITS)) == pytest.approx((order[:, :2] == LABELS[:, None]).any(-1).mean())
    weights = np.array([1, 1, 1, 0, 0, 0], "float32")
    assert float(Accuracy()(LABELS, LOGITS, weights)) == pytest.approx((best == LABELS)[:3].mean())


@pytest.mark.parametrize("alpha", [0.1, 0.2, 0.5, 1.0, 2.0])
def test_mixup_proportions_follow_the_beta_distribution(alpha):
    stats = pytest.importorskip("scipy.stats")
    uniform = np.random.default_rng(0).random(20_000).astype("float32")
    draws = np.asarray(beta_from_uniform(alpha, keras.ops.convert_to_tensor(uniform)))
    below = draws[uniform < 0.5]  # float32 holds small numbers; next to 1 it rounds
    assert stats.kstest(below, lambda x: 2 * stats.beta(alpha, alpha).cdf(x)).statistic < 0.02
    mirrored = np.asarray(beta_from_uniform(alpha, keras.ops.convert_to_tensor(1 - uniform)))
    np.testing.assert_allclose(mirrored, 1 - draws, atol=1e-5)


def test_mixup_mixes_images_and_labels_alike_and_repeats_by_step():
    images = np.arange(4, dtype="uint8")[:, None, None, None] * np.ones((1, 2, 2, 1), "uint8")
    mixup = Mixup(1.0, classes=4, seed=3)
    mixed, rows = mixup(tf.constant(images), tf.range(4), 7)
    keep = float(rows[1, 1])
    np.testing.assert_allclose(np.asarray(rows).sum(-1), 1, rtol=1e-6)
    np.testing.assert_allclose(np.asarray(mixed)[:, 0, 0, 0], [1 - keep, keep, 3 - keep, keep + 2], rtol=1e-5)
    np.testing.assert_array_equal(mixup(tf.constant(images), tf.range(4), 7)[0], mixed)
    assert (np.asarray(mixup(tf.constant(images), tf.range(4), 8)[0]) != np.asarray(mixed)).any()
    with pytest.raises(ValueError, match="alpha must be positive"):
        Mixup(0.0, 4)


def test_of_equal_logits_the_first_class_is_larger():
    """So a head of zeros is right about k of the classes, and a constant logit too."""
    labels, zeros = np.arange(10), np.zeros((10, 10), "float32")
    for k in (1, 2, 5, 10):
        assert float(Accuracy(k=k)(labels, zeros)) == pytest.approx(k / 10)
    assert float(Accuracy(k=2)(np.array([0, 1, 2]), np.array([[1.0, 2, 1]] * 3))) == pytest.approx(2 / 3)
    assert float(Accuracy(k=1)(np.array([0, 1]), np.array([[1.0, 1, 0]] * 2))) == 0.5


def test_the_top_k_are_those_of_a_stable_sort():
    from keras_vit.evaluation.features import top_hits

    rng = np.random.default_rng(0)
    logits, labels = rng.integers(0, 4, (50, 8)).astype("float32"), rng.integers(0, 8, 50)  # with many ties
    for k in (1, 2, 3, 8, 9):
        assert float(Accuracy(k=k)(labels, logits)) == pytest.approx(top_hits(logits, labels, k) / 50)


def test_a_logit_that_is_not_a_number_is_never_among_the_top_k():
    logits = np.array([[np.nan, 1, 0], [np.nan, 1, 0], [-np.inf, 1, 0]], "float32")
    assert float(Accuracy(k=2)(np.array([0, 1, 0]), logits)) == pytest.approx(1 / 3)
    assert float(Accuracy(k=2)(np.array([-1, 3, 7]), np.zeros((3, 3), "float32"))) == 0
