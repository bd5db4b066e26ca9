"""Mixup (arXiv 1710.09412) and CutMix (arXiv 1905.04899) of a batch on the device: pure in (images, labels, step).

Each mixes pairs of neighbours, rows 0 and 1, 2 and 3..., alike in the whole batch: what differs is the share that a pixel keeps. Pairs stay
together where replicas share a batch. The last of an odd batch stays as it is. Shapes are static, and XLA compiles all of it.
"""

import dataclasses

import keras
import numpy as np
from keras import ops

from keras_vit.layers.randomness import Drawn, fold_in
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


def mixup_share(alpha, seed):
    """What every pixel keeps of its own, from Beta(alpha, alpha): ()."""
    return draw_beta(alpha, keras.random.uniform((), seed=Drawn(seed)))


def cutmix_share(alpha, seed, h, w):
    """What each pixel of h x w keeps of its own: 0 inside of a box, 1 outside: (h, w, 1)."""
    draws = keras.random.uniform((3,), seed=Drawn(fold_in(seed, 1)))
    side = ops.sqrt(1.0 - draw_beta(alpha, draws[0]))

    def inside(size, draw):
        """(size,) booleans: which places of an axis are the box's."""
        length = ops.cast(size, "float32")
        half = ops.floor(ops.floor(length * side) / 2.0)
        distance = ops.arange(size, dtype="float32") - ops.floor(draw * length)
        return ops.logical_and(distance >= -half, distance < half)

    box = ops.logical_and(inside(h, draws[1])[:, None], inside(w, draws[2])[None])  # (h, 1), (1, w) -> (h, w)
    return 1.0 - ops.cast(box, "float32")[..., None]


class _Pairs:
    """What the mixings share. A subclass has `classes`, `seed` and `share(seed, h, w)`: what pixels keep of their own, () or (h, w, 1)."""

    def _check(self, **alphas):
        for name, alpha in alphas.items():
            if alpha <= 0:
                raise ValueError(f"{type(self).__name__}: {name} must be positive, got {alpha}.")

    def __call__(self, images, labels, step):
        """Images (b, h, w, c) and labels (b,) or (b, classes) at `step` -> float images, label rows."""
        step = ops.cast(step, "int32")
        _, h, w, _ = ops.shape(images)
        keep = self.share(ops.stack([ops.full_like(step, self.seed), step]), h, w)
        mix = lambda x, own: own * x + (1.0 - own) * swap_neighbours(x)  # noqa: E731
        return mix(ops.cast(images, "float32"), keep), mix(label_rows(labels, self.classes), ops.mean(keep))


@dataclasses.dataclass(frozen=True)
class Mixup(_Pairs):
    """Mixes the images and label rows of each pair of neighbours, in one proportion a batch, from Beta(alpha, alpha).

    Attributes:
        alpha: 0.2 mixes a little, 1 evenly.
        classes: width of the label rows that come out.
        seed: the stream; the draw is a pure function of (seed, step).
    """

    alpha: float
    classes: int
    seed: int = 0

    def __post_init__(self):
        self._check(alpha=self.alpha)

    def share(self, seed, h, w):
        return mixup_share(self.alpha, seed)


@dataclasses.dataclass(frozen=True)
class Cutmix(_Pairs):
    """Exchanges a box between the images of each pair, one box a batch; labels are mixed by the pixels that each image then has.

    The box has a share of the area from Beta(alpha, alpha), the image's aspect, and its middle anywhere; what lies outside is cut off.

    Attributes:
        alpha: 1 makes every area as likely.
        classes, seed: as Mixup's.
    """

    alpha: float
    classes: int
    seed: int = 0

    def __post_init__(self):
        self._check(alpha=self.alpha)

    def share(self, seed, h, w):
        return cutmix_share(self.alpha, seed, h, w)


@dataclasses.dataclass(frozen=True)
class MixupOrCutmix(_Pairs):
    """Mixup or CutMix, as a coin falls, the same for the whole batch (DeiT, arXiv 2012.12877).

    Attributes:
        mixup, cutmix: their alphas; DeiT's are 0.8 and 1.
        classes, seed: as Mixup's.
    """

    mixup: float
    cutmix: float
    classes: int
    seed: int = 0

    def __post_init__(self):
        self._check(mixup=self.mixup, cutmix=self.cutmix)

    def share(self, seed, h, w):
        coin = keras.random.uniform((), seed=Drawn(fold_in(seed, 2)))
        return ops.where(coin < 0.5, mixup_share(self.mixup, seed), cutmix_share(self.cutmix, seed, h, w))
