"""What a run does beside its steps: checkpoints, a log of metrics, averaged weights in evaluation."""

import time

import keras


class _CountsSteps(keras.callbacks.Callback):
    """Knows the run's step, which fit does not tell when it resumes; `start` is the step at which fit begins."""

    def __init__(self, start=0):
        super().__init__()
        self.step = self._epoch_start = start

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch_start = self.step

    def on_train_batch_end(self, batch, logs=None):
        self.step = self._epoch_start + batch + 1


class Checkpoints(_CountsSteps):
    """Saves to the run directory whenever a multiple of `every` steps is passed, and at the end; keeps the newest `keep`."""

    def __init__(self, run, every, keep=2, start=0):
        super().__init__(start)
        self.run, self.every, self.keep = run, every, keep
        self._saved = start

    def _save(self):
        if self.step > self._saved:
            self.run.save(self.model, self.step, self.keep)
            self._saved = self.step

    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch, logs)
        if self.step // self.every > self._saved // self.every:
            self._save()

    def on_train_end(self, logs=None):
        self._save()


class MetricsLog(_CountsSteps):
    """Appends a record an epoch to metrics.jsonl: step, epoch, learning rate, images a second, and Keras' metrics."""

    def __init__(self, run, batch_size, start=0):
        super().__init__(start)
        self.run, self.batch_size = run, batch_size

    def on_epoch_begin(self, epoch, logs=None):
        super().on_epoch_begin(epoch, logs)
        self._began = time.perf_counter()
        self._trained = 0.0

    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch, logs)
        self._trained = time.perf_counter() - self._began  # evaluation, which follows the last batch, is not counted

    def on_epoch_end(self, epoch, logs=None):
        images = (self.step - self._epoch_start) * self.batch_size
        record = {
            "step": self.step,
            "epoch": epoch + 1,
            "learning_rate": float(self.model.optimizer.learning_rate),
            "images_per_second": round(images / max(self._trained, 1e-9), 2),
            **{name: float(value) for name, value in (logs or {}).items()},
        }
        self.run.append_metrics(record)


def swap_averages(model):
    """Exchanges the model's trainable weights with their moving averages in the optimizer, bit for bit; again undoes it."""
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    if hasattr(model, "jax_state_sync"):
        model.jax_state_sync()
    for variable, average in zip(optimizer._trainable_variables, optimizer._model_variables_moving_average):
        if average is not None:
            current = variable.numpy()
            variable.assign(average)
            average.assign(current)


class EvaluateAverage(keras.callbacks.Callback):
    """Evaluates within fit with the moving averages of the weights, and trains on with the weights themselves.

    Needs an optimizer with use_ema=True.
    """

    def on_test_begin(self, logs=None):
        swap_averages(self.model)

    def on_test_end(self, logs=None):
        swap_averages(self.model)
