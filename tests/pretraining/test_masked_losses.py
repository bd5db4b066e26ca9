"""Losses on hidden patches against NumPy, and their gradients against differences in float64."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_vit.training import MaskedAccuracy, MaskedCrossEntropy, MaskedSquaredError

RNG = np.random.default_rng(0)
HIDDEN = np.array([[1, 0, 1, 1], [0, 0, 0, 1], [0, 0, 0, 0]], "float32")


def squared_error(y, outputs):
    each = np.square(outputs[:, 0] - outputs[:, 1]).mean(-1)
    return np.array([error[rows == 1].mean() if rows.any() else 0.0 for error, rows in zip(each, y)])


def cross_entropy(y, logits):
    result = []
    for classes, values in zip(y.reshape(len(y), -1), logits.reshape(len(y), -1, logits.shape[-1])):
        chances = np.exp(values) / np.exp(values).sum(-1, keepdims=True)
        each = [-np.log(chances[i, c]) for i, c in enumerate(classes) if c >= 0]
        result.append(np.mean(each) if each else 0.0)
    return np.array(result)


CASES = {
    "pixels": (MaskedSquaredError, squared_error, HIDDEN, RNG.normal(size=(3, 2, 4, 6))),
    "colours": (MaskedCrossEntropy, cross_entropy, np.where(HIDDEN, [5, 0, 2, 3], -1), RNG.normal(size=(3, 4, 8))),
    "thumbnails": (
        MaskedCrossEntropy,
        cross_entropy,
        np.where(HIDDEN[..., None], RNG.integers(0, 8, (3, 4, 2)), -1),
        RNG.normal(size=(3, 4, 2, 8)),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_numpys(name):
    loss, by_numpy, y, outputs = CASES[name]
    np.testing.assert_allclose(loss(reduction=None)(y, outputs.astype("float32")), by_numpy(y, outputs), atol=1e-6)
    variable = tf.Variable(outputs.astype("float32"))
    with tf.GradientTape() as tape:
        value = loss()(y, variable)
    assert float(value) == pytest.approx(by_numpy(y, outputs).mean(), abs=1e-6)
    gradient, expected = tape.gradient(value, variable).numpy(), np.zeros_like(outputs)
    for place in np.ndindex(outputs.shape):
        step = np.zeros_like(outputs)
        step[place] = 1e-5
        expected[place] = (by_numpy(y, outputs + step).mean() - by_numpy(y, outputs - step).mean()) / 2e-5
    np.testing.assert_allclose(gradient, expected, atol=1e-5)


def test_accuracy_counts_hidden_patches_alone():
    y, logits = CASES["colours"][2:]
    right = [(logits[i].argmax(-1) == y[i])[y[i] >= 0].mean() for i in (0, 1)]
    metric = MaskedAccuracy()
    metric.update_state(y, logits, sample_weight=np.array([1.0, 1.0, 0.0]))
    assert float(metric.result()) == pytest.approx(np.mean(right), abs=1e-6)
    assert MaskedAccuracy.from_config(metric.get_config()).name == "accuracy"


def test_configs_round_trip_and_wrong_outputs_are_refused():
    for loss in (MaskedSquaredError, MaskedCrossEntropy):
        assert type(keras.losses.deserialize(keras.losses.serialize(loss()))) is loss
    with pytest.raises(ValueError, match=r"patches \(b, 2, n, v\), got outputs of shape \(3, 4, 8\)"):
        MaskedSquaredError()(HIDDEN, CASES["colours"][3])


@pytest.mark.parametrize(
    ("loss", "shape", "message"),
    [
        (
            MaskedSquaredError(),
            (4, 2, 4, 3),
            r"MaskedSquaredError expects y of shape \(b, 4\).*model.masked.*got \(4,\)",
        ),
        (MaskedCrossEntropy(), (4, 4, 7), r"MaskedCrossEntropy expects y of shape \(b, 4\).*got \(4,\)"),
        (MaskedCrossEntropy(), (4, 4, 16, 7), r"MaskedCrossEntropy expects y of shape \(b, 4, 16\).*got \(4,\)"),
    ],
)
def test_one_label_per_image_is_refused_though_as_many_images_as_patches(loss, shape, message):
    with pytest.raises(ValueError, match=message):
        loss(np.ones(4, "int32"), np.zeros(shape, "float32"))
