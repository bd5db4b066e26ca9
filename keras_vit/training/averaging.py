"""Stochastic weight averaging (arXiv 1803.05407): the equal mean of weights along the end of a training."""

from keras import ops

from keras_vit.layers.registration import serializable
from keras_vit.training.wrapping import Around


@serializable
class StochasticWeightAveraging(Around):
    """Keeps the mean of the weights behind the steps start, start + every, start + 2 every... (Algorithm 1).

    The inner optimizer trains as it would alone. The averages are where `use_ema` has its: callbacks.EvaluateAverage evaluates with
    them in fit, callbacks.swap_averages puts them into the model. Up to `start` they are the weights themselves. Their number
    follows from the count of steps, so that a resumed run goes on exactly. The paper averages under a high, constant or cyclical
    learning rate. Its pass over the data for batch normalisation is not needed: these models have none.

    Args:
        inner_optimizer: any of Keras' or this package's, or a name of Keras'.
        start: the step behind which the first weights are taken, from 1 on.
        every: steps from one to the next; an epoch's in the paper.

    Raises:
        ValueError: if start or every is not a whole number from 1 on, or the inner optimizer averages, accumulates or scales by itself.
    """

    def __init__(self, inner_optimizer, start, every=1, name="stochastic_weight_averaging"):
        if start != int(start) or every != int(every) or min(start, every) < 1:
            raise ValueError(
                f"StochasticWeightAveraging takes whole numbers of steps from 1 on. Got start={start}, every={every}."
            )
        super().__init__(inner_optimizer, True, 0.0, name)
        self.start, self.every = int(start), int(every)

    def share(self, step):
        behind = ops.maximum(step - self.start, 0)
        count = ops.cast(behind // self.every + 1, "float32")
        return ops.where(ops.equal(behind % self.every, 0), 1.0 / count, 0.0)

    def get_config(self):
        return {**super().get_config(), "start": self.start, "every": self.every}
