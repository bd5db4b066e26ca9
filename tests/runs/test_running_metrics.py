"""The records of a run that was interrupted are those of one that was not: training metrics, evaluations,
TensorBoard.
"""

import functools
import json

import numpy as np
import pytest
import tensorflow as tf
from interrupting import terminate, when
from small_models import dense_on_images
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray

from keras_vit.runs.loop.faults import Preempted
from keras_vit.runs.loop.train import train
from keras_vit.runs.saving import run_state
from keras_vit.runs.saving.rundir import RunDirectory
from keras_vit.training import Accuracy, Momentum, SoftmaxCrossEntropy

TOTAL = 12


class Killed(Exception):
    """As kill -9: nothing is saved."""


def kill(model):
    raise Killed


def go(folder, *callbacks, total=TOTAL, every=6):
    """Trains in a folder to the end, from where it stands; returns the records without their speed."""
    pixels = np.random.default_rng(0).integers(0, 256, (4, 8, 12, 3), dtype="uint8")
    data = tf.data.Dataset.from_tensor_slices((pixels, np.arange(4))).repeat().batch(4)
    evaluation = tf.data.Dataset.from_tensor_slices((pixels, np.arange(4), np.ones(4, "float32"))).batch(4)
    model, rundir = dense_on_images(dropout=0.5), RunDirectory(folder)
    options = {"weighted_metrics": [Accuracy()], "run_eagerly": True, "jit_compile": False}
    model.compile(Momentum(1e-2, use_ema=True), SoftmaxCrossEntropy(), **options)
    model.optimizer.build(model.trainable_variables)
    options = {"batch_size": 4, "evaluation": evaluation, "checkpoint_every": 4, "callbacks": callbacks}
    train(model, lambda step: data.skip(step), rundir, total, every, start=rundir.resume(model), **options)
    return [{key: value for key, value in r.items() if key != "images_per_second"} for r in rundir.metrics()]


@pytest.fixture
def cut(tmp_path):
    """cut(callbacks..., options...): go in a folder of this test."""
    return functools.partial(go, tmp_path / "cut")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """(the records, the directory) of a run that is not interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    return go(folder), RunDirectory(folder)


def curve(folder):
    """{step: loss} in TensorBoard."""
    events = EventAccumulator(str(folder / "tensorboard" / "train"))
    events.Reload()
    return {event.step: float(make_ndarray(event.tensor_proto)) for event in events.Tensors("loss")}


@pytest.mark.extended
def test_a_killed_run_has_the_records_of_a_whole_one(cut, whole, tmp_path):
    """Evaluations, of averages, are at steps 6 and 12, checkpoints at 4, 8 and 12: after a kill up to four steps are
    repeated.
    """
    with pytest.raises(Killed):
        cut(when("on_train_batch_end", kill, 7))
    again, (records, rundir) = cut(), whole
    assert again == records and [record["step"] for record in records] == [6, 12]
    last = [place.checkpoints()[TOTAL].read_bytes() for place in (RunDirectory(tmp_path / "cut"), rundir)]
    assert last[0] == last[1]


@pytest.mark.extended
def test_interrupted_twice_within_an_epoch_and_within_the_repeated_evaluation(cut, whole, tmp_path):
    for callback in (
        when("on_train_batch_begin", terminate, 3),
        when("on_train_batch_begin", terminate, 2),
        when("on_test_begin", terminate, 1),
        when("on_test_begin", terminate, 1),
    ):
        with pytest.raises(Preempted):
            cut(callback)
    records, rundir = whole
    assert json.dumps(cut()) == json.dumps(records)  # also the order of the keys
    assert curve(tmp_path / "cut") == curve(rundir.path) and list(curve(rundir.path)) == [6, 12]


@pytest.mark.extended
def test_a_longer_run_goes_on_within_the_epoch(cut, whole):
    """It was to end at step 9, which has a record of its own."""
    cut(total=9)
    records = cut()
    assert [record["step"] for record in records] == [6, 9, 12]
    assert [records[0], records[2]] == whole[0]


@pytest.mark.extended
@pytest.mark.parametrize("change", ["old", "every"])
def test_what_does_not_fit_is_left_out(cut, whole, tmp_path, monkeypatch, change):
    """A checkpoint of version 0.3, without metrics; another interval of evaluations."""
    with monkeypatch.context() as patch, pytest.raises(Preempted):
        if change == "old":
            to_bytes = run_state.to_bytes
            patch.setattr(run_state, "to_bytes", lambda arrays, _: to_bytes(arrays))
        cut(when("on_train_batch_begin", terminate, 11))
    options = {"every": 8} if change == "every" else {}
    records = cut(**options)
    assert records[-1]["step"] == TOTAL and np.isfinite(records[-1]["loss"])
    undisturbed = go(tmp_path / "whole", **options) if change == "every" else whole[0]
    assert records[-1]["loss"] != undisturbed[-1]["loss"]
