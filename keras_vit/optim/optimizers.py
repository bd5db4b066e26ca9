"""The paper's optimizers, as its code defines them; Keras' own differ.

- Momentum keeps the velocity independent of the learning rate: m = mu m + g; w -= lr m. Keras folds lr into m, so
  trajectories differ under a schedule.
- Adam adds eps to the bias-corrected root of the second moment; Keras adds it to the uncorrected one.
- Decoupled weight decay, lr * decay * w, applies to kernels only: not to biases, norms, tokens or position embeddings.
  LoRA's two matrices are kernels: decay pulls their product to zero, the model to its start.
- A variable with a true attribute `rests_without_gradient` skips steps with a gradient of zeros, decay included, as
  torch's optimizers skip parameters without a gradient.

The learning rate may fall from the head down (`layer_decay`), and be higher after the blocks (`head_rate`). Averaged
weights (`use_ema`) stay in the optimizer: unlike with Keras' optimizers, `fit` does not finally write them to the
model.
"""

import re
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops
from keras.optimizers.schedules import LearningRateSchedule

from keras_vit.layers.backend import sum_over_replicas
from keras_vit.layers.dense import LORA_WEIGHTS
from keras_vit.layers.registration import serializable


def has_adam() -> bool:
    """Whether `apply_adam` exists and pays off. Whole compiled programs (TPUs, JAX) fuse single operations."""
    if keras.backend.backend() != "tensorflow":
        return False
    import tensorflow as tf

    return not isinstance(tf.distribute.get_strategy(), tf.distribute.TPUStrategy)


def apply_adam(
    variable: Any,
    m: Any,
    v: Any,
    gradient: Any,
    learning_rate: Any,
    beta_1: float,
    beta_2: float,
    epsilon: float,
    step: Any,
) -> None:
    """Updates both moments and the variable: w -= lr m^ / (sqrt(v^) + epsilon), m^ = m / (1 - beta_1^step), v^
    likewise.

    Args:
        variable, m, v: variables of one shape and dtype, in one replica or within the strategy's `update`.
        gradient: of that shape.
        learning_rate, beta_1, beta_2, epsilon: as in arXiv 1412.6980, algorithm 1.
        step: counted from 1.
    """
    import tensorflow as tf

    variable, m, v = (x.value if isinstance(x, keras.Variable) else x for x in (variable, m, v))
    t, one = tf.cast(step, variable.dtype), tf.ones((), variable.dtype)
    power_1, power_2 = tf.pow(beta_1 * one, t), tf.pow(beta_2 * one, t)
    tf.raw_ops.ResourceApplyAdam(
        var=variable.handle,
        m=m.handle,
        v=v.handle,
        beta1_power=power_1,
        beta2_power=power_2,
        lr=tf.cast(learning_rate, variable.dtype),
        beta1=beta_1 * one,
        beta2=beta_2 * one,
        epsilon=epsilon * tf.sqrt(1 - power_2),  # the operation adds it to the uncorrected root of v
        grad=tf.cast(tf.convert_to_tensor(gradient), variable.dtype),
    )


KERNELS = ("kernel", *LORA_WEIGHTS)  # with decay


def wide(dtype: Any) -> str:
    """The dtype of a weight's step and its moments: float32 for 16 bits, in which beta_2 = .999 is 1."""
    return keras.backend.result_type(keras.backend.standardize_dtype(dtype), "float32")


def layer_depth(path: str, depth: int) -> int:
    """A variable's depth: 0 for stem and embedding, 1... for block_00..., depth + 1 after the blocks."""
    block = re.search(r"(?:^|/)(?:block|merging|position_embedding)_(\d+)(?:/|$)", path)
    if block:
        return int(block.group(1)) + 1
    stem = re.search(
        r"(?:^|/)(stem_\w+|patch_encoder|class_token|distillation_token|registers|position_embedding)(?:/|$)", path
    )
    return 0 if stem else depth + 1


def layer_multipliers(paths: Sequence[str], layer_decay: float, head_rate: float = 1.0) -> list[float]:
    """Each path's learning-rate factor: layer_decay ** (distance from the head), times head_rate after the blocks."""
    depth = max((layer_depth(path, -1) for path in paths), default=0)
    distances = [depth + 1 - layer_depth(path, depth) for path in paths]
    return [layer_decay**distance if distance else head_rate for distance in distances]


def move_averages(optimizer: keras.optimizers.Optimizer) -> None:
    """Moves an optimizer's averages, once per update: Keras moves them with every batch that it accumulates.

    They equal the weights until the first update.
    """
    steps = optimizer.gradient_accumulation_steps or 1
    updates = ops.equal((optimizer._iterations + 1) % steps, 0)
    keeps = ops.where(updates, optimizer.ema_momentum, 1.0)
    keeps = ops.where(ops.equal(optimizer.iterations, 0), 0.0, keeps)
    for variable, average in zip(optimizer._trainable_variables, optimizer._model_variables_moving_average):
        if average is not None:
            share = ops.cast(keeps, average.dtype)
            average.assign(share * average + (1.0 - share) * variable)


