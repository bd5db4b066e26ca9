"""Random tensors from a seed, and noise on pixels (h, w, 3), float64 from 0 to 1; see the package's docstring."""

import tensorflow as tf


class Draws:
    """Draws random float64 tensors, each a pure function of the (2,) integer seed and the number of earlier draws."""

    def __init__(self, seed):
        self._seed, self._count = seed, 0

    def _next(self):
        self._count += 1
        return tf.random.experimental.stateless_fold_in(self._seed, self._count)

    def normal(self, shape) -> tf.Tensor:
        """Draws from a standard normal distribution."""
        return tf.random.stateless_normal(shape, self._next(), dtype=tf.float64)

    def uniform(self, shape, low=0.0, high=1.0) -> tf.Tensor:
        """Draws uniformly from `low` to `high`."""
        return tf.random.stateless_uniform(shape, self._next(), low, high, tf.float64)

    def integers(self, shape, low: int, high: int) -> tf.Tensor:
        """Draws int32 uniformly from `low` to `high` - 1."""
        return tf.random.stateless_uniform(shape, self._next(), low, high, tf.int32)

    def poisson(self, rate) -> tf.Tensor:
        """Draws a Poisson count per element of `rate`."""
        return tf.random.stateless_poisson(tf.shape(rate), self._next(), rate, tf.float64)


def gaussian_noise(x: tf.Tensor, draws, deviation: float) -> tf.Tensor:
    """Adds normal noise."""
    return x + deviation * draws.normal(x.shape)


def shot_noise(x: tf.Tensor, draws, photons: float) -> tf.Tensor:
    """Simulates photon counts of a sensor that averages `photons` for white."""
    return draws.poisson(x * photons) / photons


def impulse_noise(x: tf.Tensor, draws, share: float) -> tf.Tensor:
    """Sets a share of the values to black or white, each channel separately."""
    hit, white = draws.uniform(x.shape) <= share, draws.uniform(x.shape) <= 0.5
    return tf.where(hit, tf.cast(white, x.dtype), x)


def speckle_noise(x: tf.Tensor, draws, deviation: float) -> tf.Tensor:
    """Adds normal noise proportional to the pixel."""
    return x + x * deviation * draws.normal(x.shape)
