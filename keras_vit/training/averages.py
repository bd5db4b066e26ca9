"""Evaluating and saving with the averaged weights instead of the weights."""

import keras

from keras_vit.optim.wrapper import averaging


def swap_averages(model: keras.Model) -> None:
    """Exchanges the model's trainable weights with their averages in the optimizer, bit for bit; a second call undoes
    it.

    Raises:
        ValueError: if the model's optimizer keeps no averages.
    """
    optimizer = averaging(model.optimizer)
    if optimizer is None:
        raise ValueError(
            f"{model.name}'s optimizer keeps no averages: set use_ema=True, or wrap it in StochasticWeightAveraging."
        )
    if hasattr(model, "jax_state_sync"):
        model.jax_state_sync()
    for variable, average in zip(optimizer._trainable_variables, optimizer._model_variables_moving_average):
        if average is not None:
            current = variable.numpy()
            variable.assign(average)
            average.assign(current)


class EvaluateAverage(keras.callbacks.Callback):
    """Within fit, evaluates with the averages of the weights and continues training with the weights themselves.

    Needs an optimizer with use_ema=True, or a StochasticWeightAveraging. After an evaluation that was interrupted, call
    `undo`.
    """

    _swapped = False

    def on_test_begin(self, logs=None):
        swap_averages(self.model)
        self._swapped = True

    def on_test_end(self, logs=None):
        self.undo()

    def undo(self) -> None:
        """Puts the weights back if the averages are in their place."""
        if self._swapped:
            swap_averages(self.model)
            self._swapped = False