class GlobalGradient:
    """Mixin for Keras optimizers, `class Lion(GlobalGradient, keras.optimizers.Lion): pass`: clips the replicas' sum.

    Keras' own optimizers clip each replica's part; keras_vit.Model corrects that with a second sum, which
    this mixin avoids.
    """

    clips_global_gradient = True

    def _clip_gradients(self, grads):
        return super()._clip_gradients(sum_over_replicas(list(grads)))

    def _all_reduce_sum_gradients(self, grads_and_vars):
        return grads_and_vars  # already summed in _clip_gradients


class DecoupledWeightDecay(GlobalGradient, keras.optimizers.Optimizer):
    """The base of this package's optimizers.

    A subclass lists its per-weight variables in `slots`; `step` returns the update to subtract, before the learning
    rate.
    """

    slots: tuple[str, ...] = ()

    def __init__(
        self,
        learning_rate,
        decay: float | LearningRateSchedule,
        layer_decay: float | None,
        name: str,
        head_rate: float | None = None,
        **kwargs,
    ):
        if kwargs.pop("weight_decay", None):
            raise ValueError(
                f"{type(self).__name__} has no weight_decay, which in Keras also decays biases and norms: write decay=,"
                " which decays kernels only."
            )
        decay = keras.saving.deserialize_keras_object(decay) if isinstance(decay, dict) else decay
        negative = not isinstance(decay, LearningRateSchedule) and decay < 0
        if negative or (layer_decay is not None and not 0 < layer_decay <= 1):
            raise ValueError(
                f"{type(self).__name__} expects decay >= 0 or a schedule, and layer_decay None or above 0 and at most"
                f" 1. Got decay={decay}, layer_decay={layer_decay}."
            )
        if head_rate is not None and not head_rate > 0:
            raise ValueError(f"{type(self).__name__}: head_rate must be above 0, or None for 1. Got {head_rate}.")
        for norm in ("clipnorm", "clipvalue", "global_clipnorm"):
            if kwargs.get(norm) is not None and kwargs[norm] <= 0:
                raise ValueError(
                    f"{type(self).__name__}: {norm} must be positive, or None for no clipping. Got {kwargs[norm]}."
                )
        super().__init__(learning_rate=learning_rate, name=name, **kwargs)
        self.decay = decay
        self.layer_decay = layer_decay
        self.head_rate = head_rate

    def _check_rates(self, **rates):
        """Refuses factors of running averages outside [0, 1)."""
        for name, rate in rates.items():
            if not 0 <= rate < 1:
                raise ValueError(f"{type(self).__name__}: {name} must be at least 0 and below 1, got {rate}.")

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        self._slots = [self.add_optimizer_variables(variables, slot) for slot in self.slots]
        self._rests = [getattr(v, "rests_without_gradient", False) for v in variables]
        self._decays = [v.path.rsplit("/", 1)[-1] in KERNELS and bool(self.decay) for v in variables]
        paths = [v.path for v in variables]
        self._multipliers = layer_multipliers(paths, self.layer_decay or 1.0, self.head_rate or 1.0)

    def add_variable(self, shape, initializer="zeros", dtype=None, *args, name=None, **kwargs):
        """Keras' add_variable."""
        dtype = wide(dtype) if name and name.rsplit("_", 1)[-1] in self.slots else dtype
        return super().add_variable(shape, initializer, dtype, *args, name=name, **kwargs)

    def update_step(self, gradient, variable, learning_rate):
        i, dtype = self._get_variable_index(variable), wide(variable.dtype)
        lr = ops.cast(learning_rate * self._multipliers[i], dtype)
        step = self.step(ops.cast(gradient, dtype), *(slot[i] for slot in self._slots))
        if self._decays[i]:
            step = step + self.decay_now(dtype) * ops.cast(variable, dtype)
        if self._rests[i]:
            step = ops.where(ops.any(gradient != 0), step, 0.0)
        self.assign_sub(variable, lr * step)

    def decay_now(self, dtype: str) -> Any:
        """This step's weight decay; accumulating gradients, a schedule counts batches, as for the learning rate."""
        decay = self.decay(self._iterations) if isinstance(self.decay, LearningRateSchedule) else self.decay
        return ops.cast(decay, dtype)

    def exclude_from_weight_decay(self, var_list=None, var_names=None):
        """Always raises ValueError: Keras' list does not apply here."""
        raise ValueError(
            f"{type(self).__name__} decays kernels only, regardless of this list. For no decay, write decay=0."
        )

    def _update_model_variables_moving_average(self, trainable_variables):
        move_averages(self)

    def finalize_variable_values(self, var_list):
        """Leaves the model's weights alone; training.EvaluateAverage swaps the averages in to evaluate."""

    def get_config(self) -> dict[str, Any]:
        schedule = isinstance(self.decay, LearningRateSchedule)
        decay = keras.saving.serialize_keras_object(self.decay) if schedule else self.decay
        return {**super().get_config(), "decay": decay, "layer_decay": self.layer_decay, "head_rate": self.head_rate}


