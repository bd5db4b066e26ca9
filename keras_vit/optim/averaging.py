"""Stochastic weight averaging (arXiv 1803.05407): the equal mean of the weights along the end of training."""

from typing import Any

import keras
from keras import ops

from keras_vit.layers.registration import serializable
from keras_vit.optim.wrapper import OptimizerWrapper


@serializable
class StochasticWeightAveraging(OptimizerWrapper):
    """Keeps the mean of the weights after steps start, start + every, start + 2 every... (Algorithm 1).

    The inner optimizer trains as it would alone. The averages are stored where `use_ema` stores its own:
    training.EvaluateAverage evaluates with them in fit, and training.swap_averages puts them into the model. Before
    `start`, they equal the weights. How many weights have been averaged follows from the step count, so a resumed run
    continues exactly. The paper averages under a high learning rate, constant or cyclical. Its extra pass over the data
    for batch normalisation is left out: a model with `conv_stem`, which alone has any, keeps the running statistics of
    the trained weights.

    Args:
        inner_optimizer: any optimizer of Keras or of this package, or the name of one of Keras' optimizers.
        start: the step after which the first weights are taken, at least 1.
        every: the number of steps between two samples; one epoch in the paper.

    Raises:
        ValueError: if start or every is not a whole number of at least 1, or if the inner optimizer itself averages,
            accumulates or scales the loss.
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

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "start": self.start, "every": self.every}
