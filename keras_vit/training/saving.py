"""Checkpoints beside the training: a thread writes while the next steps run, and a full disk does not end the run."""

import concurrent.futures

from absl import logging

from keras_vit.training import state
from keras_vit.training.callbacks import CountsSteps
from keras_vit.training.faults import Diverged


class NotSaved(OSError):
    """The state at the end of training could not be written."""


class Checkpoints(CountsSteps):
    """Saves to the run directory whenever a multiple of `every` steps is passed; call `save` after fit. A context.

    The state is copied to the host between two executions, and written in a thread: one write at a time. Training waits up to
    `patience` seconds for it, so that a run whose writes are quick never has more than `every` steps to repeat; with longer writes,
    also those taken meanwhile. A write that fails costs a warning: the next multiple tries again. The context's end waits.

    Args:
        run: the RunDirectory.
        every: steps from one checkpoint to the next.
        keep: how many of the newest stay.
        start: the step at which fit begins, whose state is on disk where it is not 0.
        patience: in seconds.

    Attributes:
        diverged: the Diverged error of a state that was not written because it is not finite, or None.
    """

    def __init__(self, run, every, keep=2, start=0, patience=1.0):
        super().__init__(start)
        self._run, self._every, self._keep, self._patience = run, every, keep, patience
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "checkpoints")
        self._writing = None  # (step, future) of the write under way
        self._asked = self._saved = start
        self.diverged = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.wait()
        self._thread.shutdown()

    def on_train_batch_begin(self, batch, logs=None):
        super().on_train_batch_begin(batch, logs)
        self.wait(0)  # a write that failed is told soon
        if self.step // self._every > self._asked // self._every:
            self._asked = self.step
            if self._run.strategy.chief:
                self.wait()
                arrays = state.collect(self.model)
                self._writing = self.step, self._thread.submit(self._run.save, self.step, arrays, self._keep)
                self.wait(self._patience)

    def wait(self, seconds=None):
        """Waits for the write under way, if there is one, at most so long."""
        if self._writing is None:
            return
        step, write = self._writing
        if not concurrent.futures.wait([write], seconds).done:
            return
        self._writing = None
        try:
            write.result()
            self._saved = step
        except Diverged as error:
            self.diverged = error
        except OSError as error:
            logging.warning(
                "%s could not be written: %s. %s Training goes on, and tries again in %d steps.",
                self._run.checkpoint(step),
                error,
                self._run.last_checkpoint(),
                self._every,
            )

    def save(self):
        """Writes the state at the current step, and returns when it is on disk. To be called in every worker.

        Raises:
            NotSaved: in every worker, if it could not be written.
            Diverged: in every worker, if it is not finite.
        """
        error = self._write_now() if self._run.strategy.chief else None
        diverged = self._run.strategy.any(isinstance(error, Diverged))
        if not self._run.strategy.any(error is not None):
            return
        if diverged:
            raise error or Diverged(f"The state at step {self.step} is not finite.", self._run.last_checkpoint())
        raise NotSaved(
            f"{self._run.checkpoint(self.step)} could not be written: {error or 'the first worker says why'}. "
            f"{self._run.last_checkpoint()} Free some space and run the same command again."
        ) from error

    def _write_now(self):
        """Returns the error that kept the state from the disk, or None."""
        self.wait()
        if self._saved == self.step or self.diverged:
            return self.diverged
        try:
            self._run.save(self.step, state.collect(self.model), self._keep)
            self._saved = self.step
        except (OSError, Diverged) as error:
            return error
