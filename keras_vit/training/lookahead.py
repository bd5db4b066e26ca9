"""Lookahead (arXiv 1907.08610): k steps forward, one step back."""

from keras import ops

from keras_vit.layers.registration import serializable
from keras_vit.training.wrapping import Around


@serializable
class Lookahead(Around):
    """Slow weights that follow the inner optimizer's (Algorithm 1): every k steps, slow += alpha (w - slow), and w = slow.

    In between the model's weights are the inner optimizer's, so evaluate and save at multiples of k. The inner optimizer's own state
    goes on as it is (the paper's "maintain").

    Args:
        inner_optimizer: any of Keras' or this package's, or a name of Keras'.
        k: steps from one meeting to the next; 5 in most of the paper.
        alpha: how far the slow weights go, above 0 up to 1; 0.5 in the paper's ImageNet runs, 0.8 for CIFAR-10.
        use_ema, ema_momentum: averages of the weights behind each step, the meeting included.

    Raises:
        ValueError: if k or alpha is out of range, or the inner optimizer averages, accumulates or scales by itself.
    """

    def __init__(self, inner_optimizer, k=5, alpha=0.5, use_ema=False, ema_momentum=0.99, name="lookahead"):
        if k != int(k) or k < 1 or not 0 < alpha <= 1:
            raise ValueError(f"Lookahead takes a whole k from 1 on and an alpha above 0 up to 1. Got k={k}, alpha={alpha}.")
        super().__init__(inner_optimizer, use_ema, ema_momentum, name)
        self.k, self.alpha = int(k), alpha

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        self._slow = self.add_optimizer_variables(variables, "slow")

    def _pairs(self):
        """(variable, its value, slow variable, its value) of all weights that are trained by their gradients."""
        pairs = [(w, slow) for w, slow in zip(self._trainable_variables, self._slow) if slow is not None]
        return [(w, ops.convert_to_tensor(w), slow, ops.convert_to_tensor(slow)) for w, slow in pairs]

    def before_step(self):
        first = ops.equal(self._iterations, 0)  # not in build, behind which weights may still be loaded
        for _, weight, slow, old in self._pairs():
            self.assign(slow, ops.where(first, weight, old))

    def after_step(self, step):
        meet = ops.equal(step % self.k, 0)
        for variable, weight, slow, old in self._pairs():
            new = ops.where(meet, old + (weight - old) * self.alpha, old)
            self.assign(slow, new)
            self.assign(variable, ops.where(meet, new, weight))

    def get_config(self):
        own = {"k": self.k, "alpha": self.alpha, "use_ema": self.use_ema, "ema_momentum": self.ema_momentum}
        return {**super().get_config(), **own}