@serializable
class Momentum(DecoupledWeightDecay):
    """SGD with momentum as in the paper's code: m = momentum m + g; w -= lr (m + decay w).

    Args:
        learning_rate: number or schedule.
        momentum: 0.9 in the paper.
        decay: number or schedule of the step. Decoupled weight decay, kernels only.
        layer_decay: factor of the learning rate per layer, from the head down; None for one rate.
        head_rate: factor of the learning rate of all weights after the blocks, such as 10 for a new segmentation head.
        **kwargs: Keras' optimizer arguments: global_clipnorm, use_ema, ema_momentum (averages move once per update),
            gradient_accumulation_steps (schedules count batches)...
    """

    slots = ("momentum",)

    def __init__(
        self,
        learning_rate: float | LearningRateSchedule = 0.01,
        momentum: float = 0.9,
        decay: float | LearningRateSchedule = 0.0,
        layer_decay: float | None = None,
        name: str = "momentum",
        head_rate: float | None = None,
        **kwargs: Any,
    ):
        super().__init__(learning_rate, decay, layer_decay, name, head_rate, **kwargs)
        self._check_rates(momentum=momentum)
        self.momentum = momentum

    def step(self, gradient: Any, velocity: Any) -> Any:
        new = self.momentum * velocity + gradient
        self.assign(velocity, new)
        return new


@serializable
class AdamW(DecoupledWeightDecay):
    """Adam with decoupled weight decay: w -= lr (m^ / (sqrt(v^) + epsilon) + decay w), m^ and v^ bias-corrected.

    Args:
        learning_rate: number or schedule.
        beta_1, beta_2, epsilon: .9, .999, 1e-8 in the paper.
        decay: number or schedule of the step. Decoupled weight decay, kernels only; big_vision's wd of 1e-4 at lr 1e-3
            is 0.1 here.
        layer_decay: factor of the learning rate per layer, from the head down; None for one rate.
        head_rate: factor of the learning rate of all weights after the blocks, such as 10 for a new segmentation head.
        **kwargs: Keras' optimizer arguments: global_clipnorm, use_ema, ema_momentum (averages move once per update),
            gradient_accumulation_steps (schedules count batches)...
    """

    slots = ("momentum", "velocity")

    def __init__(
        self,
        learning_rate: float | LearningRateSchedule = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-8,
        decay: float | LearningRateSchedule = 0.0,
        layer_decay: float | None = None,
        name: str = "adamw",
        head_rate: float | None = None,
        **kwargs: Any,
    ):
        super().__init__(learning_rate, decay, layer_decay, name, head_rate, **kwargs)
        self._check_rates(beta_1=beta_1, beta_2=beta_2)
        if epsilon <= 0:
            raise ValueError(f"{type(self).__name__}: epsilon must be positive, got {epsilon}.")
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon

    def update_step(self, gradient, variable, learning_rate):
        i = self._get_variable_index(variable)
        narrow = wide(variable.dtype) != keras.backend.standardize_dtype(variable.dtype)
        if not has_adam() or narrow or self._rests[i] or type(self).step is not AdamW.step:
            return super().update_step(gradient, variable, learning_rate)
        lr = ops.cast(learning_rate * self._multipliers[i], variable.dtype)
        m, v = (slot[i] for slot in self._slots)
        if self._decays[i]:
            self.assign_sub(variable, lr * self.decay_now(variable.dtype) * variable)
        apply_adam(variable, m, v, gradient, lr, self.beta_1, self.beta_2, self.epsilon, self.iterations + 1)

    def step(self, gradient: Any, m: Any, v: Any) -> Any:
        t = ops.cast(self.iterations + 1, gradient.dtype)
        correct_1 = 1.0 - ops.power(ops.cast(self.beta_1, gradient.dtype), t)
        root_2 = ops.sqrt(1.0 - ops.power(ops.cast(self.beta_2, gradient.dtype), t))
        self.assign_add(m, (gradient - m) * (1.0 - self.beta_1))
        self.assign_add(v, (ops.square(gradient) - v) * (1.0 - self.beta_2))
        # (m / correct_1) / (sqrt(v) / root_2 + epsilon), with the corrections on scalars: fewer passes over memory.
        return m / (ops.sqrt(v) + self.epsilon * root_2) * (root_2 / correct_1)
