"""Top-k, loss, recall of each class and confusion, against scikit-learn."""

import logging

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_vit.data import from_arrays
from keras_vit.evaluation import Classification, Setting, make_evaluator
from keras_vit.evaluation.classes import OTHER, REORDERED, SAME, compared
from keras_vit.evaluation.classification_scores import ClassCounts, both_ways
from keras_vit.evaluation.reliability import CalibrationError
from keras_vit.io.class_names import synsets
from keras_vit.io.json_files import json_text
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


@pytest.mark.extended
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
    precision = metrics.precision_score(labels, best, labels=range(7), average=None, zero_division=np.nan)
    np.testing.assert_allclose([np.nan if p is None else p for p in details["precision"]], precision)
    assert details["examples_per_class"] == np.bincount(labels, minlength=7).tolist() and details["classes"][1] == "1"
    assert measures["mean_recall"] == pytest.approx(metrics.balanced_accuracy_score(labels, best), rel=1e-5)


@pytest.mark.extended
def test_a_class_whose_examples_are_all_unreadable_is_named(caplog):
    logging.getLogger("absl").propagate = True
    images = [tf.io.encode_png(np.full((1, 1, 1), i, "uint8")).numpy() for i in range(3)]
    source = from_arrays([*images, b"none", b"none"], [0, 1, 0, 1, 2], class_names=["cat", "dog", "fox"])
    setting = Setting(
        given_logits(np.eye(3, dtype="float32")), batch_size=2, source=source, preprocess="decode(1)|central_crop(1)"
    )
    assert Classification().prepare(setting)().details["examples_per_class"] == [2, 1, 0]
    assert "no evaluation image of 1 class could be read: fox." in caplog.messages[-1]


@pytest.mark.extended
def test_with_flips_the_logits_are_the_mean_of_both_ways():
    """Images of two pixels beside each other, by a dense layer: mirrored, its rows change places."""
    rng = np.random.default_rng(0)
    pixels, labels = rng.integers(0, 256, (30, 1, 2, 1), dtype="uint8"), rng.integers(0, 4, 30)
    image = keras.Input((1, 2, 1))
    model = Model(image, keras.layers.Dense(4)(keras.layers.Flatten()(image) / 255))
    kernel = 9 * rng.normal(size=(2, 4))
    model.set_weights([kernel, rng.normal(size=4)])
    source = from_arrays(pixels, labels, class_names=list("abcd"))
    setting = Setting(model, batch_size=16, source=source, preprocess="decode(1)")
    plain, both = (Classification(flips=flips).prepare(setting)() for flips in (False, True))
    values, bias = pixels.reshape(30, 2) / 255, model.get_weights()[1]
    for evaluation, x in ((plain, values), (both, (values + values[:, ::-1]) / 2)):
        assert evaluation.measures["top1"] == np.mean((x @ kernel + bias).argmax(-1) == labels)
    np.testing.assert_allclose(both_ways(model)(pixels), x @ kernel + bias, rtol=1e-4, atol=1e-4)
    assert both.details["flips"] is True and "flips" not in plain.details


def test_classes_are_compared_by_name():
    imagenet, words = synsets(), [f"word {i}" for i in range(1000)]
    numbers = [str(i) for i in range(1000)]
    pairs = [(imagenet, words), (words, imagenet), (numbers, imagenet), (words, numbers)]
    for own, names in [*pairs, (("0", "1"), ("cat", "dog"))]:
        assert compared(own, names) == SAME
    assert compared(("cat", "dog"), ("dog", "cat")) == compared(imagenet, imagenet[::-1]) == REORDERED
    assert compared(numbers[:11], sorted(numbers[:11])) == REORDERED  # as folders are sorted
    assert compared(("cat", "dog"), ("cat", "fox")) == compared(words, imagenet[::-1]) == OTHER


@pytest.mark.parametrize("name", ["classification", "calibration", "shifts", "occlusion"])
def test_data_whose_classes_are_not_the_models_is_refused(name, tiny):
    model = tiny(classes=2, class_names=("dog", "cat"))
    source = from_arrays(np.zeros((4, 8, 8, 3), "uint8"), [0, 1, 0, 1], class_names=("cat", "dog"))
    evaluator = make_evaluator(name, {"order": "salient"} if name == "occlusion" else {})
    with pytest.raises(ValueError, match=r"order: \('dog', 'cat'\), the data \('cat', 'dog'\).*classes=FILE"):
        evaluator.prepare(Setting(model, source=source, preprocess="decode"))
    model.class_names = ("cat", "fox")
    with pytest.raises(ValueError, match=r"'fox'\), those of .*class_names=FILE"):
        evaluator.prepare(Setting(model, source=source, preprocess="decode"))


def test_without_a_confusion_matrix_the_recalls_are_the_same():
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(40, 4)).astype("float32"), rng.integers(0, 4, 40)
    counts = [ClassCounts(4, confusion) for confusion in (True, False)]
    weights = (np.arange(40) % 3 > 0).astype("float32")
    for part in counts:
        part.update_state(labels, logits, weights)
    for name in ("per_class", "precision", "examples_per_class"):
        assert counts[0].details()[name] == counts[1].details()[name]
    assert "confusion" not in counts[1].details() and np.sum(counts[0].details()["confusion"]) == weights.sum()


def test_the_calibration_error_counts_no_padding_and_takes_certainty():
    metric, labels = CalibrationError(bins=4), np.array([0, 1, 0])
    logits = np.array([[99, -99], [99, -99], [0, 0]], "float32")  # confidences 1, 1 and, of weight 0, 0.5
    metric.update_state(labels, logits, np.array([1.0, 1.0, 0.0]))
    assert float(metric.result()) == pytest.approx(0.5) and metric.details() == {"calibration": [[2, 0.5, 1.0]]}


@pytest.mark.parametrize("make", [lambda: ClassCounts(2), lambda: ClassCounts(2, False), CalibrationError])
@pytest.mark.parametrize("label", [2, -1])
def test_labels_that_are_no_classes_are_not_measured(make, label, eagerly):
    """Those of examples of weight 0 may be any."""
    metric, labels, logits = make(), np.array([0, 1, label]), np.array([[9, 0], [0, 9], [9, 0]], "float32")
    metric.update_state(labels, logits, np.array([1.0, 1.0, 0.0]))
    right = float(metric.result())
    with pytest.raises(ValueError, match=f"for 2 classes, and are from {min(label, 0)} to {max(label, 1)}"):
        metric.update_state(labels, logits)
    assert float(metric.result()) == right
    eagerly(False)
    tf.function(metric.update_state, autograph=False)(labels, logits)
    assert np.isnan(float(metric.result()))


def test_with_many_classes_the_most_confused_pairs_stand_for_the_matrix():
    rng, n = np.random.default_rng(0), 1000
    labels, best = rng.integers(0, n, 5000), rng.integers(0, n, 5000)
    labels[:7], best[:7] = 3, 998
    counts = ClassCounts(n)
    counts.counts.assign(np.histogram2d(labels, best, bins=(range(n + 1), range(n + 1)))[0])
    details = counts.details()
    assert "confusion" not in details and len(details["most_confused"]) == 100
    true, predicted, count = details["most_confused"][0]
    assert (true, predicted) == (3, 998) and count >= 7
    text = json_text({"classes": [f"n{i:08d} some name" for i in range(n)], **details})
    assert len(text) < 100_000
