"""Weights of examples: every output counts each example once, however its batch is padded, in fit as in evaluate."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from small_models import data, dense_on_images

import keras_vit
from keras_vit.training import SoftmaxCrossEntropy

RNG = np.random.default_rng(0)
X = RNG.uniform(0, 255, (5, 4, 4, 3)).astype("float32")
DENSE = RNG.integers(0, 3, (5, 4, 4))
IMAGES, LABELS = data(6)


def _dense_model(**options):
    image = keras.Input((4, 4, 3))
    logits = keras.layers.Dense(3, **options)(keras.layers.Rescaling(1 / 255)(image))
    return keras_vit.Model(image, logits)


def _cross_entropies(model):
    logits = model.predict(X, verbose=0)
    log = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return -np.take_along_axis(log, DENSE[..., None], -1)[..., 0]  # (b, h, w)


def _loss(**options):
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, **options)


def _expected(losses, weights, reduction="sum_over_batch_size"):
    """The sum of weight * loss over the number of values whose weight is not 0, or over the sum of the weights."""
    count = weights.sum() if reduction == "mean_with_sample_weight" else np.count_nonzero(weights)
    return (losses * weights).sum() / count


@pytest.mark.extended
@pytest.mark.parametrize(
    ("weights", "reduction"),
    [
        (None, "sum_over_batch_size"),
        (np.array([1, 0, 2, 1, 0.5]), "mean_with_sample_weight"),
        (RNG.uniform(0, 1, (5, 4, 4)), "sum_over_batch_size"),
    ],
    ids=["none", "image", "pixel"],
)
def test_a_dense_loss_is_the_mean_over_all_pixels_that_count(weights, reduction):
    model = _dense_model()
    metrics = [keras.metrics.SparseCategoricalCrossentropy(from_logits=True)]
    model.compile("sgd", _loss(reduction=reduction), weighted_metrics=metrics, jit_compile=False)
    measured = model.evaluate(X, DENSE, batch_size=2, sample_weight=weights, verbose=0)
    full = 1.0 if weights is None else weights.reshape(5, 1, 1) if weights.ndim == 1 else weights
    full, losses = np.broadcast_to(full, (5, 4, 4)), _cross_entropies(model)
    expected = [_expected(losses, full, reduction), np.average(losses, weights=full)]
    np.testing.assert_allclose(measured, expected, rtol=1e-5)


def test_a_penalty_counts_whole_in_a_padded_batch():
    model = _dense_model(kernel_regularizer=keras.regularizers.L2(1.0))
    model.compile("sgd", _loss(), jit_compile=False)
    penalty = float(np.square(model.trainable_weights[0].numpy()).sum())
    expected = _cross_entropies(model).mean() + penalty
    assert model.evaluate(X, DENSE, batch_size=4, verbose=0) == pytest.approx(expected, rel=1e-5)


def test_several_outputs_are_weighted_each():
    image = keras.Input((4, 4, 3))
    dense = keras.layers.Dense(3)(keras.layers.Rescaling(1 / 255)(image))
    pooled = keras.layers.GlobalAveragePooling2D()(dense)
    model = keras_vit.Model(image, {"dense": dense, "pooled": pooled})
    model.compile("sgd", {"dense": _loss(), "pooled": "mse"}, jit_compile=False)
    y = {"dense": DENSE, "pooled": RNG.normal(size=(5, 3)).astype("float32")}
    weights = np.array([1, 0, 2, 1, 1], "float32")
    errors = np.square(model.predict(X, verbose=0)["pooled"] - y["pooled"]).mean(-1)
    entropies = _cross_entropies(keras_vit.Model(image, dense)).mean((1, 2))
    expected = {"loss": entropies + errors, "dense_loss": entropies, "pooled_loss": errors}
    expected = {name: pytest.approx(_expected(losses, weights), rel=1e-5) for name, losses in expected.items()}
    for given in (weights, {"dense": weights, "pooled": weights}):
        assert model.evaluate(X, y, batch_size=2, sample_weight=given, verbose=0, return_dict=True) == expected
    assert [metric.name for metric in model.metrics] == ["loss", "dense_loss", "pooled_loss"]


@pytest.mark.extended
def test_the_losses_of_fit_and_evaluate_have_one_scale(eagerly):
    """With a learning rate of 0 they are the same number."""
    x = RNG.uniform(0, 255, (6, 4, 4, 3)).astype("float32")
    y, model = RNG.integers(0, 3, (6, 4, 4)), _dense_model()
    model.compile(keras.optimizers.SGD(0.0), _loss(), jit_compile=False)
    model.micro_batches = 2
    for weights in ([1, 0, 2, 1, 0.5, 3], [0, 0, 2, 2, 2, 2]):
        weights = np.array(weights, "float32")
        held_out = (x, y, weights)
        found = model.fit(x, y, batch_size=2, sample_weight=weights, validation_data=held_out, verbose=0).history
        assert found["loss"] == pytest.approx(found["val_loss"], rel=1e-5)
        whole = model.evaluate(x, y, batch_size=6, sample_weight=weights, verbose=0)
        assert found["loss"] == [pytest.approx(whole, rel=1e-5)]


def test_without_weights_of_0_the_loss_is_plain_keras_own():
    weights = RNG.uniform(0.5, 3, (5, 4, 4)).astype("float32")
    model = _dense_model()
    plain = keras.Model(model.input, model.output)
    for one in (model, plain):
        one.compile("sgd", _loss(), jit_compile=False)
    measured, expected = (
        one.evaluate(X, DENSE, batch_size=5, sample_weight=weights, verbose=0) for one in (model, plain)
    )
    assert measured == pytest.approx(expected, rel=1e-5)


def test_sums_and_means_together_are_refused():
    with pytest.raises(ValueError, match="same reduction"):
        keras_vit.fit.losses.sums_over_batch({"a": "mse", "b": _loss(reduction="sum")})


def warnings_of_ignored_weights(*calls):
    """How many warnings say that metrics ignore weights."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for call in calls:
            call()
    return sum("ignores sample weights" in str(one.message) for one in caught)


