"""Mixup (arXiv 1710.09412) and CutMix (arXiv 1905.04899) on the device: pure functions of (images, labels, step).

Both mix neighbours, rows 0 and 1, 2 and 3..., the same way in the whole batch; they differ in the share that each pixel
keeps. Pairs stay on one replica: each has an even number of rows. On one device an odd batch is allowed; its last image
stays. Shapes are static, and XLA can compile everything.
"""

import dataclasses
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.fit.losses import label_rows
from keras_vit.fit.mixing import Neighbours
from keras_vit.layers.dropout import FixedSeed, fold_in
from keras_vit.layers.registration import serializable


def half_quantiles(alpha: float, points: int = 1024) -> np.ndarray:
    """Beta(alpha, alpha)'s quantiles at points + 1 even probabilities in [0, 1/2], to the power alpha: (points + 1,).

    In y = x ** alpha the density has no pole, so the trapezoidal rule integrates it.
    """
    y = np.linspace(0.0, 0.5**alpha, 16 * points + 1)
    density = (1.0 - y ** (1.0 / alpha)) ** (alpha - 1.0)
    mass = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    return np.interp(np.linspace(0.0, 0.5, points + 1), mass * (0.5 / mass[-1]), y)


def beta_from_uniform(alpha: float, uniform):
    """Maps uniform samples in [0, 1) to Beta(alpha, alpha): TensorFlow has no op for it that XLA compiles."""
    table = ops.convert_to_tensor(half_quantiles(alpha), "float32")
    last = table.shape[0] - 1
    place = ops.minimum(uniform, 1.0 - uniform) * (2.0 * last)
    low = ops.minimum(ops.cast(ops.floor(place), "int32"), last - 1)
    y = ops.take(table, low) + (place - ops.cast(low, "float32")) * (ops.take(table, low + 1) - ops.take(table, low))
    x = ops.power(y, 1.0 / alpha)
    return ops.where(uniform < 0.5, x, 1.0 - x)


def swap_neighbours(x):
    """(b, ...) with rows 0 and 1, 2 and 3... swapped; rows stay on their device if each has an even number."""
    b = x.shape[0] if x.shape[0] is not None else ops.shape(x)[0]
    pairs = ops.reshape(x[: b // 2 * 2], (b // 2, 2, *x.shape[1:]))  # (b, ...) -> (b / 2, 2, ...)
    swapped = ops.reshape(ops.flip(pairs, axis=1), (b // 2 * 2, *x.shape[1:]))
    return swapped if isinstance(b, int) and b % 2 == 0 else ops.concatenate([swapped, x[b // 2 * 2 :]])


def mix(x, keep):
    """The share `keep` of each row of x (b, ...), and the rest of its neighbour."""
    return keep * x + (1.0 - keep) * swap_neighbours(x)


def mixup_share(alpha: float, seed):
    """The share of its value that every pixel keeps, from Beta(alpha, alpha): a scalar."""
    return beta_from_uniform(alpha, keras.random.uniform((), seed=FixedSeed(seed)))


def cutmix_share(alpha: float, seed, h: int, w: int):
    """The share of its value that each pixel keeps, (h, w, 1): 0 inside a box, 1 outside."""
    uniforms = keras.random.uniform((3,), seed=FixedSeed(fold_in(seed, 1)))
    side = ops.sqrt(1.0 - beta_from_uniform(alpha, uniforms[0]))

    def inside(size, centre):
        """(size,) booleans: which positions along an axis are in the box."""
        length = ops.cast(size, "float32")
        half = ops.floor(ops.floor(length * side) / 2.0)
        distance = ops.arange(size, dtype="float32") - ops.floor(centre * length)
        return ops.logical_and(distance >= -half, distance < half)

    box = ops.logical_and(inside(h, uniforms[1])[:, None], inside(w, uniforms[2])[None])  # (h, 1), (1, w) -> (h, w)
    return 1.0 - ops.cast(box, "float32")[..., None]


def step_seed(seed: int, step):
    """The seed of a step's mixing, (2,) int32."""
    step = ops.cast(step, "int32")
    return ops.stack([ops.full_like(step, seed), step])


class Pairs(Neighbours):
    """The base of the mixings of class labels.

    A subclass has `classes`, `seed` and `share(seed, h, w)`, the share that pixels keep: () or (h, w, 1).
    """

    def _check(self, **alphas):
        for name, alpha in alphas.items():
            if alpha <= 0:
                raise ValueError(f"{type(self).__name__}: {name} must be positive, got {alpha}.")

    def __call__(self, images, labels, step):
        """Images (b, h, w, c), labels (b,) or (b, classes), step -> float32 images, label rows (b, classes)."""
        _, h, w, _ = ops.shape(images)
        keep = self.share(step_seed(self.seed, step), h, w)
        return mix(ops.cast(images, "float32"), keep), mix(label_rows(labels, self.classes), ops.mean(keep))


@serializable
@dataclasses.dataclass(frozen=True)
class Mixup(Pairs):
    """Mixes images and label rows of each pair in one proportion per batch, sampled from Beta(alpha, alpha).

    Attributes:
        alpha: 0.2 mixes a little; 1 makes every proportion equally likely.
        classes: width of the resulting label rows.
        seed: selects the random stream; the proportion is a pure function of (seed, step).
    """

    alpha: float
    classes: int
    seed: int = 0

    def __post_init__(self):
        self._check(alpha=self.alpha)

    def share(self, seed: Any, h: int, w: int) -> Any:
        return mixup_share(self.alpha, seed)


@serializable
@dataclasses.dataclass(frozen=True)
class Cutmix(Pairs):
    """Swaps a box between the images of each pair, one box per batch; labels mix by the resulting shares of pixels.

    The box's share of the area is sampled from Beta(alpha, alpha). It has the image's aspect ratio and a centre
    anywhere in it, and is clipped at the border.

    Attributes:
        alpha: 1 makes every area equally likely.
        classes, seed: as in Mixup.
    """

    alpha: float
    classes: int
    seed: int = 0

    def __post_init__(self):
        self._check(alpha=self.alpha)

    def share(self, seed: Any, h: int, w: int) -> Any:
        return cutmix_share(self.alpha, seed, h, w)


@serializable
@dataclasses.dataclass(frozen=True)
class MixupOrCutmix(Pairs):
    """Mixup or CutMix with equal probability, one for the whole batch (DeiT, arXiv 2012.12877).

    Attributes:
        mixup, cutmix: their alphas; 0.8 and 1 in DeiT.
        classes, seed: as in Mixup.
    """

    mixup: float
    cutmix: float
    classes: int
    seed: int = 0

    def __post_init__(self):
        self._check(mixup=self.mixup, cutmix=self.cutmix)

    def share(self, seed: Any, h: int, w: int) -> Any:
        coin = keras.random.uniform((), seed=FixedSeed(fold_in(seed, 2)))
        return ops.where(coin < 0.5, mixup_share(self.mixup, seed), cutmix_share(self.cutmix, seed, h, w))
