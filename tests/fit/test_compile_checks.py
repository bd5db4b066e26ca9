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
        ("sparse_categorical_crossentropy", "keras.losses.SparseCategoricalCrossentropy"),
        ("SparseCategoricalCrossentropy", "keras.losses.SparseCategoricalCrossentropy"),
        ("categorical_crossentropy", "keras.losses.CategoricalCrossentropy"),
        ("binary_crossentropy", "keras.losses.BinaryCrossentropy"),
        ("bce", "keras.losses.BinaryCrossentropy"),
        (keras.losses.BinaryFocalCrossentropy(), "keras.losses.BinaryFocalCrossentropy"),
        (keras.losses.sparse_categorical_crossentropy, "keras.losses.SparseCategoricalCrossentropy"),
        (functools.partial(keras.losses.categorical_crossentropy, axis=-1), "keras.losses.CategoricalCrossentropy"),
        (keras.losses.CategoricalCrossentropy(label_smoothing=0.1), "keras.losses.CategoricalCrossentropy"),
    ],
)
def test_a_loss_on_probabilities_is_refused_for_logits(vits, loss, fix):
    with pytest.raises(ValueError, match=f"returns logits.*Write loss={fix}.from_logits=True"):
        vits[3].compile("sgd", loss)


@pytest.mark.parametrize(
    "metric",
    [
        keras.metrics.KLDivergence(),
        keras.metrics.binary_accuracy,
        keras.metrics.sparse_categorical_crossentropy,
    ],
)
def test_metrics_and_functions_on_probabilities_are_refused_for_logits(vits, metric):
    with pytest.raises(ValueError, match="returns logits, and the metric .* takes them for probabilities"):
        vits[3].compile("sgd", SoftmaxCrossEntropy(), metrics=[metric])
    vits[3].compile("sgd", SoftmaxCrossEntropy(), metrics=[keras.metrics.F1Score()])


@pytest.mark.parametrize("loss", ["kl_divergence", keras.losses.Dice()])
def test_a_loss_without_a_form_for_logits_names_ours(vits, loss):
    with pytest.raises(ValueError, match="Write loss=keras_vit.training.SoftmaxCrossEntropy"):
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
        (keras.metrics.Accuracy(), r"keras_vit.training.Accuracy\(\)"),
        (keras.metrics.MeanIoU(3), r"keras.metrics.MeanIoU\(3, sparse_y_pred=False\)"),
        (keras.metrics.IoU(3, [0]), r"keras.metrics.IoU\(3, target_class_ids, sparse_y_pred=False\)"),
    ],
)
def test_metrics_of_class_numbers_are_refused(vits, metric, fix):
    with pytest.raises(ValueError, match=f"takes the outputs for class numbers. Write {fix}"):
        vits[3].compile("sgd", SoftmaxCrossEntropy(), metrics=[metric])


@pytest.mark.parametrize(
    "metric, fix",
    [
        ("crossentropy", "SparseCategoricalCrossentropy.from_logits=True"),
        ("binary_accuracy", "BinaryAccuracy.threshold=0.0"),
        (keras.metrics.SparseCategoricalCrossentropy(), "SparseCategoricalCrossentropy.from_logits=True"),
        (keras.metrics.AUC(), "AUC.from_logits=True"),
        (keras.metrics.Precision(), r"Precision.thresholds=\[0.0\]"),
        (keras.metrics.Recall(0.5), "Recall"),
        (keras.metrics.PrecisionAtRecall(0.5), "a model that ends in a sigmoid"),
    ],
)
@pytest.mark.parametrize("place", ["metrics", "weighted_metrics"])
def test_metrics_on_probabilities_are_refused_for_logits(vits, metric, fix, place):
    with pytest.raises(ValueError, match=f"returns logits, and the metric.*Write .*{fix}"):
        vits[3].compile("sgd", SoftmaxCrossEntropy(), **{place: [metric]})


@pytest.mark.parametrize("loss", [SoftmaxCrossEntropy(), keras.losses.CategoricalCrossentropy(from_logits=True)])
def test_a_softmax_over_one_class_is_refused(vits, loss):
    with pytest.raises(ValueError, match=r"one class.*always 0.*SigmoidCrossEntropy.*BinaryAccuracy\(threshold=0.0\)"):
        vits[1].compile("sgd", loss)


@pytest.mark.parametrize("metric", [Accuracy(), "accuracy", "sparse_categorical_accuracy"])
def test_an_accuracy_of_one_class_is_refused(vits, metric):
    with pytest.raises(ValueError, match=r"BinaryAccuracy\(threshold=0.0\)"):
        vits[1].compile("sgd", SigmoidCrossEntropy(), metrics=[metric])


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


@pytest.mark.parametrize("weights", [{0: 1.0, 1: 2.0}, "balanced", (1.0, -1.0)])
def test_class_weights_are_one_number_per_class(weights):
    with pytest.raises(ValueError, match="one number per class"):
        SoftmaxCrossEntropy(class_weights=weights)


@pytest.mark.parametrize("k", [0, 4])
def test_an_accuracy_among_more_than_all_classes_is_refused(vits, k):
    with pytest.raises(ValueError, match=rf"Accuracy\(k={k}\) means nothing for 3 classes"):
        vits[3].compile("sgd", SoftmaxCrossEntropy(), metrics=[Accuracy(k=k)])
