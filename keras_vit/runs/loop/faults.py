"""Faults that end a run early: preemption, a lost worker, non-finite numbers.

All workers stop after the same execution. After SIGTERM, a run saves its state and exits with code 75, EX_TEMPFAIL in
sysexits.h: "restart me". After SIGINT, Ctrl-C, it saves its state and raises KeyboardInterrupt, as Python does: a
person stopped it, so nothing should restart it.
"""

import contextlib
import dataclasses
import math
import os
import signal
import threading
from collections.abc import Iterator

from absl import logging

from keras_vit.distribution import Strategy
from keras_vit.runs.loop.callbacks import StepCounter
from keras_vit.runs.saving.checkpointing import Checkpoints
from keras_vit.runs.saving.run_state import Diverged
from keras_vit.runs.saving.rundir import RunDirectory

RESTART = 75  # os.EX_TEMPFAIL, which Windows lacks


class Preempted(SystemExit):
    """Exits with code 75: the state is saved, and the same command continues with the next step."""

    def __init__(self):
        super().__init__(RESTART)


class Interrupted(KeyboardInterrupt):
    """Ends a run after Ctrl-C: the state is saved, and the same command continues with the next step."""


class LostWorker(SystemExit):
    """Exits with code 75: another worker is lost, and all workers must be restarted."""

    def __init__(self):
        super().__init__(RESTART)


@contextlib.contextmanager
def lost_worker_named(workdir: str | os.PathLike, strategy: Strategy) -> Iterator[None]:
    """A context in which a lost worker raises LostWorker, after logging the last checkpoint in `workdir`."""
    try:
        yield
    except Exception as error:
        # TensorFlow's message when a sum over workers fails.
        lost = type(error).__module__.startswith("tensorflow") and "Collective ops is aborted" in str(error)
        if strategy.hosts == 1 or not lost:
            raise
        logging.error(
            "Another worker is lost (%s). %s Start all workers again with the same command: they continue from there."
            " Exit code %d.",
            str(error).partition("Collective ops is aborted by: ")[2].partition("\n")[0],
            RunDirectory(workdir, dataclasses.replace(strategy, host=1)).last_checkpoint(),  # host 1 writes nothing
            RESTART,
        )
        raise LostWorker from None


class Preemption:
    """A context in which SIGTERM and SIGINT (Ctrl-C) set `requested` instead of ending the process.

    A second SIGINT ends it at once. Does nothing outside the main thread, where Python handles no signals. At its end,
    raises `error` if a request is still pending.

    Attributes:
        requested: bool. Whether a signal has arrived.
        error: the exception that ends the run: Interrupted after SIGINT, else Preempted.
    """

    def __init__(self):
        self.requested, self.error = False, Preempted
        self._handles_signals = threading.current_thread() is threading.main_thread()

    def _request(self, number, frame):
        self.requested = True
        text = "SIGTERM: saving after the current step."
        if number == signal.SIGINT:
            self.error = Interrupted
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            text = "Ctrl-C: saving after the current step. Press it again to end at once, without saving."
        os.write(2, f"{text}\n".encode())  # logging is not safe in a signal handler

    def __enter__(self):
        if self._handles_signals:
            self._before = {number: signal.signal(number, self._request) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, kind, error, traceback):
        if self._handles_signals:
            for number, before in self._before.items():
                # None: a handler from outside Python, which cannot be restored.
                signal.signal(number, signal.SIG_DFL if before is None else before)
        if self.requested and kind is None:
            raise self.error


class CoordinatedStop(StepCounter):
    """Raises Preempted, Interrupted or Diverged in all workers at the same step, as soon as one of them has a reason.

    The workers agree before every execution, in training and in evaluation.

    Args:
        rundir: the run's directory; its strategy connects the workers.
        preemption: a Preemption.
        checkpoints: the run's Checkpoints.
        start: int. The step at which fit begins.
    """

    async_safe = True  # on JAX, Keras passes logs in a thread, so that the host does not wait for the device

    def __init__(self, rundir: RunDirectory, preemption: Preemption, checkpoints: Checkpoints, start: int = 0):
        super().__init__(start)
        self._rundir, self._preemption, self._checkpoints = rundir, preemption, checkpoints
        self._not_finite = []  # last steps of executions with a non-finite loss

    def on_train_batch_begin(self, batch, logs=None):
        super().on_train_batch_begin(batch, logs)
        self._agree()

    def on_train_batch_end(self, batch, logs=None):
        if not math.isfinite(logs["loss"]):
            self._not_finite.append(self.step_after(batch + 1))

    def on_test_batch_begin(self, batch, logs=None):
        self._agree()

    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, logs)
        self._check_numbers()

    def _agree(self):
        if self._rundir.strategy.any(self._preemption.requested or self._diverged()):
            self._check_numbers()
            raise self._preemption.error

    def _diverged(self):
        return bool(self._not_finite or self._checkpoints.diverged)

    def _check_numbers(self):
        if not self._rundir.strategy.any(self._diverged()):
            return
        self._checkpoints.wait()  # the pending checkpoint may be the last good one
        if self._checkpoints.diverged and not self._not_finite:
            raise self._checkpoints.diverged
        what = "The loss or the weights of another worker are not finite."
        if self._not_finite:
            last, steps = min(self._not_finite), self.model.steps_per_execution
            what = (
                "The loss is not finite"
                f" {f'at step {last}' if steps == 1 else f'within the {steps} steps up to {last}'}."
            )
        raise Diverged(what, self._rundir.last_checkpoint())
