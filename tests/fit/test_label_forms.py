"""Labels of another form than the loss or a metric needs are refused; the metrics that the errors name are right."""

import keras
import numpy as np
import pytest
import sklearn.metrics
import tensorflow as tf
from small_models import dense_on_rows, rows

import keras_vit
from keras_vit.training import Accuracy, Mixup, SigmoidCrossEntropy, SoftmaxCrossEntropy

X, Y = rows(16)
ROWS = np.eye(5, dtype="float32")[Y]
MANY = np.maximum(ROWS, np.eye(5, dtype="float32")[(Y + np.arange(16) % 2) % 5])  # every second row has two labels


@pytest.fixture(autouse=True)
def quick(eagerly):
    """Here nothing depends on tracing."""


def compiled(loss, *metrics, end=None, **options):
    model = dense_on_rows("sgd")
    if end is not None:
        model = keras_vit.Model(model.input, end(model.output))
    model.compile("sgd", loss, metrics=list(metrics), jit_compile=False, **options)
    return model


def arrays(y):
    return X, y


def dataset(y):
    return (tf.data.Dataset.from_tensor_slices((X, y)).batch(4),)


def generator(y):
    return ((batch for batch in [(X[i : i + 4], y[i : i + 4]) for i in range(0, 16, 4)]),)


FORMS = (arrays, dataset, generator)
OF_LOGITS = [
    ("accuracy", r"keras.metrics.BinaryAccuracy\(threshold=0.0\)"),
    (Accuracy, r"keras.metrics.BinaryAccuracy\(threshold=0.0\)"),
    ("categorical_accuracy", r"keras.metrics.BinaryAccuracy\(threshold=0.0\)"),
    (keras.metrics.TopKCategoricalAccuracy, r"keras.metrics.BinaryAccuracy\(threshold=0.0\)"),
    (keras.metrics.F1Score, r"keras.metrics.F1Score\(threshold=1e-7\)"),
    (keras.metrics.FBetaScore, r"keras.metrics.FBetaScore\(threshold=1e-7\)"),
]


@pytest.mark.parametrize(
    ("form", "metric", "right"),
    [*((arrays, *row) for row in OF_LOGITS), *((form, *OF_LOGITS[0]) for form in (dataset, generator))],
)
def test_metrics_of_the_largest_entry_are_refused_for_several_labels(form, metric, right):
    model = compiled(SigmoidCrossEntropy(), metric if isinstance(metric, str) else metric())
    for call in (model.fit, model.evaluate):
        with pytest.raises(ValueError, match=f"several labels per image, or none, write {right}"):
            call(*form(MANY), verbose=0)
    if form is arrays:
        model.fit(X, ROWS, verbose=0)


@pytest.mark.parametrize(
    "loss",
    [
        keras.losses.BinaryCrossentropy(from_logits=True),
        keras.losses.BinaryFocalCrossentropy(from_logits=True),
        lambda y, p: keras.ops.mean(keras.ops.square(y - p), axis=-1),
    ],
)
def test_also_under_other_losses(loss):
    with pytest.raises(ValueError, match='The metric "?accuracy"?.*several labels per image'):
        compiled(loss, "accuracy").fit(X, MANY, verbose=0)


def test_the_one_for_probabilities_has_their_threshold():
    model = compiled("binary_crossentropy", "accuracy", keras.metrics.F1Score(), end=keras.layers.Activation("sigmoid"))
    with pytest.raises(ValueError, match=r"BinaryAccuracy\(threshold=0.5\)"):
        model.fit(X, MANY, verbose=0)
    model = compiled("binary_crossentropy", keras.metrics.F1Score(), end=keras.layers.Activation("sigmoid"))
    with pytest.raises(ValueError, match=r"F1Score\(threshold=0.5\)"):
        model.evaluate(X, MANY, verbose=0)


def test_the_named_metrics_are_scikit_learns():
    """Of logits; F1 averaged over classes."""
    f1 = keras.metrics.F1Score(average="macro", threshold=1e-7)
    model = compiled(SigmoidCrossEntropy(), keras.metrics.BinaryAccuracy(threshold=0.0), f1)
    found, positive = model.evaluate(X, MANY, verbose=0, return_dict=True), model.predict(X, verbose=0) > 0
    assert found["f1_score"] == pytest.approx(
        sklearn.metrics.f1_score(MANY, positive, average="macro", zero_division=0), abs=1e-5
    )
    assert found["binary_accuracy"] == pytest.approx((positive == MANY).mean(), abs=1e-6)


def test_padding_without_labels_and_regression_pass():
    model = compiled(SigmoidCrossEntropy(), "accuracy")
    weights = (np.arange(16) < 12).astype("float32")
    model.evaluate(X, ROWS * weights[:, None], sample_weight=weights, verbose=0)
    compiled("mse", "accuracy").fit(X, 7 * ROWS - 3, verbose=0)


@pytest.mark.parametrize(
    ("metric", "text"),
    [
        ("categorical_accuracy", r"needs rows \(b, 5\). Write keras_vit.training.Accuracy\(\)"),
        (keras.metrics.TopKCategoricalAccuracy(k=2), r"Write keras_vit.training.Accuracy\(k=2\)"),
        (keras.metrics.F1Score(), "F1Score needs rows.*one_hot"),
        (keras.metrics.BinaryAccuracy(threshold=0.0), "BinaryAccuracy needs rows"),
        (keras.metrics.AUC(from_logits=True, multi_label=True, num_labels=5), "AUC needs rows"),
        (keras.metrics.OneHotMeanIoU(5), "OneHotMeanIoU needs rows"),
        ("mse", "MeanSquaredError needs rows"),
        (keras.metrics.R2Score(), "R2Score needs rows"),
    ],
)
def test_class_numbers_are_refused_for_metrics_of_rows(metric, text):
    model = compiled(SoftmaxCrossEntropy(), metric)
    for labels in (Y, Y[:, None].astype("uint8")):
        with pytest.raises(ValueError, match=f"{text}.*The labels have the shape"):
            model.evaluate(X, labels, verbose=0)