def test_metrics_that_count_padding_give_one_warning():
    x, y, weights = IMAGES, LABELS, np.array([1, 1, 1, 1, 1, 0.0])
    batches = tf.data.Dataset.from_tensors((x, y, weights))
    model = dense_on_images()
    calls = (
        lambda: model.evaluate(batches, verbose=0),
        lambda: model.fit(x, y, validation_data=batches, verbose=0),
        lambda: model.evaluate(x, y, sample_weight=weights, verbose=0),
        lambda: model.fit((batch for batch in [(x, y, weights)]), verbose=0),
    )
    for call in calls:
        model.compile("sgd", SoftmaxCrossEntropy(), metrics=["accuracy"], jit_compile=False)
        assert warnings_of_ignored_weights(call, calls[0]) == 1
    model.compile("sgd", SoftmaxCrossEntropy(), weighted_metrics=["accuracy"], jit_compile=False)
    assert warnings_of_ignored_weights(*calls) == 0


def test_metrics_may_ignore_weights_where_no_example_has_weight_0():
    x, y = IMAGES, LABELS
    batches = tf.data.Dataset.from_tensors((x, y, np.zeros(6)))
    model = dense_on_images()
    model.compile("sgd", SoftmaxCrossEntropy(), metrics=["accuracy"], jit_compile=False)
    calls = (
        lambda: model.evaluate(x, y, sample_weight=np.full(6, 0.5), verbose=0),
        lambda: model.fit(x, y, class_weight={0: 0.0}, verbose=0),
        lambda: model.predict(batches, verbose=0),
    )
    assert warnings_of_ignored_weights(*calls) == 0
