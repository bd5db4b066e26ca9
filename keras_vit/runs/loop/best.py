"""Which evaluation of a run is the best so far: for early stopping, and to deliver its weights instead of the last."""

import math

import keras
from absl import logging

from keras_vit.io.suggest import counted
from keras_vit.runs.loop.callbacks import StepCounter
from keras_vit.runs.saving import run_state
from keras_vit.runs.saving.rundir import RunDirectory
from keras_vit.tasks.task import Score


class Best(StepCounter):
    """Follows the task's score from one evaluation to the next, in every worker.

    It starts from metrics.jsonl, so that a resumed run continues like an uninterrupted one. In the list of
    callbacks it comes before those that log, so that an evaluation in metrics.jsonl has its weights.

    Args:
        rundir: the RunDirectory.
        score: the task's Score. A lower loss breaks ties.
        keep: bool. Whether to save the weights of the best evaluation, as they were evaluated.
        patience: int or None. Steps without a better evaluation after which the run ends.
        initial: bool. Whether the initial weights are evaluated, too, as those of step 0.
        start: int. The step at which fit begins.

    Attributes:
        best_step: the step of the best evaluation; None before the first with a number as its score.
    """

    def __init__(
        self,
        rundir: RunDirectory,
        score: Score,
        keep: bool,
        patience: int | None,
        initial: bool = False,
        start: int = 0,
    ):
        super().__init__(start)
        self._rundir, self._score, self._keep, self._patience, self._initial = rundir, score, keep, patience, initial
        self._rank, self.best_step, self._evaluated = None, None, set()
        saved = rundir.best() if keep else None
        for record in rundir.metrics():
            if record["step"] <= start and score.curve in record:
                self._evaluated.add(record["step"])
                if self._improves(record) and (saved is None or record["step"] in saved):
                    self._rank, self.best_step = score.rank_record(record), record["step"]

    @property
    def starts(self) -> bool:
        """Whether the initial weights are still to be evaluated."""
        return self._initial and self.step == 0 and not self._evaluated

    @property
    def exhausted(self) -> bool:
        """Whether the run should end, since no evaluation was better for `patience` steps."""
        if self._patience is None or self.best_step is None:
            return False
        return max(self._evaluated) - self.best_step >= self._patience

    def _improves(self, record):
        rank = self._score.rank_record(record)
        return not math.isnan(rank[0]) and (self._rank is None or rank > self._rank)

    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, logs)
        self._evaluated.add(self.step)
        if self._improves(logs) and (not self._keep or self._saved()):
            self._rank, self.best_step = self._score.rank_record(logs), self.step
        if self.exhausted:
            self.model.stop_training = True

    def _saved(self):
        """Saves the current weights; returns, in every worker, whether that worked."""
        error = None
        if self._rundir.strategy.chief:
            try:
                self._rundir.save_best(self.step, run_state.collect_weights(self.model))
            except OSError as reason:
                error = reason
                logging.warning("The weights of step %d, the best so far, could not be saved: %s.", self.step, error)
        return not self._rundir.strategy.any(error is not None)

    def deliver(self, model: keras.Model) -> int:
        """Puts the weights of the best evaluation into the model; returns their step."""
        run_state.restore_weights(model, self._rundir.load_best(self.best_step))
        return self.best_step

    def sentence(self, split: str) -> str:
        """A sentence on how the delivered weights were chosen."""
        evaluations = counted(len(self._evaluated), "evaluation")
        return (
            f"The weights are those of step {self.best_step:,}, the best of {evaluations} by {self._score.title} on"
            f" {split}. These figures on {split} are therefore optimistic: measure the model on images that had no part"
            " in this choice."
        )
