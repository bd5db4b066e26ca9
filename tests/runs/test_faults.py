"""What ends a run early and what does not: SIGTERM, numbers that are not finite, a full disk, a slow one, other
workers.

In this process; runs in processes of their own are in test_kills.py.
"""

import dataclasses
import logging
import os
import resource
import signal
import threading
import types

import numpy as np
import pytest
import tensorflow as tf
from interrupting import send, terminate, when
from small_models import dense_on_images

from keras_vit.distribution.strategy import Strategy
from keras_vit.runs import Checkpoints
from keras_vit.runs.loop.faults import Interrupted, LostWorker, Preempted, Preemption
from keras_vit.runs.loop.train import train
from keras_vit.runs.saving import run_state
from keras_vit.runs.saving.checkpointing import NotSaved
from keras_vit.runs.saving.run_state import Diverged
from keras_vit.runs.saving.rundir import RunDirectory
from keras_vit.training import AdamW, SoftmaxCrossEntropy
from trainers import config_files
from trainers import train as train_program


def go(rundir, steps_per_execution=1, averages=True, **options):
    """Resumes a run up to step 12; returns the model's state."""
    pixels = np.random.default_rng(0).integers(0, 256, (4, 8, 12, 3), dtype="uint8")
    data = tf.data.Dataset.from_tensor_slices((pixels, np.arange(4))).batch(4)
    model = dense_on_images(dropout=0.1)
    eager = steps_per_execution == 1  # tracing takes longer than so few steps
    compiled = {"steps_per_execution": steps_per_execution, "run_eagerly": eager, "jit_compile": False}
    model.compile(AdamW(1e-3, use_ema=averages, ema_momentum=0.9), SoftmaxCrossEntropy(), **compiled)
    model.optimizer.build(model.trainable_variables)
    evaluation, start = data.map(lambda x, y: (x, y, tf.ones(4))), rundir.resume(model)
    options = {"total": 12, "every": 6, "checkpoint_every": 4, "batch_size": 4, **options}
    train(model, lambda step: data.repeat(), rundir, evaluation=evaluation, start=start, **options)
    return run_state.collect(model)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The state in which an undisturbed run ends."""
    return go(RunDirectory(tmp_path_factory.mktemp("whole")))


@pytest.fixture
def warnings(caplog):
    """The text of the warnings so far: warnings()."""
    logging.getLogger("absl").propagate = True
    with caplog.at_level("WARNING"):
        yield lambda: caplog.text


def saved(rundir, step):
    path = rundir.checkpoints()[step]
    return run_state.from_bytes(path.read_bytes(), path)


def assert_equal(a, b):
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


@pytest.mark.extended
def test_sigterm_saves_after_the_step_in_which_it_comes(whole, tmp_path):
    """Epochs are of 6 steps. The resumed run ends like an undisturbed one."""
    handler, rundir = signal.getsignal(signal.SIGTERM), RunDirectory(tmp_path)
    with pytest.raises(Preempted) as left:
        go(rundir, callbacks=[when("on_train_batch_begin", terminate, 9)])
    assert left.value.code == 75 and list(rundir.checkpoints()) == [8, 9]
    assert signal.getsignal(signal.SIGTERM) == handler
    assert_equal(go(RunDirectory(tmp_path)), whole)
    assert [record["step"] for record in rundir.metrics()] == [6, 12]


@pytest.mark.extended
@pytest.mark.parametrize(
    ("do", "error", "checkpoints"), [("terminate", Preempted, [4, 10]), ("break_weights", Diverged, [4])]
)
def test_several_steps_per_execution_end_together(tmp_path, do, error, checkpoints):
    """The third execution is steps 7 to 10."""
    rundir = RunDirectory(tmp_path)
    with pytest.raises(error, match="75|within the 4 steps up to 10"):
        go(rundir, 4, callbacks=[when("on_train_batch_begin", globals()[do], 3)])
    assert list(rundir.checkpoints()) == checkpoints


def test_sigterm_in_an_evaluation_saves_the_weights_and_not_their_averages(tmp_path):
    rundir, states = RunDirectory(tmp_path), []
    watch = when("on_train_batch_end", lambda model: states.append(run_state.collect(model)))
    with pytest.raises(Preempted):
        go(rundir, callbacks=[watch, when("on_test_begin", terminate)])
    assert len(states) == 6 and rundir.metrics() == []
    assert_equal(saved(rundir, 6), states[-1])


def test_sigterm_before_the_first_step_does_not_claim_a_checkpoint(tmp_path, warnings):
    with pytest.raises(Preempted):
        go(RunDirectory(tmp_path), callbacks=[when("on_epoch_begin", terminate)])
    said = "Stopped before the first step, without a checkpoint. Exit code 75: run the same command again to start."
    assert said in warnings() and not RunDirectory(tmp_path).checkpoints()


def test_ctrl_c_saves_after_the_step_and_a_second_one_ends_at_once(tmp_path, capfd):
    handler, seen = signal.getsignal(signal.SIGINT), []

    def interrupt(model):
        send(signal.SIGINT)
        seen.append(signal.getsignal(signal.SIGINT))

    with pytest.raises(Interrupted) as left:
        go(RunDirectory(tmp_path), averages=False, callbacks=[when("on_train_batch_begin", interrupt, 3)])
    assert isinstance(left.value, KeyboardInterrupt) and list(RunDirectory(tmp_path).checkpoints()) == [3]
    assert seen == [signal.SIG_DFL] and signal.getsignal(signal.SIGINT) == handler
    assert "Ctrl-C: saving after the current step." in capfd.readouterr().err


def test_preemption_outside_the_main_thread_leaves_signals_alone():
    handler, seen = signal.getsignal(signal.SIGTERM), []

    def enter():
        with Preemption() as preemption:
            seen.append((preemption.requested, signal.getsignal(signal.SIGTERM)))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [(False, handler)]


def test_a_request_to_leave_that_nothing_acted_on_is_raised_at_the_end():
    with pytest.raises(Preempted), Preemption():
        terminate(None)


def break_weights(model):
    model.trainable_variables[0].assign(model.trainable_variables[0] * np.nan)


def break_averages(model):
    """The loss does not show it."""
    average = model.optimizer._model_variables_moving_average[0]
    average.assign(average * np.nan)


@pytest.mark.parametrize(("step", "good"), [(9, 8), (6, 4)])
def test_a_loss_that_is_not_finite_ends_the_run(tmp_path, step, good):
    rundir = RunDirectory(tmp_path)
    message = (
        rf"loss is not finite at step {step}\. The last good checkpoint is .*step_0*{good}\.saf.*new --workdir with a"
    )
    with pytest.raises(Diverged, match=message):
        go(rundir, callbacks=[when("on_train_batch_begin", break_weights, step)])
    assert max(rundir.checkpoints()) == good and not run_state.not_finite(saved(rundir, good))
    assert all(np.isfinite(record["loss"]) for record in rundir.metrics())


@pytest.mark.parametrize(
    ("execution", "step", "last"), [(3, 4, "There is no checkpoint yet"), (10, 12, "The last good .*step_00000008")]
)
def test_a_state_that_is_not_finite_is_not_written(tmp_path, execution, step, last):
    rundir = RunDirectory(tmp_path)
    message = f"At step {step}, 1 of .* arrays are not finite, including optimizer/.*average.* {last}"
    with pytest.raises(Diverged, match=message):
        go(rundir, callbacks=[when("on_train_batch_begin", break_averages, execution)])
    assert step not in rundir.checkpoints()


@pytest.fixture
def disk(capsys):
    """disk(10): files may have no more than 10 bytes (the limit is the system's own; Python ignores its signal);
    disk(-1): any.

    `capsys`, so that what is printed goes to no file.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(size):
        resource.setrlimit(resource.RLIMIT_FSIZE, (before[0] if size < 0 else size, before[1]))

    yield limit
    limit(-1)


@pytest.mark.extended
def test_a_full_disk_loses_nothing(whole, tmp_path, disk, warnings):
    """It is full from step 4 to step 10: neither a checkpoint nor a metric nor TensorBoard's events fit."""
    rundir = RunDirectory(tmp_path / "run")
    fill, free = (when("on_train_batch_begin", lambda _, size=size: disk(size), n) for n, size in ((6, 10), (11, -1)))
    state_at_end = go(rundir, callbacks=[fill, free])
    assert list(rundir.checkpoints()) == [4, 12] and [record["step"] for record in rundir.metrics()] == [6, 12]
    assert not list(tmp_path.rglob(".tmp-*"))
    text = warnings()
    assert (
        "step_00000008.safetensors could not be written: [Errno 27] File too large" in text and "step_00000004" in text
    )
    assert "metrics.jsonl could not be written" in text and "TensorBoard's train metrics of step 6 could not" in text
    assert_equal(saved(rundir, 12), state_at_end)
    assert_equal(state_at_end, whole)


@pytest.mark.parametrize("ask", [False, True], ids=["at the end", "after SIGTERM"])
def test_a_last_state_that_cannot_be_written_is_an_error(tmp_path, disk, ask):
    rundir = RunDirectory(tmp_path)
    fill = when("on_train_batch_begin", lambda _: disk(10), 6)
    leave = [when("on_train_batch_begin", terminate, 10)] * ask
    message = (
        f"step_{10 if ask else 12:08d}.safetensors could not be written: .*last good .*step_00000004.* Free some space"
        " and run the same"
    )
    with pytest.raises(NotSaved, match=message):
        go(rundir, callbacks=[fill, *leave])
    disk(-1)  # pytest's own output may go to a file
    assert list(rundir.checkpoints()) == [4] and not list(tmp_path.rglob(".tmp-*"))


def fit(model, pixels, checkpoints, *callbacks):
    model.compile("sgd", SoftmaxCrossEntropy(), run_eagerly=True)
    model.optimizer.build(model.trainable_variables)
    callbacks = [checkpoints, *callbacks]
    model.fit(np.repeat(pixels, 6, 0), np.zeros(24), batch_size=4, shuffle=False, verbose=0, callbacks=callbacks)


def test_training_goes_on_during_a_slow_write(pixels, tmp_path, monkeypatch):
    """The write of step 2 lasts until step 3 has begun. It holds the state of step 2."""
    rundir, states, slow, original = RunDirectory(tmp_path), [], threading.Event(), RunDirectory.save
    monkeypatch.setattr(RunDirectory, "save", lambda *args: slow.wait(600) and original(*args))
    with Checkpoints(rundir, 2, keep=3, patience=0) as checkpoints:
        release = when("on_train_batch_begin", lambda _: (states.append(dict(rundir.checkpoints())), slow.set()), 4)
        watch = when("on_train_batch_begin", lambda model: states.append(run_state.collect(model)), 3)
        fit(dense_on_images(), pixels, checkpoints, watch, release)
    assert states[1] == {} and list(rundir.checkpoints()) == [2, 4]
    assert_equal(saved(rundir, 2), states[0])


def test_an_error_in_the_writing_thread_is_not_lost(pixels, tmp_path, monkeypatch):
    def fail(*_):
        raise KeyError("a mistake")

    monkeypatch.setattr(RunDirectory, "save", fail)
    with pytest.raises(KeyError, match="a mistake"), Checkpoints(RunDirectory(tmp_path), 2) as checkpoints:
        fit(dense_on_images(), pixels, checkpoints)


def test_a_bucket_that_neither_takes_nor_lists_files_does_not_end_training(pixels, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(logging.getLogger("absl"), "propagate", True)

    def fail(*_):
        raise OSError("no answer")

    for name in ("_write", "checkpoints"):
        monkeypatch.setattr(RunDirectory, name, fail)
    with Checkpoints(RunDirectory(tmp_path), 2) as checkpoints:
        fit(dense_on_images(), pixels, checkpoints)
    assert "step_00000002.safetensors could not be written: no answer." in caplog.text
    assert f"{tmp_path}/checkpoints cannot be read now (no answer). Training continues" in caplog.text


@dataclasses.dataclass(frozen=True)
class TwoWorkers(Strategy):
    """One of two workers; the other one votes yes in the calls of `any` with these numbers."""

    yes: tuple = ()
    votes: list = dataclasses.field(default_factory=list)

    def any(self, flag):
        self.votes.append(flag)
        return bool(flag) or len(self.votes) in self.yes


@pytest.mark.extended
def test_a_worker_that_is_not_the_chief_writes_nothing(tmp_path):
    rundir = RunDirectory(tmp_path / "run", TwoWorkers(host=1))
    rundir.write_json("config.json", {})
    go(rundir)
    assert not (tmp_path / "run").exists()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".tmp-1-config.json").touch()
    RunDirectory(tmp_path / "run", TwoWorkers(host=1))
    assert os.listdir(tmp_path / "run") == [".tmp-1-config.json"]


@pytest.mark.parametrize("host", [0, 1])
def test_all_workers_leave_after_the_same_execution(tmp_path, host):
    """The other worker, which has had SIGTERM, reports it after step 9. An epoch has eight votes: before each of six
    executions and the evaluation, and at its end.
    """
    rundir = RunDirectory(tmp_path, TwoWorkers(host=host, yes=(8 + 4,)))
    with pytest.raises(Preempted):
        go(rundir)
    assert list(rundir.checkpoints()) == ([] if host else [8, 9])


def test_all_workers_end_when_one_diverges(tmp_path):
    with pytest.raises(Diverged, match="of another worker"):
        go(RunDirectory(tmp_path, TwoWorkers(yes=(3, 4))))


@pytest.mark.extended
def test_all_workers_end_when_the_chief_cannot_save(tmp_path):
    """The other's last vote."""
    rundir = RunDirectory(tmp_path, TwoWorkers(host=1))
    go(rundir)
    last = len(rundir.strategy.votes)
    with pytest.raises(NotSaved, match="see the error of the first worker"):
        go(RunDirectory(tmp_path, TwoWorkers(host=1, yes=(last,))))


@pytest.mark.extended
@pytest.mark.parametrize(
    ("sweep", "place"), [(None, "seed_0"), ("optimizer.learning_rate=1e-3,3e-3", "learning_rate=0.001/seed_0")]
)
def test_a_lost_worker_names_the_checkpoint_of_the_run_in_progress(tmp_path, monkeypatch, caplog, sweep, place):
    monkeypatch.setattr(logging.getLogger("absl"), "propagate", True)

    def run(config, workdir, *_):
        (workdir / "checkpoints").mkdir(parents=True)
        (workdir / "checkpoints" / "step_00000003.safetensors").touch()
        raise tf.errors.InternalError(None, None, "Collective ops is aborted by: no heartbeat\nand more")

    monkeypatch.setattr(train_program, "run", run)
    config = config_files.load_config("digits_pretrain")
    given = {"config": config, "workdir": str(tmp_path), "sweep": sweep, "runs": 2, "data_dir": None}
    with pytest.raises(LostWorker):
        train_program.train(types.SimpleNamespace(**given, data_service=None, check_memory=False), Strategy(hosts=2))
    last = f"{tmp_path}/{place}/checkpoints/step_00000003.safetensors (step 3)."
    expected = f"lost (no heartbeat). The last good checkpoint is {last}"
    assert expected in caplog.text
