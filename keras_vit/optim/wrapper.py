"""Optimizers that wrap another one, as Keras' LossScaleOptimizer does: what Lookahead and weight averaging share."""

from typing import Any

import keras
from keras import ops

# Options that only the outermost optimizer may have, and what to do instead of setting them on an inner one.
_NOT_INSIDE = {
    "use_ema": "Average outside: Lookahead(inner, use_ema=True); StochasticWeightAveraging keeps averages of its own.",
    "gradient_accumulation_steps": "Set model.micro_batches = k before fit instead.",
    "loss_scale_factor": "Leave it out: under mixed_float16, compile wraps the whole in a LossScaleOptimizer.",
}


def innermost(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """The optimizer that takes the steps: this one, or the innermost that it wraps."""
    while hasattr(optimizer, "inner_optimizer"):
        optimizer = optimizer.inner_optimizer
    return optimizer


def averaging(optimizer: keras.optimizers.Optimizer | None) -> keras.optimizers.Optimizer | None:
    """The optimizer that keeps averages of the weights: this one, one that it wraps, or None."""
    while optimizer is not None and not optimizer.use_ema:
        optimizer = getattr(optimizer, "inner_optimizer", None)
    return optimizer


def batch_counter(optimizer: keras.optimizers.Optimizer) -> keras.Variable:
    """The variable that counts the batches that an optimizer has taken.

    It is not simply the first one: a LossScaleOptimizer has a counter of its own that never moves. Nor is it
    `iterations`, which under gradient_accumulation_steps counts updates, and is no variable.
    """
    return innermost(optimizer)._iterations


def batches_taken(optimizer: keras.optimizers.Optimizer, values):
    """The value of `batch_counter` in an optimizer's state: `values` of its variables."""
    counter = batch_counter(optimizer)
    return next(value for variable, value in zip(optimizer.variables, values) if variable is counter)


def _checked(inner, name):
    """The inner optimizer, which may be given by the name of one of Keras' optimizers.

    Raises:
        ValueError: if it has an option that belongs outside.
    """
    inner = keras.optimizers.get(inner)
    if isinstance(inner, keras.optimizers.LossScaleOptimizer):
        raise ValueError(
            f"{name} belongs inside a LossScaleOptimizer, not around it: LossScaleOptimizer({name}(inner))."
        )
    for option, advice in _NOT_INSIDE.items():
        if getattr(inner, option):
            raise ValueError(f"{name} accepts no inner optimizer with {option}; got {getattr(inner, option)}. {advice}")
    return inner


class OptimizerWrapper(keras.optimizers.Optimizer):
    """Takes the inner optimizer's step, then changes the weights, and finally averages them where use_ema is set.

    A subclass changes the weights in `before_step` and `after_step`, and may define in `share` how it averages. Its
    variables are ordinary optimizer variables: saved, restored, one copy per replica. The averages stay in the
    optimizer: see training.EvaluateAverage.
    """

    def __init__(
        self, inner_optimizer: keras.optimizers.Optimizer | str, use_ema: bool, ema_momentum: float, name: str
    ):
        inner = _checked(inner_optimizer, type(self).__name__)
        super().__init__(lambda: inner.learning_rate, use_ema=use_ema, ema_momentum=ema_momentum, name=name)
        self.inner_optimizer = inner

    def build(self, variables):
        if self.built:
            return
        self.inner_optimizer.build(variables)
        super().build(variables)

    @property
    def variables(self):
        return self._variables + self.inner_optimizer.variables

    @property
    def learning_rate(self):
        return self.inner_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, value):
        self.inner_optimizer.learning_rate = value

    def before_step(self) -> None:
        """Runs before the inner optimizer's step."""

    def after_step(self, step: Any) -> None:
        """Runs after the inner optimizer's step number `step`, which counts from 1."""

    def share(self, step: Any) -> Any:
        """The share of the weights in the averages after `step`; the old averages have the rest. By default Keras'
        EMA.
        """
        return ops.where(ops.equal(step, 1), 1.0, 1.0 - self.ema_momentum)

    def apply(self, grads, trainable_variables=None):
        if trainable_variables is not None:
            self.build(list(trainable_variables))
        self.before_step()
        self.inner_optimizer.apply(grads, trainable_variables)
        step = self._iterations + 1
        self.after_step(step)
        if self.use_ema:
            self._average(step)
        self._iterations.assign_add(1)

    def _average(self, step):
        share = self.share(step)
        for variable, average in zip(self._trainable_variables, self._model_variables_moving_average):
            if average is not None:
                part = ops.cast(share, variable.dtype)
                self.assign(average, variable * part + average * (1.0 - part))

    def finalize_variable_values(self, var_list):
        """Leaves the model's weights to the inner optimizer; training.EvaluateAverage swaps the averages in when
        evaluating.
        """
        self.inner_optimizer.finalize_variable_values(var_list)

    def get_config(self) -> dict[str, Any]:
        return {"inner_optimizer": keras.saving.serialize_keras_object(self.inner_optimizer), "name": self.name}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        inner = keras.saving.deserialize_keras_object(config["inner_optimizer"], custom_objects=custom_objects)
        return cls(**{**config, "inner_optimizer": inner})
