"""Mixup (arXiv 1710.09412) and CutMix (arXiv 1905.04899) of a batch on the device: pure functions of (images, labels,
step).

Both mix pairs of neighbours, rows 0 and 1, 2 and 3..., the same way in the whole batch; they differ in the share that
each pixel keeps. Pairs stay together when replicas share a batch: each has an even number of rows. On one device an odd
batch is allowed, and its last image is not changed. Shapes are static, and XLA can compile everything.
"""

import dataclasses
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.layers.dropout import FixedSeed, fold_in
from keras_vit.training.losses import label_rows


def check_pairs(rows: int, devices: int = 1) -> None:
    """Refuses a number of rows that has no pairs, or that leaves a row without one on every device.

    Args:
        rows: of a batch, on each device.
        devices: how many mix their own rows; 1 on JAX, whose program mixes the whole batch.

    Raises:
        ValueError: saying which batch to choose.
    """
    if rows == 1 or devices > 1 and rows % 2:
        whose = f"each of {devices} devices has {rows}" if devices > 1 else "a batch has 1"
        raise ValueError(
            f"Mixup and CutMix mix pairs of images, and {whose}: choose a batch size that is a multiple of"
            f" {2 * devices}."
        )


def check_unweighted(weights) -> None:
    """Refuses weights of examples that are mixed with each other.

    Raises:
        ValueError: unless the weights are None.
    """
    if weights is not None:
        raise ValueError(
            "model.mixing mixes pairs of examples, so that sample_weight and class_weight have no one example to belong"
            " to. Leave one of the two out, or weight classes in the loss: SoftmaxCrossEntropy(class_weights=...)."
        )


def half_quantiles(alpha: float, points: int = 1024) -> np.ndarray:
    """Quantiles of Beta(alpha, alpha) at points + 1 evenly spaced probabilities from 0 to 1/2, to the power alpha:
    (points + 1,).

    In y = x ** alpha the density has no pole, so the trapezoidal rule integrates it.
    """
    y = np.linspace(0.0, 0.5**alpha, 16 * points + 1)
    density = (1.0 - y ** (1.0 / alpha)) ** (alpha - 1.0)
    mass = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    return np.interp(np.linspace(0.0, 0.5, points + 1), mass * (0.5 / mass[-1]), y)


def beta_from_uniform(alpha: float, uniform):
    """Turns a uniform sample from [0, 1) into a sample from Beta(alpha, alpha). TensorFlow has no op for it that XLA
    compiles.
    """
    table = ops.convert_to_tensor(half_quantiles(alpha), "float32")
    last = table.shape[0] - 1
    place = ops.minimum(uniform, 1.0 - uniform) * (2.0 * last)
    low = ops.minimum(ops.cast(ops.floor(place), "int32"), last - 1)
    y = ops.take(table, low) + (place - ops.cast(low, "float32")) * (ops.take(table, low + 1) - ops.take(table, low))
    x = ops.power(y, 1.0 / alpha)
    return ops.where(uniform < 0.5, x, 1.0 - x)


def swap_neighbours(x):
    """(b, ...) with rows 0 and 1, 2 and 3... exchanged. No row leaves its device if every device holds an even number
    of rows.
    """
    b = x.shape[0] if x.shape[0] is not None else ops.shape(x)[0]
    pairs = ops.reshape(x[: b // 2 * 2], (b // 2, 2, *x.shape[1:]))  # (b, ...) -> (b / 2, 2, ...)
    swapped = ops.reshape(ops.flip(pairs, axis=1), (b // 2 * 2, *x.shape[1:]))
    return swapped if isinstance(b, int) and b % 2 == 0 else ops.concatenate([swapped, x[b // 2 * 2 :]])


def mix(x, keep):
    """x (b, ...) with the share `keep` of every row's own values and the rest from its neighbour."""
    return keep * x + (1.0 - keep) * swap_neighbours(x)


def mixup_share(alpha: float, seed):
    """The share that every pixel keeps of its own value, from Beta(alpha, alpha): a scalar."""
    return beta_from_uniform(alpha, keras.random.uniform((), seed=FixedSeed(seed)))


def cutmix_share(alpha: float, seed, h: int, w: int):
    """The share that each pixel keeps of its own value, (h, w, 1): 0 inside a box, 1 outside."""
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


class Pairs:
    """What the mixings share.

    A subclass has `classes`, `seed` and `share(seed, h, w)`, the share that pixels keep of their own values: () or (h,
    w, 1).
    """

    def _check(self, **alphas):
        for name, alpha in alphas.items():
            if alpha <= 0:
                raise ValueError(f"{type(self).__name__}: {name} must be positive, got {alpha}.")

    def __call__(self, images, labels, step):
        """Images (b, h, w, c) and labels (b,) or (b, classes) at `step` -> float32 images (b, h, w, c), label rows (b,
        classes).
        """
        step = ops.cast(step, "int32")
        _, h, w, _ = ops.shape(images)
        keep = self.share(ops.stack([ops.full_like(step, self.seed), step]), h, w)
        return mix(ops.cast(images, "float32"), keep), mix(label_rows(labels, self.classes), ops.mean(keep))


@dataclasses.dataclass(frozen=True)
class Mixup(Pairs):
    """Mixes the images and label rows of each pair of neighbours, in one proportion per batch, sampled from Beta(alpha,
    alpha).

    Attributes:
        alpha: 0.2 mixes a little; with 1 every proportion is equally likely.
        classes: the width of the resulting label rows.
        seed: selects the random stream; the proportion is a pure function of (seed, step).
    """

    alpha: float
    classes: int
    seed: int = 0

    def __post_init__(self):
        self._check(alpha=self.alpha)

    def share(self, seed: Any, h: int, w: int) -> Any:
        return mixup_share(self.alpha, seed)


@dataclasses.dataclass(frozen=True)
class Cutmix(Pairs):
    """Exchanges a box between the images of each pair, one box per batch; labels are mixed by the resulting shares of
    pixels.

    The share of the area that the box covers is sampled from Beta(alpha, alpha). The box has the aspect ratio of the
    image and its centre anywhere in it; it is clipped at the image's border.

    Attributes:
        alpha: with 1 every area is equally likely.
        classes, seed: as in Mixup.
    """

    alpha: float
    classes: int
    seed: int = 0

    def __post_init__(self):
        self._check(alpha=self.alpha)

    def share(self, seed: Any, h: int, w: int) -> Any:
        return cutmix_share(self.alpha, seed, h, w)


@dataclasses.dataclass(frozen=True)
class MixupOrCutmix(Pairs):
    """Mixup or CutMix with equal probability, the same one for the whole batch (DeiT, arXiv 2012.12877).

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
