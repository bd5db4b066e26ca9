"""`after_update`: what a model does once after every update, here a moving average of its kernel."""

import keras
import numpy as np
import pytest
from interpreters import Interpreter
from small_models import rows

import keras_vit
from keras_vit.distribution import strategy
from keras_vit.training import AdamW, SoftmaxCrossEntropy

MOMENTUM = 0.9


@keras.saving.register_keras_serializable(package="tests")
class Kept(keras.layers.Layer):
    """Holds a copy of a (6, 5) matrix, which it does not use."""

    def build(self, input_shape):
        self.average = self.add_weight(
            shape=(6, 5), initializer="zeros", trainable=False, aggregation="only_first_replica", name="average"
        )

    def call(self, x):
        return x


@keras.saving.register_keras_serializable(package="tests")
class Following(keras_vit.Model):
    """A dense layer's kernel is averaged over the steps."""

    def after_update(self):
        average = self.get_layer("kept").average
        average.assign(MOMENTUM * average + (1 - MOMENTUM) * self.get_layer("head").kernel)


def following():
    """A compiled Following, the same at each call."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((6,))
    x = Kept(name="kept")(keras.layers.Rescaling(1 / 255)(inputs))
    model = Following(inputs, keras.layers.Dense(5, name="head")(x))
    model.get_layer("head").set_weights([np.random.default_rng(0).normal(size=(6, 5)), np.zeros(5)])
    model.compile(AdamW(1e-2, global_clipnorm=1.0), SoftmaxCrossEntropy(), jit_compile=False)
    return model


def trained(micro_batches=1, steps_per_execution=1):
    """(the kernel after each of 6 steps, or the last one of several per execution; the average at the end)."""
    x, y = rows(48)
    model = following()
    model.micro_batches, model.steps_per_execution = micro_batches, steps_per_execution
    kernels = []

    class Record(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if hasattr(self.model, "jax_state_sync"):
                self.model.jax_state_sync()
            kernels.append(np.array(self.model.get_layer("head").kernel))

    model.fit(x, y, batch_size=8, shuffle=False, verbose=0, callbacks=[Record()])
    return [kernel.tolist() for kernel in kernels], np.asarray(model.get_layer("kept").average).tolist()


def averaged(kernels):
    """The average by its definition."""
    average = np.zeros((6, 5))
    for kernel in kernels:
        average = MOMENTUM * average + (1 - MOMENTUM) * np.array(kernel)
    return average


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_it_runs_once_after_every_update(micro_batches):
    kernels, average = trained(micro_batches)
    assert len(kernels) == 6 and kernels[0] != kernels[-1]
    np.testing.assert_allclose(average, averaged(kernels), atol=1e-6)


def test_several_steps_per_execution_are_several_updates():
    np.testing.assert_allclose(trained(steps_per_execution=3)[1], trained()[1], atol=1e-6)


def on_two_replicas():
    chosen = strategy("mirrored")
    assert chosen.replicas == 2
    with chosen.scope():
        return trained()[1]


@pytest.mark.processes
def test_two_replicas_assign_what_one_device_does():
    with Interpreter(devices=2) as replicas:
        np.testing.assert_allclose(replicas.run(on_two_replicas), trained()[1], atol=1e-6)


@pytest.mark.processes
def test_jax_does_the_same():
    with Interpreter("jax") as jax:
        kernels, average = jax.run(trained, 2)
        executed = jax.run(trained, 2, 3)[1]
    np.testing.assert_allclose(average, averaged(kernels), atol=1e-6)
    np.testing.assert_allclose(executed, average, atol=1e-6)
    np.testing.assert_allclose(average, trained(2)[1], atol=1e-5)
