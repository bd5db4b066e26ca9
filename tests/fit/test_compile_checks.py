"""What compile refuses: losses and metrics on probabilities for logits, the reverse, and a softmax over one class."""

import functools

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.training import Accuracy, SigmoidCrossEntropy, SoftmaxCrossEntropy


@pytest.fixture(scope="module")
def vits():
    """{classes: a tiny ViT}."""
    size = {"depth": 1, "width": 16, "heads": 2, "mlp_dim": 16}
    return {n: keras_vit.ViT("Ti/4", image_size=(8, 12), classes=n, **size) for n in (1, 3, None)}


@pytest.mark.parametrize(
    "loss, fix",
    [
        ("sparse_categorical_crossentropy", "keras.losses.SparseCategoricalCrossentropy.from_logits=True"),
        ("bce", "keras.losses.BinaryCrossentropy.from_logits=True"),
        (keras.losses.BinaryFocalCrossentropy(), "keras.losses.BinaryFocalCrossentropy.from_logits=True"),
        (
            functools.partial(keras.losses.categorical_crossentropy, axis=-1),
            "keras.losses.CategoricalCrossentropy.from_logits=True",
        ),
        (
            keras.losses.CategoricalCrossentropy(label_smoothing=0.1),
            "keras.losses.CategoricalCrossentropy.from_logits=True",
        ),
        ("kl_divergence", "keras_vit.training.SoftmaxCrossEntropy"),
        (keras.losses.Dice(), "keras_vit.training.SoftmaxCrossEntropy"),
    ],
)
def test_a_loss_on_probabilities_is_refused_for_logits(vits, loss, fix):
    with pytest.raises(ValueError, match=f"returns logits.*Write loss={fix}"):
        vits[3].compile("sgd", loss)


@pytest.mark.parametrize(
    "loss",
    [
        SoftmaxCrossEntropy(),
        SigmoidCrossEntropy(),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        functools.partial(keras.losses.categorical_crossentropy, from_logits=True),
        "mse",
        lambda y, p: keras.ops.mean(p),
        None,
    ],
)
def test_losses_on_logits_pass(vits, loss):
    vits[3].compile("sgd", loss, metrics=["accuracy", Accuracy(k=2), keras.metrics.AUC(from_logits=True)])


def with_end(vit, *layers):
    return vit.with_head(keras.Sequential([keras.layers.Dense(3, name="logits"), *layers]))


@pytest.mark.parametrize(
    "end", [keras.layers.Softmax(), keras.layers.Activation("sigmoid"), keras.layers.Dense(3, "softmax", name="shares")]
)
def test_a_model_that_ends_in_probabilities_takes_keras_losses_and_refuses_ours(vits, end):
    model = with_end(vits[3], end)
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=[keras.metrics.AUC(), keras.metrics.Precision()])
    for loss in (SoftmaxCrossEntropy(), keras.losses.SparseCategoricalCrossentropy(from_logits=True)):
        with pytest.raises(ValueError, match="ends in a softmax or sigmoid.*applies another one"):
            model.compile("sgd", loss)


def test_logits_are_recognised_through_layers_that_keep_them(vits):
    for end in (keras.layers.Dropout(0.1), keras.layers.Reshape((3,))):
        with pytest.raises(ValueError, match="returns logits"):
            with_end(vits[3], end).compile("sgd", "categorical_crossentropy")
    inputs = keras.Input((8, 12, 3))
    with pytest.raises(ValueError, match="returns logits"):
        keras_vit.Model(inputs, vits[3](inputs)).compile("sgd", "categorical_crossentropy")


def test_what_cannot_be_told_is_left_to_the_user(vits):
    with_end(vits[3], keras.layers.UnitNormalization()).compile("sgd", "kl_divergence")
    vits[None].compile("sgd", "kl_divergence")


@pytest.mark.parametrize(
    "metric, fix",
    [
        ("crossentropy", "Write .*SparseCategoricalCrossentropy.from_logits=True"),
        ("binary_accuracy", "Write .*BinaryAccuracy.threshold=0.0"),
        (keras.metrics.binary_accuracy, "takes them for probabilities"),
        (keras.metrics.sparse_categorical_crossentropy, "takes them for probabilities"),
        (keras.metrics.KLDivergence(), "takes them for probabilities"),
        (keras.metrics.AUC(), "Write .*AUC.from_logits=True"),
        (keras.metrics.Precision(), r"Write .*Precision.thresholds=\[0.0\]"),
        (keras.metrics.PrecisionAtRecall(0.5), "a model that ends in a sigmoid"),
        (keras.metrics.Accuracy(), r"for class numbers. Write keras_vit.training.Accuracy\(\)"),
        (keras.metrics.MeanIoU(3), r"for class numbers. Write keras.metrics.MeanIoU\(3, sparse_y_pred=False\)"),
        (Accuracy(k=0), r"Accuracy\(k=0\) means nothing for 3 classes"),
        (Accuracy(k=4), r"Accuracy\(k=4\) means nothing for 3 classes"),
    ],
)
def test_metrics_that_would_be_wrong_are_refused_for_logits(vits, metric, fix):
    for place in ("metrics", "weighted_metrics"):
        with pytest.raises(ValueError, match=fix):
            vits[3].compile("sgd", SoftmaxCrossEntropy(), **{place: [metric]})


@pytest.mark.parametrize(
    "loss, metrics, message",
    [
        (SoftmaxCrossEntropy(), [], r"one class.*always 0.*SigmoidCrossEntropy.*BinaryAccuracy\(threshold=0.0\)"),
        (keras.losses.CategoricalCrossentropy(from_logits=True), [], "one class.*always 0.*SigmoidCrossEntropy"),
        (SigmoidCrossEntropy(), [Accuracy()], r"BinaryAccuracy\(threshold=0.0\)"),
        (SigmoidCrossEntropy(), ["accuracy"], r"BinaryAccuracy\(threshold=0.0\)"),
    ],
)
def test_a_softmax_and_an_accuracy_of_one_class_are_refused(vits, loss, metrics, message):
    with pytest.raises(ValueError, match=message):
        vits[1].compile("sgd", loss, metrics=metrics)


@pytest.mark.extended
def test_one_class_learns_by_the_sigmoid(vits, eagerly):
    """Its label is the share of the class: 0 and 1 are not exchanged."""
    x = np.repeat(np.array([0.0, 255.0], "float32"), 8)[:, None, None, None] * np.ones((8, 12, 3), "float32")
    y = np.repeat([0, 1], 8)
    model = vits[1].clone()
    metrics = [keras.metrics.BinaryAccuracy(threshold=0.0)]
    model.compile(keras.optimizers.Adam(0.05), SigmoidCrossEntropy(), metrics=metrics, jit_compile=False)
    history = model.fit(x, y, batch_size=16, epochs=6, verbose=0).history
    assert history["binary_accuracy"][-1] == 1.0 and history["loss"][-1] < history["loss"][0] / 2


def test_a_file_with_such_a_loss_still_loads(vits, tmp_path):
    model = vits[3].clone()
    keras.Model.compile(model, "sgd", "sparse_categorical_crossentropy")
    model.save(tmp_path / "m.keras")
    with pytest.warns(UserWarning, match="not compiled as it was.*returns logits"):
        copy = keras.saving.load_model(tmp_path / "m.keras")
    for call in (copy.fit, copy.evaluate):
        with pytest.raises(ValueError, match="could not be compiled as it was when it was saved: call compile first"):
            call(np.zeros((2, *copy.input_shape[1:])), np.zeros(2), verbose=0)
