"""What ends a run early: preemption, a lost worker, numbers that are no longer finite. Every worker stops after the same execution.

A run that is told to leave (SIGTERM) saves its state and exits with code 75, EX_TEMPFAIL in sysexits.h: "start me again".
"""

import math
import os
import signal
import threading

from keras_vit.training.callbacks import CountsSteps

RESTART = 75  # os.EX_TEMPFAIL, which Windows lacks


class Preempted(SystemExit):
    """Ends the process with exit code 75: its state is saved, and the same command goes on with the very next step."""

    def __init__(self):
        super().__init__(RESTART)


class Diverged(FloatingPointError):
    """The loss or the weights are not finite any more.

    Args:
        what: a sentence that says what, and at which step.
        last: a sentence that names the last good checkpoint.
    """

    def __init__(self, what, last):
        super().__init__(
            f"{what} {last} The same command would end here again: use a new --workdir with a lower learning rate, a longer warm-up, "
            "gradient clipping (clip_norm=1) or another seed, and look at the data where that does not help."
        )


class LostWorker(SystemExit):
    """Ends the process with exit code 75: another worker has gone, and all of them must be started again."""

    def __init__(self):
        super().__init__(RESTART)


def is_lost_worker(error):
    """Whether TensorFlow's error says that a sum over workers was not to be had."""
    return type(error).__module__.startswith("tensorflow") and "Collective ops is aborted" in str(error)


class Preemption:
    """A context in which SIGTERM sets `requested` instead of ending the process.

    Outside the main thread, where Python takes no signals, it does nothing. A request that nobody has heeded is raised as Preempted
    at the end.
    """

    def __init__(self):
        self.requested = False
        self._ours = threading.current_thread() is threading.main_thread()

    def _request(self, number, frame):
        self.requested = True
        os.write(2, b"SIGTERM: saving after the current execution.\n")  # logging is not safe inside a signal's handler

    def __enter__(self):
        if self._ours:
            self._before = signal.signal(signal.SIGTERM, self._request)
        return self

    def __exit__(self, kind, error, traceback):
        if self._ours:
            # None: a handler that was not installed from Python, which cannot be put back.
            signal.signal(signal.SIGTERM, signal.SIG_DFL if self._before is None else self._before)
        if self.requested and kind is None:
            raise Preempted


class Watch(CountsSteps):
    """Raises Preempted or Diverged in all workers alike, when one of them has reason to.

    It looks before each execution, of training and of evaluation, while no worker is inside one.

    Args:
        run: the RunDirectory, whose strategy the workers agree by.
        preemption: a Preemption.
        checkpoints: the run's Checkpoints.
        start: the step at which fit begins.
    """

    async_safe = True  # with JAX, Keras hands the logs over in a thread, so that the host need not wait for the device

    def __init__(self, run, preemption, checkpoints, start=0):
        super().__init__(start)
        self._run, self._preemption, self._checkpoints = run, preemption, checkpoints
        self._not_finite = []  # the last steps of executions after which the loss was not

    def on_train_batch_begin(self, batch, logs=None):
        super().on_train_batch_begin(batch, logs)
        self._look()

    def on_train_batch_end(self, batch, logs=None):
        if not math.isfinite(logs["loss"]):
            self._not_finite.append(self.step_after(batch + 1))

    def on_test_batch_begin(self, batch, logs=None):
        self._look()

    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, logs)
        self._check_numbers()

    def _look(self):
        if self._run.strategy.any(self._preemption.requested or self._diverged()):
            self._check_numbers()
            raise Preempted

    def _diverged(self):
        return bool(self._not_finite or self._checkpoints.diverged)

    def _check_numbers(self):
        if not self._run.strategy.any(self._diverged()):
            return
        self._checkpoints.wait()  # the checkpoint that is being written may be the last good one
        if self._checkpoints.diverged and not self._not_finite:
            raise self._checkpoints.diverged
        what = "The loss or the weights of another worker are not finite."
        if self._not_finite:
            last, steps = min(self._not_finite), self.model.steps_per_execution
            what = f"The loss is not finite {f'at step {last}' if steps == 1 else f'within the {steps} steps up to {last}'}."
        raise Diverged(what, self._run.last_checkpoint())
