"""Callbacks of a run: step counting, progress, and metrics in metrics.jsonl and TensorBoard.

See checkpointing.py for checkpoints.
"""

import math
import time

import keras
from absl import logging

from keras_vit.io.progress import time_text
from keras_vit.runs.saving.rundir import RunDirectory

_SAY_FIRST, _SAY_EVERY = 3.0, 60.0  # seconds


def steps_text(first: int, last: int) -> str:
    """ "Step 7", "Steps 14 to 26"."""
    return f"Step {first:,}" if first == last else f"Steps {first:,} to {last:,}"


class StepCounter(keras.callbacks.Callback):
    """Counts the run's steps, also over several calls of fit; Keras restarts the count when a run resumes.

    Args:
        start: int. The step at which fit begins.

    Attributes:
        step: int. The number of steps that led to the model's present state.
    """

    def __init__(self, start: int = 0):
        super().__init__()
        self.step = self._epoch_start = self._next = start

    def step_after(self, batches: int) -> int:
        """The run's step after `batches` of the epoch, at most its last one: the last execution may be shorter."""
        return self._epoch_start + min(batches, self.params.get("steps") or batches)

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch_start = self.step

    def on_train_batch_begin(self, batch, logs=None):
        self.step = self._epoch_start + batch
        self._next = self.step_after(batch + self.model.steps_per_execution)

    def on_test_begin(self, logs=None):
        self.step = self._next

    def on_epoch_end(self, epoch, logs=None):
        self.step = self._next


class StepLog(StepCounter):
    """Logs how long the whole run will take, after a few seconds, and then progress once a minute.

    Keras' bar needs a terminal and covers one epoch, and its line per epoch may take an hour. The estimate excludes
    evaluations.

    Args:
        total: int. The run's last step.
        start: int. The step at which fit begins.
        every_minute: bool. False without Keras' bar.
    """

    async_safe = True

    def __init__(self, total: int, start: int = 0, every_minute: bool = True):
        super().__init__(start)
        self._total, self._every_minute = total, every_minute
        self._steps, self._seconds, self._next_at = 0, 0.0, _SAY_FIRST

    def on_epoch_begin(self, epoch, logs=None):
        super().on_epoch_begin(epoch, logs)
        self._last = None

    def on_train_batch_end(self, batch, logs=None):
        (before, then), self._last = self._last or (None, None), (self.step_after(batch + 1), time.monotonic())
        if before is None:  # an epoch's first step may include compilation: time the next ones
            return
        step, now = self._last
        self._steps, self._seconds = self._steps + step - before, self._seconds + now - then
        if self._seconds >= self._next_at:
            self._next_at = self._seconds + _SAY_EVERY if self._every_minute else math.inf
            measures = ", ".join(f"{name} {float(value):.4g}" for name, value in (logs or {}).items())
            left = time_text(self._seconds / self._steps * (self._total - step))
            logging.info("Step %s of %s, %s left: %s.", f"{step:,}", f"{self._total:,}", left, measures)


class StepBar(keras.callbacks.ProgbarLogger):
    """Keras' progress bar under a title that names the steps: Keras would count the evaluations as epochs of the data.

    Args:
        total: int. The run's last step.
        start: int. The step at which fit begins.
    """

    def __init__(self, total: int, start: int = 0):
        super().__init__()
        self._total, self._step = total, start

    def set_params(self, params):
        super().set_params({**params, "epochs": 1})  # no title of Keras' own

    def on_epoch_begin(self, epoch, logs=None):
        first, self._step = self._step + 1, self._step + (self.target or 0)
        print(f"{steps_text(first, self._step)} of {self._total:,}", flush=True)
        super().on_epoch_begin(epoch, logs)


class MetricsLog(StepCounter):
    """Appends a record per epoch to metrics.jsonl: step, epoch, learning rate, images per second, and Keras' metrics.

    The speed covers this process's steps; records without any have no speed.

    Args:
        rundir: the run's directory.
        batch_size: int. The global batch, for the images per second.
        start: int. The step at which fit begins.
    """

    async_safe = True

    def __init__(self, rundir: RunDirectory, batch_size: int, start: int = 0):
        super().__init__(start)
        self.rundir, self.batch_size = rundir, batch_size
        self._trained = 0.0

    def on_epoch_begin(self, epoch, logs=None):
        super().on_epoch_begin(epoch, logs)
        self._began = time.perf_counter()
        self._trained = 0.0

    def on_train_batch_end(self, batch, logs=None):
        self._trained = time.perf_counter() - self._began  # excludes the evaluation after the last batch

    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, logs)
        images = (self.step - self._epoch_start) * self.batch_size
        record = {
            "step": self.step,
            "epoch": epoch + 1,
            "learning_rate": float(self.model.optimizer.learning_rate),
            **({"images_per_second": round(images / max(self._trained, 1e-9), 2)} if images else {}),
            **{name: float(value) for name, value in (logs or {}).items()},
        }
        self.rundir.append_metrics(record)


class TensorBoard(StepCounter):
    """Writes each epoch's training and validation metrics for TensorBoard, as two runs, at the run's step.

    A failed write logs a warning; Keras' own callback would end the run.
    """

    def __init__(self, rundir: RunDirectory, start: int = 0):
        super().__init__(start)
        self.rundir = rundir
        self._writers = {}

    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, logs)
        if not self.rundir.strategy.chief:
            return
        evaluation = {name.removeprefix("val_"): value for name, value in logs.items() if name.startswith("val_")}
        training = {name: value for name, value in logs.items() if not name.startswith("val_")}
        self._write("train", {**training, "learning_rate": float(self.model.optimizer.learning_rate)})
        self._write("validation", evaluation)

    def _write(self, name, values):
        import tensorflow as tf

        try:
            if name not in self._writers:
                self._writers[name] = tf.summary.create_file_writer(str(self.rundir.path / "tensorboard" / name))
            with self._writers[name].as_default(self.step):
                for key, value in values.items():
                    tf.summary.scalar(key, value)
            self._writers[name].flush()
        except (OSError, tf.errors.OpError) as error:
            logging.warning("TensorBoard's %s metrics of step %d could not be written: %s", name, self.step, error)
