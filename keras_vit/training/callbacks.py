"""What a run does beside its steps: a log of metrics, TensorBoard, averaged weights in evaluation. Checkpoints are in saving.py."""

import time

import keras
from absl import logging

from keras_vit.training.wrapping import averaging


class CountsSteps(keras.callbacks.Callback):
    """Knows the run's step, which fit does not tell when it resumes. It serves several calls of fit, one after another.

    Attributes:
        step: how many steps lie behind the model's state; `start` is the step at which fit begins.
    """

    def __init__(self, start=0):
        super().__init__()
        self.step = self._epoch_start = self._next = start

    def step_after(self, batches):
        """The run's step after so many batches of this epoch, or at the epoch's end, where its last execution is a shorter one."""
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


class MetricsLog(CountsSteps):
    """Appends a record an epoch to metrics.jsonl: step, epoch, learning rate, images a second, and Keras' metrics."""

    async_safe = True

    def __init__(self, run, batch_size, start=0):
        super().__init__(start)
        self.run, self.batch_size = run, batch_size

    def on_epoch_begin(self, epoch, logs=None):
        super().on_epoch_begin(epoch, logs)
        self._began = time.perf_counter()
        self._trained = 0.0

    def on_train_batch_end(self, batch, logs=None):
        self._trained = time.perf_counter() - self._began  # evaluation, which follows the last batch, is not counted

    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, logs)
        images = (self.step - self._epoch_start) * self.batch_size
        record = {
            "step": self.step,
            "epoch": epoch + 1,
            "learning_rate": float(self.model.optimizer.learning_rate),
            "images_per_second": round(images / max(self._trained, 1e-9), 2),
            **{name: float(value) for name, value in (logs or {}).items()},
        }
        self.run.append_metrics(record)


class TensorBoard(CountsSteps):
    """Writes an epoch's metrics for TensorBoard, training's and evaluation's as two runs, at the run's step.

    A disk that refuses them costs a warning, where Keras' own callback would end the run.
    """

    def __init__(self, run, start=0):
        super().__init__(start)
        self.run = run
        self._writers = {}

    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, logs)
        if not self.run.strategy.chief:
            return
        evaluation = {name.removeprefix("val_"): value for name, value in logs.items() if name.startswith("val_")}
        training = {name: value for name, value in logs.items() if not name.startswith("val_")}
        self._write("train", {**training, "learning_rate": float(self.model.optimizer.learning_rate)})
        self._write("validation", evaluation)

    def _write(self, name, values):
        import tensorflow as tf

        try:
            if name not in self._writers:
                self._writers[name] = tf.summary.create_file_writer(str(self.run.path / "tensorboard" / name))
            with self._writers[name].as_default(self.step):
                for key, value in values.items():
                    tf.summary.scalar(key, value)
            self._writers[name].flush()
        except (OSError, tf.errors.OpError) as error:
            logging.warning("TensorBoard's %s metrics of step %d could not be written: %s", name, self.step, error)


def swap_averages(model):
    """Exchanges the model's trainable weights with their averages in the optimizer, bit for bit; again undoes it.

    Raises:
        ValueError: if no optimizer of the model's keeps averages.
    """
    optimizer = averaging(model.optimizer)
    if optimizer is None:
        raise ValueError(f"{model.name}'s optimizer keeps no averages: use use_ema=True, or StochasticWeightAveraging around it.")
    if hasattr(model, "jax_state_sync"):
        model.jax_state_sync()
    for variable, average in zip(optimizer._trainable_variables, optimizer._model_variables_moving_average):
        if average is not None:
            current = variable.numpy()
            variable.assign(average)
            average.assign(current)


class EvaluateAverage(keras.callbacks.Callback):
    """Evaluates within fit with the averages of the weights, and trains on with the weights themselves.

    Needs an optimizer with use_ema=True, or a StochasticWeightAveraging. After an evaluation that was broken off, call `undo`.
    """

    _swapped = False

    def on_test_begin(self, logs=None):
        swap_averages(self.model)
        self._swapped = True

    def on_test_end(self, logs=None):
        self.undo()

    def undo(self):
        """Puts the weights themselves back, where the averages are in their place."""
        if self._swapped:
            swap_averages(self.model)
            self._swapped = False
