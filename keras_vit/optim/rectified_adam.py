"""RectifiedAdam (arXiv 1908.03265): Adam without warm-up."""

import math
from typing import Any

import keras
from keras import ops

from keras_vit.layers.registration import serializable
from keras_vit.optim.optimizers import AdamW


def approximated_length(step, beta_2: float):
    """rho_t of the paper, the length of the equivalent simple moving average: rho_inf - 2 t beta_2^t / (1 - beta_2^t).

    In float32 cancellation would ruin the early values (rho_t is about t, and 4 is the threshold): these use the series
    in x = -t log beta_2.

    Args:
        step: t, counted from 1, a scalar float32 tensor.
        beta_2: a number.
    """
    a = -math.log(beta_2)
    rho_inf = 2.0 / (1.0 - beta_2) - 1.0
    x = step * a
    early = step * (1.0 - x / 6.0 + x**3 / 360.0 - x**5 / 15120.0) + (rho_inf - 2.0 / a)
    return ops.where(x < 0.6, early, rho_inf - 2.0 * step / ops.expm1(x))


@serializable
class RectifiedAdam(AdamW):
    """Adam with its step rectified for the variance of v^ (Algorithm 2), and decoupled weight decay.

    w -= lr (r_t m^ / (sqrt(v^) + epsilon) + decay w) once rho_t > threshold; before, w -= lr (m^ + decay w).

    Args:
        learning_rate: number or schedule.
        beta_1, beta_2, epsilon: rectification requires beta_2 above 0.6.
        threshold: 4 in the paper, which at beta_2 = .999 rectifies from step 5; 5 in its authors' code,
            tensorflow-addons and torch, which rectifies from step 6.
        **kwargs: decay, layer_decay and head_rate as in AdamW, and Keras' optimizer arguments.

    Raises:
        ValueError: if beta_2 is not above 0.6 and below 1, or threshold is below 4.
    """

    def __init__(
        self,
        learning_rate: float | keras.optimizers.schedules.LearningRateSchedule = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-8,
        threshold: float = 4.0,
        name: str = "radam",
        **kwargs: Any,
    ):
        if not 0.6 < beta_2 < 1 or threshold < 4:
            raise ValueError(
                "RectifiedAdam expects a beta_2 above 0.6 and below 1, and a threshold of at least 4. "
                f"Got beta_2={beta_2}, threshold={threshold}."
            )
        super().__init__(learning_rate, beta_1, beta_2, epsilon, name=name, **kwargs)
        self.threshold = threshold

    def step(self, gradient: Any, m: Any, v: Any) -> Any:
        t = ops.cast(self.iterations + 1, "float32")
        correct_1, correct_2 = 1.0 - ops.power(self.beta_1, t), -ops.expm1(t * math.log(self.beta_2))
        rho, rho_inf = approximated_length(t, self.beta_2), 2.0 / (1.0 - self.beta_2) - 1.0
        rectified = rho > self.threshold
        safe = ops.maximum(rho, 4.0)  # a negative number's root would be NaN, even where unused
        r = ops.sqrt((safe - 4.0) * (safe - 2.0) * rho_inf / ((rho_inf - 4.0) * (rho_inf - 2.0) * safe))
        correct_1, root_2, r = (ops.cast(x, gradient.dtype) for x in (correct_1, ops.sqrt(correct_2), r))
        self.assign_add(m, (gradient - m) * (1.0 - self.beta_1))
        self.assign_add(v, (ops.square(gradient) - v) * (1.0 - self.beta_2))
        # As in AdamW, corrections apply to scalars.
        scale = ops.where(rectified, r * root_2 / (ops.sqrt(v) + self.epsilon * root_2), 1.0)
        return m * scale / correct_1
