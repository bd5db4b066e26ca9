"""Averages in fit with Keras' callbacks: what is saved, restored and stopped by is what was scored."""

import keras
import numpy as np
import pytest
from small_models import dense_on_rows, rows
from trajectories import averages

from keras_vit.training import (
    Accuracy,
    AdamW,
    EvaluateAverage,
    Lookahead,
    Momentum,
    SoftmaxCrossEntropy,
    StochasticWeightAveraging,
    swap_averages,
)

X, Y = rows(24)


@pytest.fixture(autouse=True)
def quick(eagerly):
    """Here nothing depends on tracing."""


def averaging_model(optimizer=None):
    model = dense_on_rows(optimizer or Momentum(0.5, use_ema=True, ema_momentum=0.7))
    model.compile(model.optimizer, SoftmaxCrossEntropy(), weighted_metrics=[Accuracy()], jit_compile=False)
    return model


def fit(model, *callbacks, epochs=4):
    options = {"validation_data": (X, Y), "shuffle": False, "verbose": 0}
    return model.fit(X, Y, batch_size=8, epochs=epochs, callbacks=list(callbacks), **options).history


def loss_of(model):
    return float(SoftmaxCrossEntropy()(Y, model(X)))


OPTIMIZERS = {
    "ours": lambda: Momentum(0.5, use_ema=True, ema_momentum=0.7),
    "Keras'": lambda: keras.optimizers.SGD(0.5, use_ema=True, ema_momentum=0.7),
    "wrapped": lambda: StochasticWeightAveraging(Lookahead(Momentum(0.5), k=2), start=3),
}


@pytest.mark.parametrize(
    ("kind", "first"),
    [
        ("ours", True),
        *(
            pytest.param(*case, marks=pytest.mark.extended)
            for case in (("Keras'", True), ("wrapped", True), ("ours", False))
        ),
    ],
)
def test_what_is_saved_and_restored_is_what_was_scored(kind, first, tmp_path):
    model = averaging_model(OPTIMIZERS[kind]())
    best = keras.callbacks.ModelCheckpoint(tmp_path / "best.keras", monitor="val_loss", save_best_only=True)
    each = keras.callbacks.ModelCheckpoint(tmp_path / "{epoch}.weights.h5", save_weights_only=True)
    stop = keras.callbacks.EarlyStopping("val_loss", patience=9, restore_best_weights=True)
    callbacks = [best, each, stop]
    callbacks.insert(0 if first else 3, EvaluateAverage())
    scores = fit(model, *callbacks)["val_loss"]
    assert loss_of(model) == pytest.approx(min(scores), rel=1e-5)
    assert loss_of(keras.saving.load_model(tmp_path / "best.keras")) == pytest.approx(min(scores), rel=1e-5)
    for epoch, score in enumerate(scores, 1):
        model.load_weights(tmp_path / f"{epoch}.weights.h5")
        assert loss_of(model) == pytest.approx(score, rel=1e-5)


@pytest.mark.extended
def test_training_goes_on_from_the_trained_weights_and_ends_with_them():
    plain, scored = averaging_model(), averaging_model()
    fit(plain)
    fit(scored, EvaluateAverage())
    for a, b in zip([*plain.variables, *plain.optimizer.variables], [*scored.variables, *scored.optimizer.variables]):
        np.testing.assert_array_equal(a, b)
    assert "finalize_variable_values" not in vars(scored.optimizer)


@pytest.mark.extended
def test_early_stopping_in_the_best_epoch_keeps_its_averages():
    model = averaging_model()
    stop = keras.callbacks.EarlyStopping("val_loss", patience=1, baseline=1e-9, restore_best_weights=True)
    scores = fit(model, EvaluateAverage(), stop, epochs=9)["val_loss"]
    assert len(scores) < 9 and loss_of(model) == pytest.approx(min(scores), rel=1e-5)


