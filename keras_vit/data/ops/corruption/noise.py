"""Random tensors from a seed, and noise on pixels (h, w, 3), float64 from 0 to 1; see the package's docstring."""

import tensorflow as tf


class Draws:
    """Random float64 tensors, each a pure function of the seed, (2,) integers, and of the number of earlier draws."""

    def __init__(self, seed):
        self._seed, self._count = seed, 0

    def _next(self):
        self._count += 1
        return tf.random.experimental.stateless_fold_in(self._seed, self._count)

    def normal(self, shape) -> tf.Tensor:
        """Mean 0, standard deviation 1."""
        return tf.random.stateless_normal(shape, self._next(), dtype=tf.float64)

    def uniform(self, shape, low=0.0, high=1.0) -> tf.Tensor:
        """From `low` to `high`."""
        return tf.random.stateless_uniform(shape, self._next(), low, high, tf.float64)

    def integers(self, shape, low: int, high: int) -> tf.Tensor:
        """int32, from `low` to `high` - 1."""
        return tf.random.stateless_uniform(shape, self._next(), low, high, tf.int32)

    def poisson(self, rate) -> tf.Tensor:
        """Counts, one per element of `rate`."""
        return tf.random.stateless_poisson(tf.shape(rate), self._next(), rate, tf.float64)


def gaussian_noise(x: tf.Tensor, draws, deviation: float) -> tf.Tensor:
    """Normal noise."""
    return x + deviation * draws.normal(x.shape)


def shot_noise(x: tf.Tensor, draws, photons: float) -> tf.Tensor:
    """Photon counts of a sensor that averages `photons` for white."""
    return draws.poisson(x * photons) / photons


def impulse_noise(x: tf.Tensor, draws, share: float) -> tf.Tensor:
    """Turns a share of the values, channel by channel, black or white."""
    hit, white = draws.uniform(x.shape) <= share, draws.uniform(x.shape) <= 0.5
    return tf.where(hit, tf.cast(white, x.dtype), x)


def speckle_noise(x: tf.Tensor, draws, deviation: float) -> tf.Tensor:
    """Normal noise proportional to the pixel."""
    return x + x * deviation * draws.normal(x.shape)
