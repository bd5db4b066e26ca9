"""Optimizer wrappers: Lookahead, and averages of the weights, used to evaluate and save a model."""

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
from keras import ops

from keras_vit.layers.registration import serializable

# Options of the outermost optimizer only, with alternatives.
_NOT_INSIDE = {
    "use_ema": "Average outside: Lookahead(inner, use_ema=True); StochasticWeightAveraging keeps its own averages.",
    "gradient_accumulation_steps": "Set model.micro_batches = k before fit instead.",
    "loss_scale_factor": "Leave it out: under mixed_float16, compile wraps the whole in a LossScaleOptimizer.",
}


def innermost(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """The optimizer that takes the steps: this one, or the innermost one inside."""
    while hasattr(optimizer, "inner_optimizer"):
        optimizer = optimizer.inner_optimizer
    return optimizer


def averaging(optimizer: keras.optimizers.Optimizer | None) -> keras.optimizers.Optimizer | None:
    """The optimizer that averages the weights: this one, one inside, or None."""
    while optimizer is not None and not optimizer.use_ema:
        optimizer = getattr(optimizer, "inner_optimizer", None)
    return optimizer


def batch_counter(optimizer: keras.optimizers.Optimizer) -> keras.Variable:
    """The variable that counts an optimizer's batches.

    It is not simply the first one: a LossScaleOptimizer has a counter that never moves. Nor is it `iterations`, which
    counts updates under gradient_accumulation_steps and is not a variable.
    """
    return innermost(optimizer)._iterations


def batches_taken(optimizer: keras.optimizers.Optimizer, values):
    """The value of `batch_counter` in an optimizer's state: `values` of its variables."""
    counter = batch_counter(optimizer)
    return next(value for variable, value in zip(optimizer.variables, values) if variable is counter)


def _checked(inner, name):
    """The inner optimizer, which may be the name of one of Keras'; ValueError if it has an option of the outermost."""
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
    """Takes the inner optimizer's step, then changes the weights, and averages them if use_ema is set.

    A subclass changes the weights in `before_step` and `after_step`, and may define the averages in `share`. Its
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
        if self.use_ema:  # where Keras' SwapEMAWeights looks for them
            vars(self.inner_optimizer)["_model_variables_moving_average"] = self._model_variables_moving_average

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
        """Runs after the inner optimizer's step number `step`, counted from 1."""

    def share(self, step: Any) -> Any:
        """The weights' share in the averages after `step`, the rest being the old averages. Default: Keras' EMA."""
        return ops.where(ops.equal(step, 1), 1.0, 1.0 - self.ema_momentum)

    def apply(self, grads, trainable_variables=None):
        if trainable_variables is not None:
            self.build(list(trainable_variables))
        self.before_step()
        self.inner_optimizer.apply(grads, trainable_variables)
        step = self.iterations + 1
        self.after_step(step)
        if self.use_ema:
            self._average(step)
        self.iterations.assign_add(1)

    def _average(self, step):
        share = self.share(step)
        for variable, average in zip(self._trainable_variables, self._model_variables_moving_average):
            if average is not None:
                part = ops.cast(share, variable.dtype)
                self.assign(average, variable * part + average * (1.0 - part))

    def finalize_variable_values(self, var_list):
        """Leaves the weights to the inner optimizer; training.EvaluateAverage swaps the averages in to evaluate."""
        self.inner_optimizer.finalize_variable_values(var_list)

    def get_config(self) -> dict[str, Any]:
        return {"inner_optimizer": keras.saving.serialize_keras_object(self.inner_optimizer), "name": self.name}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        inner = keras.saving.deserialize_keras_object(config["inner_optimizer"], custom_objects=custom_objects)
        return cls(**{**config, "inner_optimizer": inner})


@serializable
class Lookahead(OptimizerWrapper):
    """Slow weights that follow the inner optimizer's (Algorithm 1): every k steps, slow += alpha (w - slow); w = slow.

    Between these steps the model has the inner optimizer's weights, so evaluate and save at multiples of k. The inner
    optimizer's state stays (the paper's "maintain").

    Args:
        inner_optimizer: optimizer of Keras or this package, or the name of one of Keras'.
        k: steps between synchronisations; 5 in most of the paper.
        alpha: step of the slow weights, above 0 and at most 1; 0.5 in the paper's ImageNet runs, 0.8 for CIFAR-10.
        use_ema, ema_momentum: averages of the weights after each step, synchronisation included.

    Raises:
        ValueError: if k or alpha is out of range, or the inner optimizer averages, accumulates or scales the loss.
    """

    def __init__(
        self,
        inner_optimizer: keras.optimizers.Optimizer | str,
        k: int = 5,
        alpha: float = 0.5,
        use_ema: bool = False,
        ema_momentum: float = 0.99,
        name: str = "lookahead",
    ):
        if k != int(k) or k < 1 or not 0 < alpha <= 1:
            raise ValueError(
                f"Lookahead expects a whole k of at least 1, and 0 < alpha <= 1. Got k={k}, alpha={alpha}."
            )
        super().__init__(inner_optimizer, use_ema, ema_momentum, name)
        self.k, self.alpha = int(k), alpha

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        self._slow = self.add_optimizer_variables(variables, "slow")

    def _pairs(self):
        """(variable, its value, slow variable, its value) of all weights trained by their gradients."""
        pairs = [(w, slow) for w, slow in zip(self._trainable_variables, self._slow) if slow is not None]
        return [(w, ops.convert_to_tensor(w), slow, ops.convert_to_tensor(slow)) for w, slow in pairs]

    def before_step(self) -> None:
        first = ops.equal(self.iterations, 0)  # not in build: weights may be loaded after it
        for _, weight, slow, old in self._pairs():
            self.assign(slow, ops.where(first, weight, old))

    def after_step(self, step: Any) -> None:
        synchronise = ops.equal(step % self.k, 0)
        for variable, weight, slow, old in self._pairs():
            new = ops.where(synchronise, old + (weight - old) * self.alpha, old)
            self.assign(slow, new)
            self.assign(variable, ops.where(synchronise, new, weight))


@serializable
class StochasticWeightAveraging(OptimizerWrapper):
    """The mean of the weights after steps start, start + every, start + 2 every... (Algorithm 1).

    The inner optimizer trains as usual. The averages are stored as with `use_ema`: training.EvaluateAverage evaluates
    with them in fit, training.swap_averages puts them into the model. Before `start` they equal the weights. The step
    count gives the number of averaged weights, so a resumed run continues exactly. The paper averages under a high
    learning rate, constant or cyclical. Its extra pass for batch normalisation is left out: only a model with
    `conv_stem` has any, and keeps the running statistics of the trained weights.

    Args:
        inner_optimizer: optimizer of Keras or this package, or the name of one of Keras'.
        start: first averaged step, at least 1.
        every: steps between samples; one epoch in the paper.

    Raises:
        ValueError: unless start and every are positive integers, or if the inner optimizer averages, accumulates or
            scales the loss.
    """

    def __init__(
        self,
        inner_optimizer: keras.optimizers.Optimizer | str,
        start: int,
        every: int = 1,
        name: str = "stochastic_weight_averaging",
    ):
        if start != int(start) or every != int(every) or min(start, every) < 1:
            raise ValueError(
                f"StochasticWeightAveraging expects whole numbers of steps, at least 1. Got start={start},"
                f" every={every}."
            )
        super().__init__(inner_optimizer, True, 0.0, name)
        self.start, self.every = int(start), int(every)

    def share(self, step: Any) -> Any:
        since = ops.maximum(step - self.start, 0)
        count = ops.cast(since // self.every + 1, "float32")
        return ops.where(ops.equal(since % self.every, 0), 1.0 / count, 0.0)


def swap_averages(model: keras.Model) -> None:
    """Swaps trainable weights and their averages, bit for bit; a second call undoes it. ValueError without averages."""
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


def _has_averages(optimizer):
    """Whether EvaluateAverage has put an optimizer's averages into the model."""
    return getattr(averaging(optimizer), "averages_are_in_model", False)


@contextlib.contextmanager
def averaged(model: keras.Model) -> Iterator[None]:
    """A context in which the model has its averages, also where EvaluateAverage has put them there before."""
    swaps = not _has_averages(model.optimizer)
    if swaps:
        swap_averages(model)
    try:
        yield
    finally:
        if swaps:
            swap_averages(model)


class EvaluateAverage(keras.callbacks.Callback):
    """Within fit, evaluates with the averages of the weights and continues training with the weights themselves.

    The averages stay in the model until the epoch has ended for all callbacks, in any order: what ModelCheckpoint saves
    and EarlyStopping restores are the weights that were scored. The optimizer in such a file has the trained weights
    instead of the averages: call swap_averages(model) before training it further.

    Needs use_ema=True or a StochasticWeightAveraging. Call `undo` after an interrupted fit.
    """

    _trains = False

    def on_train_begin(self, logs=None):
        self.undo()
        self._trains, optimizer = True, self.model.optimizer
        finalize = optimizer.finalize_variable_values

        def swap_back_and_finalize(var_list):
            self.undo()
            finalize(var_list)

        # Called after the last epoch, but before on_train_end, in which EarlyStopping restores weights.
        vars(optimizer)["finalize_variable_values"] = swap_back_and_finalize

    def on_epoch_begin(self, epoch, logs=None):
        self._put(False)

    def on_test_begin(self, logs=None):
        self._put(True)

    def on_test_end(self, logs=None):
        if not self._trains:
            self._put(False)

    def _put(self, averages):
        """Puts the averages, or the trained weights, into the model."""
        if _has_averages(self.model.optimizer) != averages:
            swap_averages(self.model)
            averaging(self.model.optimizer).averages_are_in_model = averages

    def undo(self) -> None:
        """Restores the trained weights if the averages are in their place."""
        self._put(False)
        vars(self.model.optimizer).pop("finalize_variable_values", None)
        self._trains = False


def check_backups(callbacks: Any) -> None:
    """Refuses (ValueError) a backup at the ends of epochs, when EvaluateAverage has the averages in the model."""
    each = getattr(callbacks, "callbacks", callbacks)
    each = each if isinstance(each, (list, tuple)) else [each]
    backs_up = any(isinstance(one, keras.callbacks.BackupAndRestore) and one.save_freq == "epoch" for one in each)
    if backs_up and any(isinstance(one, EvaluateAverage) for one in each):
        raise ValueError(
            "BackupAndRestore would save the averages that EvaluateAverage scores, and continue training from them."
            " Give it save_freq, a number of steps."
        )