class Interrupts(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        raise KeyboardInterrupt


@pytest.mark.extended
def test_after_an_interruption_undo_or_another_fit_restores_the_weights():
    plain, model = averaging_model(), averaging_model()
    fit(plain, epochs=1)
    average = EvaluateAverage()
    with pytest.raises(KeyboardInterrupt):
        fit(model, average, Interrupts())
    average.undo()
    for a, b in zip(plain.get_weights(), model.get_weights()):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(KeyboardInterrupt):
        fit(model, EvaluateAverage(), Interrupts())
    again = averaging_model()
    for _ in range(2):
        fit(again, epochs=1)
    average_of(model).undo()
    for a, b in zip(again.get_weights(), model.get_weights()):
        np.testing.assert_array_equal(a, b)


def average_of(model):
    made = EvaluateAverage()
    made.set_model(model)
    return made


def test_evaluate_alone_scores_the_averages_and_leaves_the_weights():
    model = averaging_model()
    fit(model, epochs=1)
    before = model.get_weights()
    scored = model.evaluate(X, Y, callbacks=[EvaluateAverage()], verbose=0)
    for a, b in zip(before, model.get_weights()):
        np.testing.assert_array_equal(a, b)
    swap_averages(model)
    assert model.evaluate(X, Y, verbose=0) == scored


def test_a_backup_of_scored_weights_is_refused(tmp_path):
    with pytest.raises(ValueError, match="BackupAndRestore.*save_freq"):
        fit(averaging_model(), EvaluateAverage(), keras.callbacks.BackupAndRestore(tmp_path))
    fit(averaging_model(), EvaluateAverage(), keras.callbacks.BackupAndRestore(tmp_path, save_freq=3), epochs=1)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("make", "on_epoch"),
    [
        (lambda: Lookahead(Momentum(0.5), k=2, use_ema=True, ema_momentum=0.7), False),
        (lambda: StochasticWeightAveraging(Lookahead("sgd", k=2), start=3), True),
        (lambda: AdamW(1e-2, use_ema=True, ema_momentum=0.7), True),
    ],
)
def test_keras_swap_of_averages_works_with_the_wrappers(make, on_epoch):
    ours, theirs = averaging_model(make()), averaging_model(make())
    expected = fit(ours, EvaluateAverage(), epochs=2)["val_loss"]
    found = fit(theirs, keras.callbacks.SwapEMAWeights(on_epoch), epochs=2)["val_loss"]
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert len(ours.optimizer.variables) == len({id(v) for v in ours.optimizer.variables})


@pytest.mark.parametrize("monitor", ["val_accuracy", "accuracy"])
def test_callbacks_know_that_a_higher_accuracy_is_better(monitor, tmp_path):
    model = averaging_model()
    callbacks = [
        keras.callbacks.EarlyStopping(monitor),
        keras.callbacks.ModelCheckpoint(tmp_path / "m.keras", monitor=monitor, save_best_only=True),
        keras.callbacks.ReduceLROnPlateau(monitor),
    ]
    fit(model, *callbacks, epochs=2)
    assert all(callback.monitor_op is keras.ops.greater for callback in callbacks)


def momentum_with(steps, **options):
    return Momentum(0.5, use_ema=True, ema_momentum=0.7, gradient_accumulation_steps=steps, **options)


def sgd_with(steps, **options):
    return keras.optimizers.SGD(0.5, use_ema=True, ema_momentum=0.7, gradient_accumulation_steps=steps, **options)


@pytest.mark.parametrize("make", [momentum_with, sgd_with])
def test_averages_move_once_per_accumulated_update(make):
    """NumPy's averages of the weights after each update, here every third batch."""
    model, seen = averaging_model(make(3)), []
    read = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append([v.numpy() for v in model.trainable_variables])
    )
    if make is sgd_with:  # which ends with the averages in the model
        model.optimizer.finalize_variable_values = lambda _: None
    model.fit(X, Y, batch_size=2, shuffle=False, verbose=0, callbacks=[read])
    expected, *updates = seen[2::3]
    for weights in updates:
        expected = [0.7 * average + 0.3 * weight for average, weight in zip(expected, weights)]
    assert len(updates) == 3
    for average, weight in zip(averages(model.optimizer), expected):
        np.testing.assert_allclose(average, weight, atol=1e-6)


def test_before_the_first_accumulated_update_the_averages_are_the_weights():
    model = averaging_model(momentum_with(8))
    model.fit(X[:8], Y[:8], batch_size=4, verbose=0)
    for average, variable in zip(averages(model.optimizer), model.trainable_variables):
        np.testing.assert_array_equal(average, variable)


@pytest.mark.parametrize("make", [momentum_with, sgd_with])
def test_overwriting_with_averages_while_accumulating_is_refused(make):
    with pytest.raises(ValueError, match="ema_overwrite_frequency counts batches.*micro_batches"):
        averaging_model(make(2, ema_overwrite_frequency=2)).fit(X, Y, verbose=0)
