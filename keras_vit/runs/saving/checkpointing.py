"""Checkpoints during training, written in a thread while the next steps run; a full disk does not end the run."""

import concurrent.futures
from collections.abc import Callable

from absl import logging

from keras_vit.runs.loop.callbacks import StepCounter
from keras_vit.runs.saving import run_state
from keras_vit.runs.saving.run_state import Diverged, RunningMetrics
from keras_vit.runs.saving.rundir import RunDirectory


class NotSaved(OSError):
    """The final state could not be written."""


class Checkpoints(StepCounter):
    """A context that saves whenever training passes a multiple of `every` steps; call `save` after fit.

    The state is copied to the host between executions and written in a thread, one write at a time. Training waits up
    to `patience` seconds for a write: a resumed run repeats at most `every` steps, plus those taken during a slower
    write. A failed write logs a warning, and the next multiple tries again. The end of the context waits for the last
    write.

    Args:
        rundir: the run's directory.
        every: int. Steps between checkpoints.
        keep: int. Number of newest checkpoints to keep.
        start: int. The step at which fit begins; unless 0, its state is on disk already.
        patience: float. Seconds.
        running: returns the RunningMetrics to save with the state, in every worker, or None.

    Attributes:
        diverged: the Diverged error of a non-finite state that was not written, or None.
    """

    def __init__(
        self,
        rundir: RunDirectory,
        every: int,
        keep: int = 2,
        start: int = 0,
        patience: float = 1.0,
        running: Callable[[], RunningMetrics] | None = None,
    ):
        super().__init__(start)
        self._running = running or (lambda: None)
        self._rundir, self._every, self._keep, self._patience = rundir, every, keep, patience
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "checkpoints")
        self._write = None  # (step, future) of the write in progress
        self._requested = self._saved = start
        self.diverged: Diverged | None = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            self.wait()
        finally:
            self._thread.shutdown()

    def on_train_batch_begin(self, batch, logs=None):
        super().on_train_batch_begin(batch, logs)
        self.wait(0)  # reports a failed write soon
        if self.step // self._every > self._requested // self._every:
            self._requested = self.step
            running = self._running()
            if self._rundir.strategy.chief:
                self.wait()
                arrays = run_state.collect(self.model)
                self._write = self.step, self._thread.submit(self._rundir.save, self.step, arrays, self._keep, running)
                self.wait(self._patience)

    def wait(self, seconds: float | None = None) -> None:
        """Waits for the pending write, at most `seconds` (None: without limit)."""
        if self._write is None:
            return
        step, future = self._write
        if not concurrent.futures.wait([future], seconds).done:
            return
        self._write = None
        try:
            future.result()
            self._saved = step
        except Diverged as error:
            self.diverged = error
        except OSError as error:
            logging.warning(
                "%s could not be written: %s. %s Training continues, and tries again in %d steps.",
                self._rundir.checkpoint(step),
                error,
                self._rundir.last_checkpoint(),
                self._every,
            )

    def save(self) -> None:
        """Writes the current state, and returns when it is on disk. Every worker must call this.

        Raises:
            NotSaved: in every worker, if it could not be written.
            Diverged: in every worker, if it is not finite.
        """
        running = self._running() if self.model is not None else None  # None: nothing was left to train
        error = self._save_now(running) if self._rundir.strategy.chief else None
        diverged = self._rundir.strategy.any(isinstance(error, Diverged))
        if not self._rundir.strategy.any(error is not None):
            return
        if diverged:
            raise error or Diverged(f"The state at step {self.step} is not finite.", self._rundir.last_checkpoint())
        raise NotSaved(
            f"{self._rundir.checkpoint(self.step)} could not be written:"
            f" {error or 'see the error of the first worker'}. {self._rundir.last_checkpoint()} Free some space and run"
            " the same command again."
        ) from error

    def _save_now(self, running):
        """Returns the error that prevented the write, or None."""
        self.wait()
        if self._saved == self.step or self.diverged:
            return self.diverged
        try:
            self._rundir.save(self.step, run_state.collect(self.model), self._keep, running)
            self._saved = self.step
        except (OSError, Diverged) as error:
            return error
        return None
