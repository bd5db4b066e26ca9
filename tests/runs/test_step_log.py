"""What a log file says within an epoch, which may take hours."""

import logging
import types

import keras
import numpy as np
import pytest

from keras_vit.runs.loop import callbacks
from keras_vit.runs.loop.callbacks import StepBar, StepLog


@pytest.fixture
def said(caplog):
    """The messages so far: said()."""
    logging.getLogger("absl").propagate = True
    with caplog.at_level("INFO", "absl"):
        yield lambda: [record.getMessage() for record in caplog.records]


def test_a_line_after_seconds_and_then_one_a_minute_names_the_step_the_time_left_and_the_loss(said, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(callbacks.time, "monotonic", lambda: clock[0])
    log = StepLog(total=10_000, start=2000)
    log.set_params({"steps": 1000})
    log.set_model(types.SimpleNamespace(steps_per_execution=1))
    log.on_epoch_begin(2)
    clock[0] = 300.0  # compiling
    for batch in range(400):
        log.on_train_batch_begin(batch)
        log.on_train_batch_end(batch, {"loss": 0.5, "top1": 0.25})
        clock[0] += 0.5
    lefts = {2007: "1 h 6 min", 2127: "1 h 5 min", 2247: "1 h 4 min", 2367: "1 h 3 min"}  # at half a second a step
    assert said() == [f"Step {step:,} of 10,000, {left} left: loss 0.5, top1 0.25." for step, left in lefts.items()]


def test_within_fit(said, monkeypatch):
    monkeypatch.setattr(callbacks, "_SAY_FIRST", 0.0)
    monkeypatch.setattr(callbacks, "_SAY_EVERY", 0.0)
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.steps_per_execution = 1
    x = np.zeros((8, 2))
    model.fit(x, x[:, :1], batch_size=2, epochs=2, verbose=0, callbacks=[StepLog(total=8)])
    steps = [2, 3, 4, 6, 7, 8]  # the first of an epoch may have been compiled: its time is not counted
    assert [message.split(",")[0] for message in said()] == [f"Step {step} of 8" for step in steps]
    assert all(message.endswith("left: loss 0.") for message in said())


def test_the_bar_names_steps_where_keras_would_count_evaluations_as_epochs(capsys):
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.zeros((8, 2))
    model.fit(x, x[:, :1], batch_size=2, epochs=2, verbose=2, callbacks=[StepBar(total=9, start=1)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[::2] == ["Steps 2 to 5 of 9", "Steps 6 to 9 of 9"]
    assert all(line.startswith("4/4") and "loss: 0" in line for line in lines[1::2]) and len(lines) == 4
