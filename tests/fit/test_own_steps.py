"""A train_step, test_step or compute_metrics of the user's own: what it returns is what callbacks see."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from small_models import data

import keras_vit

X, Y = data(8)


class OwnMetrics(keras_vit.Model):
    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        logs = super().compute_metrics(x, y, y_pred, sample_weight)
        return {**logs, "largest": keras.ops.max(y_pred)}


class OwnSteps(keras_vit.Model):
    def train_step(self, *args):
        if keras.backend.backend() == "jax":
            logs, state = super().train_step(*args)
            return {**logs, "mine": keras.ops.ones(())}, state
        return {**super().train_step(*args), "mine": keras.ops.ones(())}

    def test_step(self, *args):
        if keras.backend.backend() == "jax":
            logs, state = super().test_step(*args)
            return {"mine": 2 * keras.ops.ones(())}, state
        super().test_step(*args)
        return {"mine": 2 * keras.ops.ones(())}


def made(cls, **compiled):
    keras.utils.set_random_seed(0)
    inputs = keras.Input((8, 12, 3))
    x = keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(inputs))
    model = cls(inputs, keras.layers.Dense(5)(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01), loss, **{"jit_compile": False, **compiled})
    return model


@pytest.mark.parametrize(
    ("compiled", "micro_batches"),
    [
        ({}, 2),
        ({"steps_per_execution": 2}, 1),
        pytest.param({"run_eagerly": True}, 1, marks=pytest.mark.extended),
        pytest.param({"jit_compile": True}, 2, marks=pytest.mark.extended),
    ],
)
def test_own_metrics_reach_the_history(compiled, micro_batches):
    model, plain = made(OwnMetrics, **compiled), made(keras_vit.Model, **compiled)
    plain.micro_batches = model.micro_batches = micro_batches
    expected = plain.fit(X, Y, batch_size=4, shuffle=False, validation_data=(X, Y), verbose=0).history
    history = model.fit(X, Y, batch_size=4, shuffle=False, validation_data=(X, Y), verbose=0).history
    for name, values in expected.items():
        np.testing.assert_allclose(history[name], values, rtol=1e-6)
    np.testing.assert_allclose(history["val_largest"], model.predict(X[4:], verbose=0).max(), rtol=1e-6)
    assert "largest" in history


def test_own_steps_reach_callbacks():
    seen = []
    stop = keras.callbacks.EarlyStopping("val_mine", patience=1, mode="min")
    see = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(logs["mine"]))
    model = made(OwnSteps, steps_per_execution=2)
    history = model.fit(
        X, Y, batch_size=4, epochs=5, shuffle=False, validation_data=(X, Y), callbacks=[stop, see], verbose=0
    ).history
    assert history["val_mine"] == [2.0, 2.0] and set(seen) == {1.0}
    assert history["loss"][0] > history["loss"][1] > 0
    assert model.evaluate(X, Y, verbose=0, return_dict=True) == {"mine": 2.0}


def test_a_step_from_scratch_is_reported_as_it_is():
    """Keras' own example of a custom train_step: its loss is not the model's running loss."""

    class Scratch(keras_vit.Model):
        def train_step(self, data):
            import tensorflow as tf

            x, y = data
            with tf.GradientTape() as tape:
                loss = keras.ops.mean(keras.ops.square(self(x, training=True)))
            variables = self.trainable_variables
            self.optimizer.apply(tape.gradient(loss, variables), variables)
            return {"loss": loss}

    model = made(Scratch)
    before = np.square(model.predict(X, verbose=0)).mean()
    assert model.fit(X, Y, verbose=0).history["loss"] == [pytest.approx(before, rel=1e-5)]


@pytest.mark.parametrize("front", [keras.layers.RandomFlip(), None], ids=["flip", "none"])
def test_a_plain_keras_model_refuses_pixels_on_another_scale_in_training(front):
    inputs = keras.Input((8, 12, 3))
    vit = keras_vit.ViT("Ti/4", image_size=(8, 12), depth=1, width=16, heads=2, classes=5)
    model = keras.Model(inputs, vit(front(inputs) if front else inputs))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    images, labels = np.random.default_rng(0).integers(0, 256, (4, 8, 12, 3)).astype("float32"), np.zeros(4)
    model.train_on_batch(images, labels)
    with pytest.raises(tf.errors.InvalidArgumentError, match="The images look normalised"):
        model.train_on_batch(images / 255, labels)
