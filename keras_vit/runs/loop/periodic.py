"""Measures that cost more than an evaluation, taken at intervals within fit."""

from collections.abc import Callable

from keras_vit.optim.wrapper import averaging
from keras_vit.runs.loop.callbacks import StepCounter
from keras_vit.training.averages import swap_averages


class Periodic(StepCounter):
    """Adds measures of the model to the logs of some evaluations, and thereby to metrics.jsonl and TensorBoard.

    They are taken after the evaluation (the end of Keras' epoch) at every multiple of `every` steps, and after the last
    one, with the averaged weights if the optimizer keeps averages. A resumed run takes them at the same steps.
    Callbacks that log must come after this one in the list; `train` sees to it.

    Args:
        measure: step -> {name: number}. Every worker calls it, at the same steps.
        every: a multiple of the steps between two evaluations.
        total: the last step of the run.
        start: the step at which fit begins.
    """

    def __init__(self, measure: Callable[[int], dict[str, float]], every: int, total: int, start: int = 0):
        super().__init__(start)
        self._measure, self._every, self._total = measure, every, total

    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, logs)
        if self.step % self._every == 0 or self.step == self._total:
            logs.update(self.measures())

    def measures(self) -> dict[str, float]:
        """The measures of the model as it is now."""
        if averaging(self.model.optimizer):
            swap_averages(self.model)
            try:
                return self._measure(self.step)
            finally:
                swap_averages(self.model)
        if hasattr(self.model, "jax_state_sync"):
            self.model.jax_state_sync()
        return self._measure(self.step)
