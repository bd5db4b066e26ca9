"""Weights of examples in evaluation: every output counts each example once, whatever its rank and however its batch is padded."""

import keras
import numpy as np
import pytest

import keras_vit

RNG = np.random.default_rng(0)
X = RNG.uniform(0, 255, (5, 4, 4, 3)).astype("float32")
DENSE = RNG.integers(0, 3, (5, 4, 4))


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


@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "mean_with_sample_weight"])
@pytest.mark.parametrize(
    "weights", [None, np.array([1, 0, 2, 1, 0.5]), RNG.uniform(0, 1, (5, 4, 4))], ids=["none", "image", "pixel"]
)
def test_a_dense_loss_is_the_weighted_mean_over_all_pixels(weights, reduction):
    model = _dense_model()
    model.compile(
        "sgd", _loss(reduction=reduction), weighted_metrics=[keras.metrics.SparseCategoricalCrossentropy(from_logits=True)]
    )
    measured = model.evaluate(X, DENSE, batch_size=2, sample_weight=weights, verbose=0)
    full = 1.0 if weights is None else weights.reshape(5, 1, 1) if weights.ndim == 1 else weights
    np.testing.assert_allclose(
        measured, [np.average(_cross_entropies(model), weights=np.broadcast_to(full, (5, 4, 4)))] * 2, rtol=1e-5
    )


def test_a_penalty_counts_whole_in_a_padded_batch():
    model = _dense_model(kernel_regularizer=keras.regularizers.L2(1.0))
    model.compile("sgd", _loss())
    penalty = float(np.square(model.trainable_weights[0].numpy()).sum())
    expected = _cross_entropies(model).mean() + penalty
    assert model.evaluate(X, DENSE, batch_size=4, verbose=0) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("structured", [False, True])
def test_several_outputs_are_weighted_each(structured):
    image = keras.Input((4, 4, 3))
    dense = keras.layers.Dense(3)(keras.layers.Rescaling(1 / 255)(image))
    pooled = keras.layers.GlobalAveragePooling2D()(dense)
    model = keras_vit.Model(image, {"dense": dense, "pooled": pooled})
    model.compile("sgd", {"dense": _loss(), "pooled": "mse"})
    y = {"dense": DENSE, "pooled": RNG.normal(size=(5, 3)).astype("float32")}
    weights = np.array([1, 0, 2, 1, 1], "float32")
    given = {"dense": weights, "pooled": weights} if structured else weights
    errors = np.square(model.predict(X, verbose=0)["pooled"] - y["pooled"]).mean(-1)
    per_example = _cross_entropies(keras_vit.Model(image, dense)).mean((1, 2)) + errors
    loss = model.evaluate(X, y, batch_size=2, sample_weight=given, verbose=0)
    assert np.ravel(loss)[0] == pytest.approx(np.average(per_example, weights=weights), rel=1e-5)


def test_sums_and_means_together_are_refused():
    with pytest.raises(ValueError, match="same reduction"):
        keras_vit.training.weights.sums_over_batch({"a": "mse", "b": _loss(reduction="sum")})
