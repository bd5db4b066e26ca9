"""Running training metrics of an interrupted epoch, kept so that the resumed epoch logs the same record."""

from collections.abc import Sequence
from typing import Any

import keras
from absl import logging

from keras_vit.runs.loop.callbacks import StepCounter
from keras_vit.runs.saving import run_state
from keras_vit.runs.saving.run_state import RunningMetrics
from keras_vit.runs.saving.rundir import RunDirectory


def _beginning(step, every):
    """The first step of the epoch, of `every` steps, that contains or ends at `step`."""
    return (step - 1) // every * every


def build_metrics(model: keras.Model, data: Any) -> None:
    """Creates a compiled model's metric variables from a tf.data.Dataset of training batches.

    On TensorFlow and one device, Keras would create them only in the first step.
    """
    if keras.backend.backend() == "tensorflow" and model._distribute_strategy is None and hasattr(data, "element_spec"):
        model._symbolic_build(data_batch=data.element_spec)


class KeepRunningMetrics(StepCounter):
    """Provides the running training metrics to checkpoints, and restores them when a run resumes.

    Args:
        restored: RunningMetrics of the checkpoint, or None.
        every: int. The steps of an epoch.
        start: int. The step at which fit begins.
    """

    def __init__(self, restored: RunningMetrics | None, every: int, start: int = 0):
        super().__init__(start)
        self._restored, self._every = restored, every
        self._before_evaluation = None

    def current(self) -> RunningMetrics:
        """The training metrics at the current step, also during evaluation. Every worker must call this."""
        if self._before_evaluation is not None:
            return self._before_evaluation
        return run_state.collect_metrics(self.model, self._epoch_start // self._every * self._every)

    def on_epoch_begin(self, epoch, logs=None):
        super().on_epoch_begin(epoch, logs)
        self._before_evaluation = None
        if self.step % self._every and not self._restore():
            logging.info("The next record of metrics.jsonl averages the training metrics from step %d on.", self.step)

    def on_test_begin(self, logs=None):
        super().on_test_begin(logs)
        self._before_evaluation = run_state.collect_metrics(self.model, _beginning(self.step, self._every))

    def _restore(self):
        restored, self._restored = self._restored, None
        fits = restored is not None and restored.since == _beginning(self.step, self._every)
        return fits and run_state.restore_metrics(self.model, restored)


class _RestoreAndRead(keras.callbacks.Callback):
    """Restores running metrics when an evaluation begins, and reads them into `logs`; Keras then resets them."""

    def __init__(self, running):
        super().__init__()
        self._running, self.logs = running, {}

    def on_test_begin(self, logs=None):
        if run_state.restore_metrics(self.model, self._running):
            self.logs = {name: float(value) for name, value in self.model.get_metrics_result().items()}


def evaluation_is_missing(rundir: RunDirectory, start: int, total: int, every: int) -> bool:
    """Whether the run stopped while evaluating at step `start`, which has no record; the same in all workers."""
    if start == 0 or start % every and start != total:
        return False
    running = rundir.running
    missing = running is not None and running.since == _beginning(start, every)
    return rundir.strategy.any(missing and not any(record["step"] == start for record in rundir.metrics()))


def repeat_evaluation(
    model: keras.Model,
    evaluation: Any,
    callbacks: Sequence[keras.callbacks.Callback],
    running: RunningMetrics,
    epoch: int,
    verbose: int,
) -> None:
    """Evaluates as `fit` does at an epoch's end, and logs through the callbacks with the epoch's metrics, `running`."""
    training = _RestoreAndRead(running)
    if verbose:
        logging.info("Evaluating first: the last state was saved before its evaluation had ended.")
    measures = model.evaluate(evaluation, callbacks=[training, *callbacks], return_dict=True, verbose=verbose)
    logs = {**training.logs, **{f"val_{name}": value for name, value in measures.items()}}
    logs = dict(sorted(logs.items()))  # as Keras passes them in fit
    for callback in callbacks:
        callback.on_epoch_end(epoch, logs)
