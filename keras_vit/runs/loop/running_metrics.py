"""The training metrics of an epoch that is interrupted: they go on adding up where they were, so that its record is the
same.
"""

from collections.abc import Sequence
from typing import Any

import keras
from absl import logging

from keras_vit.runs.loop.callbacks import StepCounter
from keras_vit.runs.saving import state
from keras_vit.runs.saving.rundir import RunDirectory
from keras_vit.runs.saving.state import RunningMetrics


def _beginning(step, every):
    """The first step of the epoch of `every` steps that ends at `step`, or that `step` is within."""
    return (step - 1) // every * every


def build_metrics(model: keras.Model, data: Any) -> None:
    """Creates the variables of a compiled model's metrics. On TensorFlow and one device Keras would do so in the first
    step only.

    Args:
        data: a tf.data.Dataset of training batches.
    """
    if keras.backend.backend() == "tensorflow" and model._distribute_strategy is None and hasattr(data, "element_spec"):
        model._symbolic_build(data_batch=data.element_spec)


class KeepRunningMetrics(StepCounter):
    """Has the running training metrics ready for checkpoints, and sets them to those of the checkpoint that a run
    resumes from.

    Args:
        restored: of that checkpoint, or None.
        every: the number of steps of an epoch.
        start: the step at which fit begins.
    """

    def __init__(self, restored: RunningMetrics | None, every: int, start: int = 0):
        super().__init__(start)
        self._restored, self._every = restored, every
        self._before_evaluation = None

    def current(self) -> RunningMetrics:
        """Those of training at the current step, in an evaluation too. To be called in every worker."""
        if self._before_evaluation is not None:
            return self._before_evaluation
        return state.collect_metrics(self.model, self._epoch_start // self._every * self._every)

    def on_epoch_begin(self, epoch, logs=None):
        super().on_epoch_begin(epoch, logs)
        self._before_evaluation = None
        if self.step % self._every and not self._restore():
            logging.info("The next record of metrics.jsonl averages the training metrics from step %d on.", self.step)

    def on_test_begin(self, logs=None):
        super().on_test_begin(logs)
        self._before_evaluation = state.collect_metrics(self.model, _beginning(self.step, self._every))

    def _restore(self):
        restored, self._restored = self._restored, None
        fits = restored is not None and restored.since == _beginning(self.step, self._every)
        return fits and state.restore_metrics(self.model, restored)


class _RestoreAndRead(keras.callbacks.Callback):
    """Restores running metrics when an evaluation begins, and reads them into `logs`; Keras then resets them."""

    def __init__(self, running):
        super().__init__()
        self._running, self.logs = running, {}

    def on_test_begin(self, logs=None):
        if state.restore_metrics(self.model, self._running):
            self.logs = {name: float(value) for name, value in self.model.get_metrics_result().items()}


def evaluation_is_missing(rundir: RunDirectory, start: int, total: int, every: int) -> bool:
    """Whether the run was stopped within the evaluation of step `start`, so that this step has no record. The same in
    all workers.
    """
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
    """Evaluates as `fit` does at the end of an epoch, and has the callbacks log it with the epoch's training metrics,
    `running`.
    """
    training = _RestoreAndRead(running)
    measures = model.evaluate(evaluation, callbacks=[training, *callbacks], return_dict=True, verbose=verbose)
    logs = {**training.logs, **{f"val_{name}": value for name, value in measures.items()}}
    for callback in callbacks:
        callback.on_epoch_end(epoch, logs)
