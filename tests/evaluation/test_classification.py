"""Top-k, loss, recall of each class and confusion, against scikit-learn."""

import keras
import numpy as np
import pytest

from keras_vit.data import from_arrays
from keras_vit.evaluation import Classification, Setting
from keras_vit.evaluation.classification import ClassCounts
from keras_vit.training import Model


def given_logits(logits):
    """A model whose image number i, an image of the one pixel i, has the logits of row i."""
    image = keras.Input((1, 1, 1), name="image")
    rows = keras.layers.Embedding(*logits.shape, weights=[logits], name="rows")
    return Model(image, keras.layers.Flatten()(rows(keras.ops.cast(image[:, 0, 0, 0], "int32"))))


def evaluated(logits, labels, batch_size=16):
    images = np.arange(len(logits), dtype="uint8").reshape(-1, 1, 1, 1)
    source = from_arrays(images, labels, class_names=[str(i) for i in range(logits.shape[1])])
    model = given_logits(logits)
    return Classification().prepare(Setting(model, batch_size=batch_size, source=source, preprocess="decode(1)"))()


def test_measures_equal_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(50, 7)).astype("float32"), rng.integers(0, 6, 50)
    evaluation = evaluated(logits, labels)
    measures, details = evaluation.measures, evaluation.details
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    best = logits.argmax(-1)
    assert measures["examples"] == 50
    assert measures["top1"] == metrics.accuracy_score(labels, best)
    assert measures["top5"] == pytest.approx(metrics.top_k_accuracy_score(labels, p, k=5, labels=range(7)), abs=1e-12)
    assert measures["loss"] == pytest.approx(metrics.log_loss(labels, p, labels=range(7)), rel=1e-5)
    np.testing.assert_array_equal(details["confusion"], metrics.confusion_matrix(labels, best, labels=range(7)))
    recall = metrics.recall_score(labels, best, labels=range(6), average=None)
    np.testing.assert_allclose(details["per_class"][:6], recall)
    assert details["per_class"][6] is None
    assert measures["mean_recall"] == pytest.approx(metrics.balanced_accuracy_score(labels, best), rel=1e-5)


def test_without_a_confusion_matrix_the_recalls_are_the_same():
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(40, 4)).astype("float32"), rng.integers(0, 4, 40)
    counts = [ClassCounts(4, confusion) for confusion in (True, False)]
    weights = (np.arange(40) % 3 > 0).astype("float32")
    for part in counts:
        part.update_state(labels, logits, weights)
    assert counts[0].details()["per_class"] == counts[1].details()["per_class"]
    assert "confusion" not in counts[1].details() and np.sum(counts[0].details()["confusion"]) == weights.sum()
