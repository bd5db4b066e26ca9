"""Measures that cost more than an evaluation, taken now and then within fit."""

from keras_vit.training.callbacks import CountsSteps, swap_averages
from keras_vit.training.wrapping import averaging


class Periodic(CountsSteps):
    """Adds measures of the model to the logs of some evaluations, and so to metrics.jsonl and TensorBoard.

    They are taken behind the evaluation (the end of Keras' epoch) at every multiple of `every` steps, and behind the last one: with
    the averaged weights, where the optimizer keeps averages. A run that resumes takes them at the same steps. Callbacks that log
    have to stand behind this one; `train` sees to it.

    Args:
        measure: the step -> {name: number}. Every worker calls it, at the same steps.
        every: a multiple of the steps between two evaluations.
        total: the run's last step.
        start: the step at which fit begins.
    """

    def __init__(self, measure, every, total, start=0):
        super().__init__(start)
        self._measure, self._every, self._total = measure, every, total

    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, logs)
        if self.step % self._every == 0 or self.step == self._total:
            logs.update(self._measured())

    def _measured(self):
        if averaging(self.model.optimizer):
            swap_averages(self.model)
            try:
                return self._measure(self.step)
            finally:
                swap_averages(self.model)
        if hasattr(self.model, "jax_state_sync"):
            self.model.jax_state_sync()
        return self._measure(self.step)
