"""The number of steps left in an epoch, for executions of several steps, and whether their function is up to date."""

import weakref

import keras

# {model: {"train", "test" or "predict": the settings its function was made with}}.
_MADE_WITH: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


class Remaining(keras.callbacks.Callback):
    """Sets the model's number of steps left in the epoch, so that the last execution is not a whole one.

    On JAX an epoch may end with its data, and the number of batches need not be known.

    Args:
        validates: for fit's evaluations on validation data: the parameters lack their number of steps.
    """

    def __init__(self, validates: bool):
        super().__init__()
        self._validates = validates

    def _set(self, steps, batch):
        if steps is None and keras.backend.backend() == "jax":
            self.model._remaining = None
            return
        if steps is None:
            raise ValueError(
                "With steps_per_execution > 1 the number of batches must be known: pass steps_per_epoch (steps,"
                " validation_steps), or use dataset.apply(tf.data.experimental.assert_cardinality(n))."
            )
        self.model._remaining = steps - batch

    def on_train_batch_begin(self, batch, logs=None):
        self._set(self.params.get("steps"), batch)

    def on_test_batch_begin(self, batch, logs=None):
        self._set(self.model._eval_epoch_iterator.num_batches if self._validates else self.params.get("steps"), batch)


def is_outdated(model: keras.Model, function: str, *settings) -> bool:
    """Whether settings have changed since "train", "test" or "predict" was made: the function keeps the old ones.

    Otherwise Keras would take other batches from the data than the function does, and leave out the rest.
    """
    settings = (model.steps_per_execution, model.run_eagerly, model.jit_compile, *settings)
    made_with = _MADE_WITH.setdefault(model, {})
    before, made_with[function] = made_with.get(function), settings
    return before != settings