def test_labels_of_a_regression():
    with pytest.raises(ValueError, match=r"To learn one number per image, build the model with classes=1"):
        compiled("mse").fit(X, X[:, 0], verbose=0)
    one = compiled("mse", keras.metrics.R2Score(), end=keras.layers.Dense(1))
    one.fit(X, X[:, 0], verbose=0)
    with pytest.raises(ValueError, match=r"shape \(16, 5\), and the model has one output.*with classes=5"):
        one.fit(X, ROWS, verbose=0)


@pytest.mark.parametrize("form", FORMS)
def test_rows_are_refused_for_metrics_of_numbers(form):
    for metric in ("sparse_categorical_accuracy", keras.metrics.SparseTopKCategoricalAccuracy(2)):
        with pytest.raises(ValueError, match="needs class numbers.*Accuracy.*The labels are rows of shape"):
            compiled(SoftmaxCrossEntropy(), metric).fit(*form(ROWS), verbose=0)


@pytest.mark.parametrize(
    ("loss", "right", "wrong"),
    [
        (keras.losses.SparseCategoricalCrossentropy(from_logits=True), Y, ROWS),
        (keras.losses.CategoricalCrossentropy(from_logits=True), ROWS, Y),
        (keras.losses.CategoricalFocalCrossentropy(from_logits=True), ROWS, Y[:, None]),
        (keras.losses.BinaryCrossentropy(from_logits=True), ROWS, Y),
        ("mse", ROWS, Y[:, None]),
        (keras.losses.Huber(), ROWS, Y[:5]),  # (5,) and (5, 5): Keras would compare columns
        (keras.losses.squared_hinge, 2 * ROWS - 1, Y[:, None]),
    ],
)
def test_losses_of_the_other_form_name_ours(loss, right, wrong):
    model = compiled(loss)
    with pytest.raises(ValueError, match="The loss .* needs .*SoftmaxCrossEntropy.."):
        model.fit(X[: len(wrong)], wrong, verbose=0)
    model.fit(X, right, verbose=0)


@pytest.mark.parametrize(("first", "then"), [(Y, ROWS), (ROWS, Y)], ids=["numbers first", "rows first"])
def test_accuracy_by_name_keeps_the_form_of_the_first_labels(first, then):
    model = compiled(SoftmaxCrossEntropy(), "accuracy")
    model.fit(X, first, verbose=0)
    for call in (model.fit, model.evaluate):
        with pytest.raises(ValueError, match='Keras chose the metric "accuracy" for .*first call. Compile again'):
            call(X, then, verbose=0)
    model.evaluate(X, first, verbose=0)


@pytest.mark.parametrize(("first", "then"), [(Y, ROWS), (ROWS, Y)], ids=["numbers first", "rows first"])
def test_validation_labels_have_the_form_of_the_training_labels(first, then):
    held_out = dataset(then)[0]
    for data, validation in ((arrays(first), (X, then)), (dataset(first), held_out), (arrays(first), held_out)):
        with pytest.raises(ValueError, match='the metric "accuracy" by the form of the training labels'):
            compiled(SoftmaxCrossEntropy(), "accuracy").fit(*data, validation_data=validation, verbose=0)


@pytest.mark.extended
def test_labels_of_one_rank_after_another_train_alike(eagerly):
    """In a graph, which is traced anew."""
    eagerly(False)
    model = compiled(SoftmaxCrossEntropy(), Accuracy())
    scores = [model.evaluate(X, y, verbose=0) for y in (Y, Y[:, None], ROWS, ROWS.astype("int64"), Y.astype("float32"))]
    for score in scores[1:]:
        assert score == pytest.approx(scores[0], rel=1e-5)
    for y in (Y, Y[:, None], ROWS):
        model.fit(X, y, validation_data=(X, Y), verbose=0)
    model.train_on_batch(X, Y), model.train_on_batch(X, Y[:, None])


def test_mixing_makes_rows():
    for metric in ("sparse_categorical_accuracy", "accuracy"):
        model = compiled(SoftmaxCrossEntropy(), metric)
        model.mixing = Mixup(0.2, 5)
        for call in (model.fit, model.train_on_batch):
            with pytest.raises(ValueError, match=r"model.mixing makes rows of labels.*Accuracy\(\)") as error:
                call(X, Y)
    assert '"accuracy" cannot read them: write metrics=[keras_vit.training.Accuracy()].' in str(error.value)
    model.compile("sgd", SoftmaxCrossEntropy(), weighted_metrics=["accuracy"])
    with pytest.raises(ValueError, match=r"write weighted_metrics=\[keras_vit.training.Accuracy\(\)\]"):
        model.fit(X, Y)


def nothing_trains(model):
    with pytest.raises(ValueError, match="Nothing would train") as caught:
        model.fit(X, Y, verbose=0)
    return str(caught.value)


def test_what_is_frozen_is_named():
    model = compiled(SoftmaxCrossEntropy())
    model.trainable = False
    model.layers[-1].trainable = True
    model.compile("sgd", SoftmaxCrossEntropy())
    assert "model.trainable is False, whatever its layers' own flags say" in nothing_trains(model)
    model.trainable = True
    for layer in model.layers:
        layer.trainable = False
    model.compile("sgd", SoftmaxCrossEntropy())
    assert "every layer of the model is frozen" in nothing_trains(model)
