"""Calibration and the temperature, against their definitions, scikit-learn and SciPy."""

import keras
import numpy as np
import pytest
from small_models import data, dense_on_images

import keras_vit
from keras_vit.data import from_arrays
from keras_vit.evaluation import Reliability, Setting, fit_temperature, make_evaluator


def made(n=400, classes=7, scale=3.0, seed=0):
    """(logits, labels) of a model that is too sure: labels drawn from the softmax of logits / scale."""
    rng = np.random.default_rng(seed)
    logits = scale * rng.normal(size=(n, classes))
    p = softmax(logits / scale)
    return logits, np.array([rng.choice(classes, p=row) for row in p])


def softmax(z):
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def ece(p, labels, bins=15):
    """The calibration error by its definition."""
    confidence, right, error = p.max(-1), p.argmax(-1) == labels, 0.0
    for i in range(bins):
        inside = (confidence > i / bins) & (confidence <= (i + 1) / bins)
        if inside.any():
            error += inside.mean() * abs(right[inside].mean() - confidence[inside].mean())
    return error


@pytest.mark.parametrize("temperature", [1.0, 2.7])
def test_sums_over_batches_are_the_definitions_on_all(temperature):
    metrics = pytest.importorskip("sklearn.metrics")
    logits, labels = made()
    found = Reliability(temperature).add(logits[:150], labels[:150]).add(logits[150:], labels[150:])
    p = softmax(logits / temperature)
    assert found.ece == pytest.approx(ece(p, labels), abs=1e-12)
    assert found.nll == pytest.approx(metrics.log_loss(labels, p, labels=range(7)), abs=1e-12)
    assert found.accuracy == metrics.accuracy_score(labels, p.argmax(-1)) and found.examples == 400


def test_the_temperature_is_scipys_minimum():
    optimize = pytest.importorskip("scipy.optimize")
    for seed in range(3):
        logits, labels = made(seed=seed, scale=1 + 2 * seed)
        nll = lambda t: -np.log(softmax(logits / t)[np.arange(len(labels)), labels]).mean()  # noqa: B023, E731
        best = optimize.minimize_scalar(nll, bounds=(0.05, 50), method="bounded", options={"xatol": 1e-10})
        temperature = fit_temperature(logits, labels)
        assert temperature == pytest.approx(best.x, rel=1e-5) and nll(temperature) <= best.fun + 1e-12
        assert temperature == pytest.approx(1 + 2 * seed, rel=0.2)  # the one that the labels were drawn by


def test_a_shift_of_the_logits_changes_nothing():
    logits, labels = made()
    assert fit_temperature(logits + 1000, labels) == pytest.approx(fit_temperature(logits, labels), rel=1e-6)


def test_without_a_best_temperature_there_is_a_warning(caplog):
    logits, labels = made()
    assert fit_temperature(logits, logits.argmax(-1)) == 0.01
    assert "No temperature from 0.01 to 100 maximises the likelihood" in caplog.text
    caplog.clear()
    assert fit_temperature(logits, (-logits).argmax(-1)) == 100
    assert "No temperature from 0.01 to 100 maximises the likelihood" in caplog.text


def test_probabilities_are_refused():
    image = keras.Input((8, 8, 1))
    model = keras_vit.Model(image, keras.layers.Dense(10, activation="softmax")(keras.layers.Flatten()(image)))
    with pytest.raises(ValueError, match="needs logits, but the model ends in a softmax or sigmoid"):
        make_evaluator("calibration", {"source": "digits", "preprocess": "decode(1)"}).prepare(Setting(model))


@pytest.mark.extended
def test_the_evaluator_fits_on_one_half_and_measures_the_other():
    images, _ = data(30)
    model = dense_on_images()
    logits = model.predict_on_batch(images)
    labels = (logits + np.random.default_rng(0).normal(scale=1.0, size=logits.shape)).argmax(-1)
    source = from_arrays(images, labels, class_names=list("abcde"))
    evaluation = make_evaluator("calibration", {"bins": 10}).prepare(
        Setting(model, batch_size=8, source=source, preprocess="decode")
    )()
    temperature = fit_temperature(logits[::2], labels[::2])
    measures = evaluation.measures
    assert measures["examples"] == 15 and measures["temperature"] == pytest.approx(temperature, rel=1e-4)
    for name, t in (("ece", 1.0), ("ece_scaled", temperature)):
        assert measures[name] == pytest.approx(ece(softmax(logits[1::2] / t), labels[1::2], 10), abs=1e-5)
    assert evaluation.details["fit_images"] == 15 and set(evaluation.charts) == {"reliability"}
    assert sum(n for n, _, _ in evaluation.details["calibration_scaled"]) == 15
