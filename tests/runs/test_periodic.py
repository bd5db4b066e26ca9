"""Periodic measures within a run: when they are taken, of which weights, where they are logged, and that training is
unaffected.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from small_models import dense_on_images

from keras_vit.data import from_arrays, training_batches
from keras_vit.runs.loop.periodic import Periodic, measure_added
from keras_vit.runs.loop.train import _evaluate_start, train
from keras_vit.runs.saving import run_state
from keras_vit.runs.saving.rundir import RunDirectory
from keras_vit.training import AdamW, SoftmaxCrossEntropy


@pytest.fixture
def trained(tmp_path):
    """A function: trains with an evaluation every 2 steps and measures every 4; returns (model, records of
    metrics.jsonl).
    """
    source = from_arrays(np.random.default_rng(1).integers(0, 256, (20, 8, 12, 3), dtype="uint8"), np.arange(20) % 5)

    def run(name, total=7, measure=lambda model, step: {"few_shot/5": step / 8}, ema=False, steps_per_execution=1):
        model = dense_on_images(dropout=0.1)
        optimizer = AdamW(0.01, use_ema=ema, ema_momentum=0.5)
        eager = steps_per_execution == 1  # tracing takes longer than so few steps
        options = {"steps_per_execution": steps_per_execution, "run_eagerly": eager, "jit_compile": False}
        model.compile(optimizer, SoftmaxCrossEntropy(), **options)
        model.optimizer.build(model.trainable_variables)
        rundir = RunDirectory(tmp_path / name)
        start = rundir.resume(model)

        def batches(step):
            return training_batches(source, "decode", 4, seed=0, start_step=step)

        callbacks = [Periodic(lambda step: measure(model, step), 4, 7, start)] if measure else []
        train(model, batches, rundir, total, 2, 4, checkpoint_every=100, start=start, callbacks=callbacks)
        return model, rundir.metrics()

    return run


@pytest.mark.parametrize("steps_per_execution", [1, pytest.param(3, marks=pytest.mark.extended)])
def test_measures_are_in_the_records_of_their_steps(trained, tmp_path, steps_per_execution):
    """Evaluations are at 2, 4, 6 and 7."""
    _, records = trained("run", steps_per_execution=steps_per_execution)
    assert [(r["step"], r.get("few_shot/5")) for r in records] == [(2, None), (4, 0.5), (6, None), (7, 0.875)]
    assert events(tmp_path / "run" / "tensorboard" / "train") == {4: 0.5, 7: 0.875}


def events(folder):
    """{step: value} of the tag few_shot/5 in TensorBoard's files."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    read = EventAccumulator(str(folder))
    read.Reload()
    return {event.step: float(make_ndarray(event.tensor_proto)) for event in read.Tensors("few_shot/5")}


@pytest.mark.extended
def test_a_run_that_resumes_measures_at_the_same_steps(trained):
    seen = []

    def note(model, step):
        seen.append(step)
        return {"few_shot/5": 0.0}

    trained("run", total=3, measure=note)
    assert seen == []
    trained("run", measure=note)
    assert seen == [4, 7]


@pytest.mark.extended
def test_an_evaluator_that_is_added_to_a_complete_run_is_measured(trained, tmp_path):
    model, records = trained("run", measure=None)
    rundir, seen = RunDirectory(tmp_path / "run"), []

    def added(name):
        def measure(step):
            seen.append((name, step))
            rundir.write_json(f"{name}.json", {"step": step})
            return {f"{name}/5": 0.5}

        return Periodic(measure, 4, 7, 7)

    rundir.write_json("old.json", {"step": 7})
    rundir.write_json("late.json", {"step": 4})
    for _ in range(2):
        measure_added({name: added(name) for name in ("old", "late", "new")}, model, rundir, 7)
    assert seen == [("late", 7), ("new", 7)]
    assert rundir.metrics() == [*records[:-1], {**records[-1], "late/5": 0.5, "new/5": 0.5}]


@pytest.mark.extended
def test_the_averages_are_measured_and_training_is_the_same_bit_for_bit(trained):
    seen = {}

    def note(model, step):
        model.predict_on_batch(np.zeros((4, 8, 12, 3), "uint8"))
        seen[step] = [v.numpy() for v in model.trainable_variables]
        return {}

    alone, _ = trained("alone", measure=None, ema=True)
    measured, _ = trained("measured", measure=note, ema=True)
    arrays = run_state.collect(alone)
    for name, value in run_state.collect(measured).items():
        np.testing.assert_array_equal(value, arrays[name], err_msg=name)
    for value, average in zip(seen[7], measured.optimizer._model_variables_moving_average):
        np.testing.assert_array_equal(value, average.numpy())
    assert any((weight.numpy() != average).any() for weight, average in zip(measured.trainable_variables, seen[7]))


def test_initial_weights_are_measured_as_they_are():
    """Averages are empty before the first step, and a task's score may be an evaluator's measure."""
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile(keras.optimizers.SGD(use_ema=True), "mse")
    model.optimizer.build(model.trainable_variables)
    periodic = Periodic(lambda step: {"detection/ap": float(model.get_weights()[0].sum())}, 2, 4)
    data, logs = tf.data.Dataset.from_tensors((np.ones((1, 2)), np.ones((1, 1)))), {}
    log = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, seen: logs.update(seen))
    _evaluate_start(model, data, [], [periodic], [log], 0)
    assert logs["detection/ap"] == 2 and logs["val_loss"] == 1
