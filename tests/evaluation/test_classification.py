"""Top-k, per-class recall and confusion, against scikit-learn."""

import numpy as np
import pytest

from keras_vit.data import evaluation_batches, from_arrays
from keras_vit.evaluation import classify, report


def test_measures_equal_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(50, 7)).astype("float32"), rng.integers(0, 6, 50)
    found = report(logits, labels)
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    best = logits.argmax(-1)
    assert found["examples"] == 50
    assert found["top1"] == pytest.approx(metrics.accuracy_score(labels, best))
    assert found["top5"] == pytest.approx(metrics.top_k_accuracy_score(labels, p, k=5, labels=range(7)))
    assert found["loss"] == pytest.approx(metrics.log_loss(labels, p, labels=range(7)), rel=1e-5)
    np.testing.assert_array_equal(found["confusion"], metrics.confusion_matrix(labels, best, labels=range(7)))
    recall = metrics.recall_score(labels, best, labels=range(6), average=None)
    np.testing.assert_allclose(found["per_class"][:6], recall)
    assert found["per_class"][6] is None


def test_classify_leaves_the_padding_out(tiny, pixels):
    model, labels = tiny(), np.array([0, 1, 2, 3])
    logits, truth = classify(model, evaluation_batches(from_arrays(pixels, labels), "decode", 3))
    np.testing.assert_allclose(logits, model(pixels), atol=1e-5)
    np.testing.assert_array_equal(truth, labels)
