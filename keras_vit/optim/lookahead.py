"""Lookahead (arXiv 1907.08610): k steps forward, one step back."""

from typing import Any

import keras
from keras import ops

from keras_vit.layers.registration import serializable
from keras_vit.optim.wrapper import OptimizerWrapper


@serializable
class Lookahead(OptimizerWrapper):
    """Keeps slow weights that follow the inner optimizer's (Algorithm 1): every k steps, slow += alpha (w - slow), and
    w = slow.

    Between these steps the model's weights are the inner optimizer's, so evaluate and save at multiples of k. The inner
    optimizer's own state is left unchanged (the paper's "maintain").

    Args:
        inner_optimizer: any optimizer of Keras or of this package, or the name of one of Keras' optimizers.
        k: the number of steps between two synchronisations; 5 in most of the paper.
        alpha: how far the slow weights move, above 0 and at most 1; 0.5 in the paper's ImageNet runs, 0.8 for CIFAR-10.
        use_ema, ema_momentum: averages of the weights after each step, synchronisation included.

    Raises:
        ValueError: if k or alpha is out of range, or if the inner optimizer itself averages, accumulates or scales the
            loss.
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
        """(variable, its value, slow variable, its value) for all weights that are trained by their gradients."""
        pairs = [(w, slow) for w, slow in zip(self._trainable_variables, self._slow) if slow is not None]
        return [(w, ops.convert_to_tensor(w), slow, ops.convert_to_tensor(slow)) for w, slow in pairs]

    def before_step(self) -> None:
        first = ops.equal(self._iterations, 0)  # not in build: weights may still be loaded after it
        for _, weight, slow, old in self._pairs():
            self.assign(slow, ops.where(first, weight, old))

    def after_step(self, step: Any) -> None:
        synchronise = ops.equal(step % self.k, 0)
        for variable, weight, slow, old in self._pairs():
            new = ops.where(synchronise, old + (weight - old) * self.alpha, old)
            self.assign(slow, new)
            self.assign(variable, ops.where(synchronise, new, weight))

    def get_config(self) -> dict[str, Any]:
        averages = {"use_ema": self.use_ema, "ema_momentum": self.ema_momentum}
        return {**super().get_config(), "k": self.k, "alpha": self.alpha, **averages}
