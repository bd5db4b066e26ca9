"""The losses of distillation and their gradients against NumPy in float64, written out by hand."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_vit.training import Agreement, HardDistillation, SoftDistillation, StudentAccuracy, TeacherAccuracy

RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 5, 6)
ROWS = np.eye(5)[LABELS]
MIXED = 0.7 * ROWS + 0.3 * ROWS[::-1]


def outputs(heads):
    return 2 * RNG.normal(size=(6, heads + 1, 5))


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def by_hand(values, rows, alpha, temperature=None):
    """(mean loss, its gradient with respect to the outputs) of hard distillation, or with a temperature of soft."""
    b, (head, last, teacher) = len(values), (values[:, 0], values[:, -2], values[:, -1])
    gradient = np.zeros_like(values)
    loss = (1 - alpha) * -(rows * np.log(softmax(head))).sum(-1)
    gradient[:, 0] += (1 - alpha) * (softmax(head) - rows)
    t = temperature or 1.0
    p, q = softmax(teacher / t), softmax(last / t)
    if temperature is None:
        p = np.eye(5)[teacher.argmax(-1)]
        loss += alpha * -(p * np.log(q)).sum(-1)
    else:
        loss += alpha * t**2 * (p * np.log(p / q)).sum(-1)
    gradient[:, -2] += alpha * t * (q - p)
    return loss.mean(), gradient / b


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize(
    ("loss", "alpha", "temperature"),
    [
        (HardDistillation(), 0.5, None),
        (HardDistillation(alpha=0.2), 0.2, None),
        (SoftDistillation(), 0.9, 3.0),
        (SoftDistillation(alpha=1.0, temperature=2.0), 1.0, 2.0),
    ],
)
@pytest.mark.parametrize("mixed", [False, True])
def test_loss_and_gradient_are_those_computed_by_hand(heads, loss, alpha, temperature, mixed):
    values = outputs(heads)
    expected, gradient = by_hand(values, MIXED if mixed else ROWS, alpha, temperature)
    variable = tf.Variable(values, dtype="float32")
    with tf.GradientTape() as tape:
        value = loss(MIXED.astype("float32") if mixed else LABELS, variable)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    np.testing.assert_allclose(tape.gradient(value, variable), gradient, atol=1e-6)


def test_labels_are_smoothed_for_their_own_part_alone():
    values = outputs(2)
    expected, _ = by_hand(values, 0.9 * ROWS + 0.1 / 5, 0.5)
    np.testing.assert_allclose(
        HardDistillation(label_smoothing=0.1)(LABELS, values.astype("float32")), expected, rtol=1e-5
    )


def test_without_the_labels_part_labels_change_nothing():
    loss, values = SoftDistillation(alpha=1.0), outputs(1).astype("float32")
    assert float(loss(LABELS, values)) == float(loss(LABELS[::-1].copy(), values)) > 0


def test_metrics_are_of_the_mean_of_the_heads():
    values, weights = outputs(2), np.array([1, 1, 1, 0, 1, 0], "float32")
    student, teacher = values[:, :2].mean(1).argmax(-1), values[:, 2].argmax(-1)
    expected = {StudentAccuracy: student == LABELS, TeacherAccuracy: teacher == LABELS, Agreement: student == teacher}
    for metric, hits in expected.items():
        assert float(metric()(LABELS, values.astype("float32"), weights)) == pytest.approx(
            np.average(hits, weights=weights)
        )


@pytest.mark.parametrize(
    "made",
    [
        HardDistillation(alpha=0.3, label_smoothing=0.1),
        SoftDistillation(alpha=1.0, temperature=2.0, class_weights=(1, 2)),
    ],
)
def test_losses_round_trip(made):
    copy = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(made))
    assert type(copy) is type(made) and copy.get_config() == made.get_config()


@pytest.mark.parametrize("metric", [StudentAccuracy(k=2), TeacherAccuracy(), Agreement()])
def test_metrics_round_trip(metric):
    assert type(metric).from_config(metric.get_config()).get_config() == metric.get_config()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: HardDistillation(alpha=1.5), "alpha, the teacher's share of the loss, must be in"),
        (lambda: SoftDistillation(temperature=0), "temperature must be above 0, got 0"),
        (
            lambda: HardDistillation()(LABELS, outputs(1)[:, 0]),
            r"takes the outputs \(b, 2 or 3, classes\) of a keras_vit.Distilled",
        ),
        (lambda: HardDistillation()(LABELS + 3, outputs(1).astype("float32")), "label"),
    ],
)
def test_what_makes_no_sense_is_a_clear_error(call, message):
    with pytest.raises(ValueError, match=message):
        call()
