"""The records of a run that was interrupted are those of one that was not: training metrics, evaluations,
TensorBoard.
"""

import os
import signal

import keras
import numpy as np
import pytest
import tensorflow as tf
from small_models import dense_on_images

from keras_vit.runs.loop.faults import Preempted
from keras_vit.runs.loop.train import train
from keras_vit.runs.saving import state
from keras_vit.runs.saving.rundir import RunDirectory
from keras_vit.training import Accuracy, Momentum, SoftmaxCrossEntropy

TOTAL = 12
_whole = []


class Killed(Exception):
    """As kill -9: nothing is saved."""


def kill():
    raise Killed


def terminate():
    assert callable(signal.getsignal(signal.SIGTERM)), "nothing handles SIGTERM: it would end all tests of this process"
    os.kill(os.getpid(), signal.SIGTERM)


def when(moment, do, count=1):
    """A callback that calls do() at the count-th of Keras' moments, such as "on_train_batch_begin"."""
    callback, calls = keras.callbacks.Callback(), []

    def hook(*_, **__):
        calls.append(1)
        if len(calls) == count:
            do()

    setattr(callback, moment, hook)
    return callback


@pytest.fixture
def whole(trained, tmp_path):
    """(the records, the last checkpoint) of a run that is not interrupted, trained once."""
    if not _whole:
        _whole.append((trained("whole"), RunDirectory(tmp_path / "whole").checkpoints()[TOTAL].read_bytes()))
    return _whole[0]


@pytest.fixture
def trained(pixels, tmp_path):
    """trained(name, callbacks...): trains that run to its end, from where it stands; returns its records without their
    speed.
    """
    data = tf.data.Dataset.from_tensor_slices((pixels, np.arange(4))).repeat().batch(4)
    evaluation = tf.data.Dataset.from_tensor_slices((pixels, np.arange(4), np.ones(4, "float32"))).batch(4)

    def go(name, *callbacks, metrics=(Accuracy,), total=TOTAL, every=6, checkpoint_every=4, averages=False):
        model, rundir = dense_on_images(dropout=0.5), RunDirectory(tmp_path / name)
        optimizer = Momentum(1e-2, use_ema=averages)
        metrics = [metric() for metric in metrics]
        model.compile(optimizer, SoftmaxCrossEntropy(), weighted_metrics=metrics, run_eagerly=True, jit_compile=False)
        model.optimizer.build(model.trainable_variables)
        start = rundir.resume(model)
        options = {
            "batch_size": 4,
            "evaluation": evaluation,
            "checkpoint_every": checkpoint_every,
            "callbacks": callbacks,
        }
        train(model, lambda step: data.skip(step), rundir, total, every, start=start, **options)
        return [
            {name: value for name, value in record.items() if name != "images_per_second"}
            for record in rundir.metrics()
        ]

    return go


@pytest.mark.parametrize(
    ("moment", "do", "count"),
    [
        ("on_train_batch_begin", terminate, 10),
        ("on_train_batch_end", kill, 11),
        ("on_train_batch_end", kill, 7),
        ("on_test_begin", terminate, 1),
        ("on_test_begin", terminate, 2),
        ("on_test_batch_end", kill, 2),
    ],
    ids=[
        "SIGTERM",
        "kill",
        "kill before a save",
        "SIGTERM while evaluating",
        "SIGTERM in the last evaluation",
        "kill while evaluating",
    ],
)
def test_an_interrupted_run_has_the_records_of_a_whole_one(trained, whole, tmp_path, moment, do, count):
    """Evaluations are at steps 6 and 12, checkpoints at 4, 8 and 12: after a kill up to four steps are repeated."""
    with pytest.raises((Preempted, Killed)):
        trained("cut", when(moment, do, count))
    again, (records, checkpoint) = trained("cut"), whole
    assert again == records and [record["step"] for record in records] == [6, 12]
    assert RunDirectory(tmp_path / "cut").checkpoints()[TOTAL].read_bytes() == checkpoint


def test_interrupted_twice_within_an_epoch_and_within_the_repeated_evaluation(trained):
    for callback in (
        when("on_train_batch_begin", terminate, 3),
        when("on_train_batch_begin", terminate, 2),
        when("on_test_begin", terminate, 1),
        when("on_test_begin", terminate, 1),
    ):
        with pytest.raises(Preempted):
            trained("cut", callback, averages=True)
    assert trained("cut", averages=True) == trained("whole", averages=True)


def test_a_longer_run_goes_on_within_the_epoch(trained, whole):
    """It was to end at step 9, which has a record of its own."""
    trained("longer", total=9)
    records = trained("longer")
    assert [record["step"] for record in records] == [6, 9, 12]
    assert [records[0], records[2]] == whole[0]


def test_tensorboard_has_the_same_curves(trained, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    def curve(name):
        events = EventAccumulator(str(tmp_path / name / "tensorboard" / "train"))
        events.Reload()
        return {event.step: float(make_ndarray(event.tensor_proto)) for event in events.Tensors("loss")}

    with pytest.raises(Preempted):
        trained("cut", when("on_train_batch_begin", terminate, 10))
    trained("cut"), trained("whole")
    assert curve("cut") == curve("whole") and list(curve("whole")) == [6, 12]


@pytest.mark.parametrize("change", ["old", "every", "metrics"])
def test_what_does_not_fit_is_left_out(trained, tmp_path, monkeypatch, change):
    """A checkpoint of version 0.3, without metrics; another interval of evaluations; other metrics."""
    with monkeypatch.context() as patch, pytest.raises(Preempted):
        if change == "old":
            to_bytes = state.to_bytes
            patch.setattr(state, "to_bytes", lambda arrays, _: to_bytes(arrays))
        trained("cut", when("on_train_batch_begin", terminate, 11))
    options = {"every": {"every": 8}, "metrics": {"metrics": ()}}.get(change, {})
    records = trained("cut", **options)
    assert records[-1]["step"] == TOTAL and np.isfinite(records[-1]["loss"])
    assert records[-1]["loss"] != trained("whole", **options)[-1]["loss"]


def test_they_are_beside_the_arrays_of_a_checkpoint(trained, tmp_path):
    trained("run")
    data = RunDirectory(tmp_path / "run").checkpoints()[TOTAL].read_bytes()
    arrays = state.from_bytes(data, "it")
    assert {name.split("/")[0] for name in arrays} == {"model", "optimizer"}
    assert state.running_in(data).since == 6 and state.running_in(state.to_bytes(arrays)) is None
