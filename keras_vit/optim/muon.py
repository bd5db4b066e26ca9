"""Muon: orthogonalised momentum for hidden matrices (Jordan et al., kellerjordan.github.io/posts/muon, 2024)."""

import math
import re
from typing import Any

import keras
from keras import ops

from keras_vit.layers.registration import serializable
from keras_vit.optim.optimizers import KERNELS, AdamW, wide

# x -> a x + b x^3 + c x^5, moves singular values towards 1: the author's coefficients, with a steep slope at 0.
QUINTIC = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5
_FIRST_OR_LAST = r"head\w*|patch_head|decoder_pred|next_color|stem_conv1?"  # layers that AdamW trains
RMS = 0.2  # RMS of a step's values, about Adam's (arXiv 2502.16982, section 2.2): one learning rate for both


def orthogonalized(matrix: Any) -> Any:
    """(n, m) with the singular vectors of `matrix` and singular values of about 1 (0.7 to 1.2), by Newton-Schulz."""
    a, b, c = QUINTIC
    tall = matrix.shape[0] > matrix.shape[1]
    x = ops.transpose(matrix) if tall else matrix  # makes the square the smaller
    x = x / (ops.norm(x) + 1e-7)
    for _ in range(ITERATIONS):
        square = ops.matmul(x, ops.transpose(x))
        x = a * x + ops.matmul(b * square + c * ops.matmul(square, square), x)
    return ops.transpose(x) if tall else x


def is_hidden(path: str, shape: tuple) -> bool:
    """Whether Muon trains a variable: a kernel, but not a head's (also of pre-training) or a stem's first."""
    layer, _, name = path.rpartition("/")
    return name in KERNELS and len(shape) >= 2 and not re.search(rf"(^|/)({_FIRST_OR_LAST})$", layer)


@serializable
class Muon(AdamW):
    """Muon for hidden kernels: m = momentum m + g; w -= lr (0.2 sqrt(max(n, k)) orthogonal(g + momentum m) + decay w).

    A kernel counts as a matrix (n, k) of its last axis k and all others n. AdamW trains the rest: biases,
    normalisations, tokens, positions, and, as the author advises, the first and last layers: a stem's first convolution
    and the head.

    Args:
        learning_rate: number or schedule, for both: a Muon step is about as large as Adam's.
        momentum: of Muon.
        beta_1, beta_2, epsilon: of AdamW.
        **kwargs: decay, layer_decay and head_rate as in AdamW, and Keras' optimizer arguments.
    """

    def __init__(
        self,
        learning_rate: float | keras.optimizers.schedules.LearningRateSchedule = 0.001,
        momentum: float = 0.95,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-8,
        name: str = "muon",
        **kwargs: Any,
    ):
        super().__init__(learning_rate, beta_1, beta_2, epsilon, name=name, **kwargs)
        self._check_rates(momentum=momentum)
        self.momentum = momentum

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        self._hidden = [is_hidden(v.path, v.shape) for v in variables]

    def add_optimizer_variables(self, trainable_variables, name, initializer="zeros"):
        """Keras' add_optimizer_variables; None instead of a second moment for hidden kernels."""
        if name != "velocity":
            return super().add_optimizer_variables(trainable_variables, name, initializer)
        rest = [v for v in trainable_variables if not is_hidden(v.path, v.shape)]
        made = iter(super().add_optimizer_variables(rest, name, initializer))
        return [None if is_hidden(v.path, v.shape) else next(made) for v in trainable_variables]

    def update_step(self, gradient, variable, learning_rate):
        i = self._get_variable_index(variable)
        if not self._hidden[i]:
            return super().update_step(gradient, variable, learning_rate)
        dtype, velocity = wide(variable.dtype), self._slots[0][i]
        gradient = ops.cast(gradient, dtype)
        new = self.momentum * velocity + gradient
        self.assign(velocity, new)
        n, k = math.prod(variable.shape[:-1]), variable.shape[-1]
        matrix = ops.reshape(gradient + self.momentum * new, (n, k))  # (h, w, c, k) -> (n, k), of a convolution
        step = ops.reshape(orthogonalized(matrix) * (RMS * math.sqrt(max(n, k))), variable.shape)
        if self._decays[i]:
            step = step + self.decay_now(dtype) * ops.cast(variable, dtype)
        self.assign_sub(variable, ops.cast(learning_rate * self._multipliers[i], dtype) * step)
