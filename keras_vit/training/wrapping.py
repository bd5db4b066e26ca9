"""Optimizers around another one, as Keras' LossScaleOptimizer is around its own: what Lookahead and weight averaging share."""

import keras
from keras import ops

# What stands on the outermost optimizer or nowhere, and what to do instead of giving it to an inner one.
_NOT_INSIDE = {
    "use_ema": "Average outside: Lookahead(inner, use_ema=True); StochasticWeightAveraging keeps averages of its own.",
    "gradient_accumulation_steps": "Set model.micro_batches = k before fit instead.",
    "loss_scale_factor": "Leave it out: under mixed_float16 compile puts a LossScaleOptimizer around the whole.",
}


def innermost(optimizer):
    """The optimizer that takes the steps: this one, or the one within all that are around it."""
    while hasattr(optimizer, "inner_optimizer"):
        optimizer = optimizer.inner_optimizer
    return optimizer


def averaging(optimizer):
    """The optimizer that keeps averages of the weights: this one, one within it, or None."""
    while optimizer is not None and not optimizer.use_ema:
        optimizer = getattr(optimizer, "inner_optimizer", None)
    return optimizer


def step_of(optimizer, values):
    """The number of steps taken, of an optimizer's state: `values` of its variables. A LossScaleOptimizer has a counter that stands still."""
    return next(value for variable, value in zip(optimizer.variables, values) if variable is optimizer.iterations)


def _checked(inner, name):
    """The inner optimizer, which may be a name of Keras'.

    Raises:
        ValueError: if it holds what belongs outside.
    """
    inner = keras.optimizers.get(inner)
    if isinstance(inner, keras.optimizers.LossScaleOptimizer):
        raise ValueError(f"{name} goes inside a LossScaleOptimizer, not around it: LossScaleOptimizer({name}(inner)).")
    for option, advice in _NOT_INSIDE.items():
        if getattr(inner, option):
            raise ValueError(f"{name} takes no inner optimizer with {option}, and got {getattr(inner, option)}. {advice}")
    return inner


class Around(keras.optimizers.Optimizer):
    """Takes the inner optimizer's step, then does something to the weights, and last averages them where use_ema is set.

    A subclass says in `before_step` and `after_step` what it does, and may say in `share` how it averages. Its variables are plain
    optimizer variables: saved, restored, one copy a replica. The averages stay in the optimizer (callbacks.EvaluateAverage).
    """

    def __init__(self, inner_optimizer, use_ema, ema_momentum, name):
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

    def before_step(self):
        """Runs before the inner optimizer's step."""

    def after_step(self, step):
        """Runs behind the inner optimizer's step, which is number `step`, from 1 on."""

    def share(self, step):
        """The weights' share in the averages behind `step`; the averages' own is the rest. Keras' EMA where not overridden."""
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
        """Leaves the model's weights to the inner optimizer; callbacks.EvaluateAverage swaps averages in where they are wanted."""
        self.inner_optimizer.finalize_variable_values(var_list)

    def get_config(self):
        return {"inner_optimizer": keras.saving.serialize_keras_object(self.inner_optimizer), "name": self.name}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        inner = keras.saving.deserialize_keras_object(config["inner_optimizer"], custom_objects=custom_objects)
        return cls(**{**config, "inner_optimizer": inner})
