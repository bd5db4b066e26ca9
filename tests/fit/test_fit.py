"""keras_vit.Model: evaluation that counts once, refused pixels, mixing, and models built on ours."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from small_models import data, dense_on_images, dense_on_rows, pixels, rows, segmenting

import keras_vit
from keras_vit.data import evaluation_batches, from_arrays
from keras_vit.fit.stepping.weighing import RunningLoss
from keras_vit.training import Accuracy, AdamW, Mixup, SoftmaxCrossEntropy


def images(n, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, 8, 12, 3), dtype="uint8")


@pytest.mark.extended
def test_evaluation_is_the_mean_over_examples_whatever_the_batch(tiny, eagerly):
    """10 examples in padded batches: stock Keras averages the losses of the batches, with the padding counted."""
    model, x, y = tiny(depth=1), images(10), np.arange(10) % 5
    model.compile("sgd", SoftmaxCrossEntropy(), weighted_metrics=[Accuracy()], jit_compile=False)
    logits = np.asarray(model(x))
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    for batch_size in (4, 16):
        batches = evaluation_batches(from_arrays(x, y), "decode", batch_size)
        measures = model.evaluate(batches, verbose=0, return_dict=True)
        assert measures["loss"] == pytest.approx(-log_p[np.arange(10), y].mean(), rel=1e-5)
        assert measures["accuracy"] == pytest.approx((logits.argmax(-1) == y).mean())


def test_compiling_again_without_metrics_drops_those_of_before():
    (x, y), model = rows(8), dense_on_rows("sgd")
    model.compile("sgd", SoftmaxCrossEntropy(), metrics=["accuracy"], run_eagerly=True)
    assert set(model.evaluate(x, y, verbose=0, return_dict=True)) == {"loss", "accuracy"}
    model.compile("sgd", SoftmaxCrossEntropy(), run_eagerly=True)
    assert set(model.evaluate(x, y, verbose=0, return_dict=True)) == {"loss"}


@pytest.mark.extended
def test_one_device_is_stock_keras_to_the_last_bits():
    x, y = data()
    ours, copy = dense_on_images(), dense_on_images()
    stock = keras.Model(copy.input, copy.output)
    for model in (ours, stock):
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(), loss, jit_compile=False)
        model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    for a, b in zip(ours.get_weights(), stock.get_weights()):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_training_and_validation_are_each_traced_once():
    """A step in which variables are made, of metrics or the optimizer, would be traced twice."""
    traced, (x, y) = [], rows(16)

    def loss(labels, logits):
        traced.append(labels)
        return keras.ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)

    model = dense_on_rows("sgd")
    model.compile(AdamW(1e-3), loss, weighted_metrics=["accuracy", Accuracy()], jit_compile=False)
    model.fit(x, y, batch_size=8, epochs=2, validation_data=(x, y), verbose=0)
    assert len(traced) == 2


@pytest.mark.extended
def test_validation_in_fit_counts_once_too_and_training_loss_is_keras_own():
    x, y = images(10), np.arange(10) % 5
    batches = evaluation_batches(from_arrays(x, y), "decode", 4)
    ours, theirs = dense_on_images(), dense_on_images()
    theirs = keras.Model(theirs.input, theirs.output)
    histories = []
    for model in (ours, theirs):
        model.compile(keras.optimizers.SGD(0.01), SoftmaxCrossEntropy(), jit_compile=False)
        fitted = model.fit(x, y, batch_size=5, epochs=2, shuffle=False, validation_data=batches, verbose=0)
        histories.append(fitted.history)
    np.testing.assert_allclose(histories[0]["loss"], histories[1]["loss"], rtol=1e-5)
    logits = np.asarray(ours(x))
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    assert histories[0]["val_loss"][-1] == pytest.approx(-log_p[np.arange(10), y].mean(), rel=1e-5)


class Evaluates(keras.callbacks.Callback):
    """Evaluates on data of its own after the first epoch, and fails."""

    def __init__(self, *data):
        super().__init__()
        self.data, self.seen = data, []

    def on_epoch_end(self, epoch, logs=None):
        self.seen.append(self.model.evaluate(*self.data, batch_size=2, verbose=0))
        raise InterruptedError


@pytest.mark.extended
def test_an_evaluation_by_a_callback_sees_all_of_its_data_and_not_the_steps_of_fits_validation():
    x, y = rows(20)
    model, other = dense_on_rows(keras.optimizers.SGD(0.0), steps_per_execution=2), Evaluates(x, y)
    with pytest.raises(InterruptedError):
        model.fit(x, y, validation_data=(x[:4], y[:4]), validation_batch_size=1, callbacks=[other], verbose=0)
    assert other.seen == pytest.approx([model.evaluate(x, y, batch_size=20, verbose=0)], rel=1e-5)
    left = model.evaluate(x, y, batch_size=2, verbose=0)  # with what the fit that failed left behind
    assert left == pytest.approx(other.seen[0], rel=1e-5)


@pytest.mark.extended
def test_a_callback_list_of_the_users_own_runs_several_steps_per_execution():
    x, y = rows(12)
    model = dense_on_rows(keras.optimizers.SGD(0.1), steps_per_execution=2)
    callbacks = keras.callbacks.CallbackList([], add_history=True, model=model, epochs=2, steps=3)
    for _ in range(2):
        model.fit(x, y, batch_size=4, epochs=2, callbacks=callbacks, validation_data=(x[:4], y[:4]), verbose=0)
    assert int(model.optimizer.iterations) == 12


@pytest.mark.extended
def test_a_users_model_on_ours_is_right_too_and_reloads(tiny, tmp_path):
    vit = tiny(depth=1)
    model = keras_vit.Model(vit.input, keras.layers.Dense(2, name="mine")(vit.features), name="user")
    with pytest.raises(ValueError, match="look normalised"):
        model.predict(np.random.default_rng(0).random((2, 8, 12, 3)))
    model.save(tmp_path / "m.keras")
    again = keras.saving.load_model(tmp_path / "m.keras")
    assert type(again) is keras_vit.Model and type(model.clone()) is keras_vit.Model
    np.testing.assert_array_equal(again(images(2)), model(images(2)))
    with pytest.raises(TypeError, match="dropuot"):
        keras_vit.Model(vit.input, vit.output, dropuot=1)


@pytest.mark.parametrize("accumulated", [None, 2])
def test_mixing_happens_in_training_only(accumulated):
    model = dense_on_images()
    model.mixing = Mixup(1.0, classes=5)
    optimizer = keras.optimizers.SGD(0.0, gradient_accumulation_steps=accumulated)
    model.compile(optimizer, SoftmaxCrossEntropy(), jit_compile=False)
    x, y = images(8), np.arange(8) % 5
    unmixed = model.evaluate(x, y, batch_size=8, verbose=0)
    losses = model.fit(x, y, batch_size=8, epochs=3, shuffle=False, verbose=0).history["loss"]
    expected = []
    for step in range(3):
        mixed, rows = model.mixing(tf.constant(x), tf.constant(y), step)
        expected.append(float(SoftmaxCrossEntropy()(rows, model(mixed))))
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    assert unmixed == pytest.approx(float(SoftmaxCrossEntropy()(y, model(x))), rel=1e-5)


@pytest.mark.extended
def test_a_model_learns_in_mixed_precision(tiny):
    model = tiny(dtype="mixed_float16", classes=2, depth=1)
    x = np.repeat([[20], [230]], 8, axis=0)[:, :, None, None] * np.ones((1, 8, 12, 3))
    model.compile(keras_vit.training.AdamW(3e-3), SoftmaxCrossEntropy(), metrics=[Accuracy()], jit_compile=False)
    history = model.fit(x.astype("uint8"), np.repeat([0, 1], 8), epochs=15, verbose=0).history
    assert history["accuracy"][-1] == 1.0 and history["loss"][-1] < 0.5 * history["loss"][0]


def test_the_private_names_that_fit_relies_on_are_there():
    model = dense_on_images()
    model.compile("sgd", "mse")
    assert [type(metric) for metric in model.metrics] == [RunningLoss] and model.metrics == [model._loss_tracker]
    optimizer = keras_vit.training.AdamW(0.1, use_ema=True)
    optimizer.build(model.trainable_variables)
    assert len(optimizer._trainable_variables) == len(optimizer._model_variables_moving_average)
    assert optimizer._get_variable_index(model.trainable_variables[1]) == 1


@pytest.mark.parametrize("jit_compile", [False, pytest.param(True, marks=pytest.mark.extended)])
def test_the_end_of_data_of_unknown_length_is_no_step(jit_compile):
    x, y = rows(32)
    model = dense_on_rows(AdamW(1e-9), jit_compile=jit_compile)
    expected = model.evaluate(x, y, verbose=0)
    batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(8, drop_remainder=True).filter(lambda *_: True)
    history = model.fit(batches, epochs=2, verbose=0).history
    assert int(model.optimizer.iterations) == 8
    np.testing.assert_allclose(history["loss"], expected, rtol=1e-5)


def test_averages_of_weights_are_refused_with_batch_normalisation():
    """Its statistics are those of the weights that train."""
    model = segmenting("setr_naive", head_options={"width": 8})
    model.compile(AdamW(1e-3, use_ema=True), keras_vit.training.SegmentationLoss())
    with pytest.raises(ValueError, match='do not fit averages.*head_options={"norm": "group"}'):
        model.fit(pixels(2), np.zeros((2, 16, 24), "int32"), verbose=0)


def test_steps_per_execution_set_later_leave_no_batch_out():
    x, y = rows(22)
    model = dense_on_rows(keras.optimizers.SGD(0.0), metrics=["accuracy"])

    def found():
        model.fit(x, y, batch_size=4, verbose=0)
        return model.predict(x, batch_size=4, verbose=0), model.evaluate(x, y, batch_size=4, verbose=0)

    outputs, scores = found()
    model.steps_per_execution = 4
    again, scores_again = found()
    np.testing.assert_allclose(again, outputs, rtol=1e-6)
    assert scores_again == pytest.approx(scores, rel=1e-6)
    assert int(model.optimizer.iterations) == 12
