"""Measures now and then within a run: when they are taken, of which weights, where they are logged, and that training does not notice."""

import json

import numpy as np
import pytest
from logical import data, in_process, small

from keras_vit.data import from_arrays, training_batches
from keras_vit.training import AdamW, SoftmaxCrossEntropy, state
from keras_vit.training.loop import train
from keras_vit.training.periodic import Periodic
from keras_vit.training.rundir import RunDirectory


@pytest.fixture
def trained(tiny, tmp_path):
    """A function: trains in steps of 2 an evaluation and measures every 4; returns (model, records of metrics.jsonl)."""
    source = from_arrays(np.random.default_rng(1).integers(0, 256, (20, 8, 12, 3), dtype="uint8"), np.arange(20) % 5)

    def run(name, total=7, measure=lambda model, step: {"few_shot/5": step / 8}, ema=False, steps_per_execution=1):
        model = tiny(dropout=0.1)
        optimizer = AdamW(0.01, use_ema=ema, ema_momentum=0.5)
        model.compile(optimizer, SoftmaxCrossEntropy(), jit_compile=False, steps_per_execution=steps_per_execution)
        model.optimizer.build(model.trainable_variables)
        files = RunDirectory(tmp_path / name)
        start = files.resume(model)
        batches = lambda step: training_batches(source, "decode", 4, seed=0, start_step=step)  # noqa: E731
        callbacks = [Periodic(lambda step: measure(model, step), 4, 7, start)] if measure else []
        train(model, batches, files, total, 2, 4, checkpoint_every=100, start=start, callbacks=callbacks)
        return model, files.metrics()

    return run


@pytest.mark.parametrize("steps_per_execution", [1, 3])
def test_measures_stand_in_the_records_of_their_steps(trained, tmp_path, steps_per_execution):
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


def test_a_run_that_resumes_measures_at_the_same_steps(trained):
    seen = []
    note = lambda model, step: seen.append(step) or {"few_shot/5": 0.0}  # noqa: E731
    trained("run", total=3, measure=note)
    assert seen == []
    trained("run", measure=note)
    assert seen == [4, 7]


def test_the_averages_are_measured_and_training_is_the_same_bit_for_bit(trained):
    seen = {}

    def note(model, step):
        model.predict_on_batch(np.zeros((4, 8, 12, 3), "uint8"))
        seen[step] = [v.numpy() for v in model.trainable_variables]
        return {}

    plain, _ = trained("plain", measure=None, ema=True)
    measured, _ = trained("measured", measure=note, ema=True)
    arrays = state.collect(plain)
    for name, value in state.collect(measured).items():
        np.testing.assert_array_equal(value, arrays[name], err_msg=name)
    for value, average in zip(seen[7], measured.optimizer._model_variables_moving_average):
        np.testing.assert_array_equal(value, average.numpy())
    assert any((weight.numpy() != average).any() for weight, average in zip(measured.trainable_variables, seen[7]))


def features_on_two_replicas():
    """Prints how far the features under MirroredStrategy are from one device's, and the labels."""
    import keras_vit
    from trainers.few_shot import Embedder

    x, y = data(10)
    found = {}
    for name in ("one", "mirrored"):
        layout = keras_vit.strategy(name)
        model = small(layout, AdamW)
        with layout.scope():
            embedder = Embedder(model, "decode", 4)
        found[name] = embedder(from_arrays(x, y))
    (one, labels), (two, _) = found["one"], found["mirrored"]
    print(json.dumps([list(two.shape), float(abs(one).max()), float(abs(one - two).max()), (labels == y).tolist()]))


def test_two_replicas_give_the_features_of_one_device():
    shape, largest, apart, same = json.loads(in_process(features_on_two_replicas, devices=2).splitlines()[-1])
    assert shape == [10, 16] and largest > 1 and apart < 1e-5 and same == [True] * 10
