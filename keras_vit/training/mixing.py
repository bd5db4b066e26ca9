"""Mixup (arXiv 1710.09412) of a batch on the device: pure in (images, labels, step)."""

import dataclasses

import keras
import numpy as np
from keras import ops

from keras_vit.layers.randomness import Drawn
from keras_vit.training.losses import label_rows


def half_quantiles(alpha, points=1024):
    """Quantiles of Beta(alpha, alpha) at points + 1 even steps of probability 0 to 1/2, to the power alpha: (points + 1,).

    In y = x ** alpha the density has no pole, so a plain sum integrates it.
    """
    y = np.linspace(0.0, 0.5**alpha, 16 * points + 1)
    density = (1.0 - y ** (1.0 / alpha)) ** (alpha - 1.0)
    mass = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    return np.interp(np.linspace(0.0, 0.5, points + 1), mass * (0.5 / mass[-1]), y)


def draw_beta(alpha, uniform):
    """A draw from Beta(alpha, alpha) out of one from [0, 1). XLA, and so a TPU, has no op for it in TensorFlow."""
    table = ops.convert_to_tensor(half_quantiles(alpha), "float32")
    last = table.shape[0] - 1
    place = ops.minimum(uniform, 1.0 - uniform) * (2.0 * last)
    low = ops.minimum(ops.cast(ops.floor(place), "int32"), last - 1)
    y = ops.take(table, low) + (place - ops.cast(low, "float32")) * (ops.take(table, low + 1) - ops.take(table, low))
    x = ops.power(y, 1.0 / alpha)
    return ops.where(uniform < 0.5, x, 1.0 - x)


def swap_neighbours(x):
    """(b, ...) with rows 0 and 1, 2 and 3... exchanged; no row leaves its device where the batch is shared out in even parts."""
    b = x.shape[0] if x.shape[0] is not None else ops.shape(x)[0]
    pairs = ops.reshape(x[: b // 2 * 2], (b // 2, 2, *x.shape[1:]))  # (b, ...) -> (b / 2, 2, ...)
    swapped = ops.reshape(ops.flip(pairs, axis=1), (b // 2 * 2, *x.shape[1:]))
    return swapped if isinstance(b, int) and b % 2 == 0 else ops.concatenate([swapped, x[b // 2 * 2 :]])


@dataclasses.dataclass(frozen=True)
class Mixup:
    """Mixes the images and label rows of each pair of neighbours, in one proportion a batch, from Beta(alpha, alpha).

    Pairs (0, 1), (2, 3)... stay together where replicas share a batch. The last of an odd batch stays as it is.

    Attributes:
        alpha: 0.2 mixes a little, 1 evenly.
        classes: width of the label rows that come out.
        seed: the stream; the draw is a pure function of (seed, step).
    """

    alpha: float
    classes: int
    seed: int = 0

    def __post_init__(self):
        if self.alpha <= 0:
            raise ValueError(f"Mixup: alpha must be positive, got {self.alpha}.")

    def __call__(self, images, labels, step):
        """Images (b, h, w, c) and labels (b,) or (b, classes) at `step` -> float images, label rows."""
        step = ops.cast(step, "int32")
        seed = ops.stack([ops.full_like(step, self.seed), step])
        keep = draw_beta(self.alpha, keras.random.uniform((), seed=Drawn(seed)))
        mix = lambda x: keep * x + (1.0 - keep) * swap_neighbours(x)  # noqa: E731
        return mix(ops.cast(images, "float32")), mix(label_rows(labels, self.classes))
