"""Noise on pixels (h, w, 3), float64 from 0 to 1; see the package's docstring."""

import tensorflow as tf


def gaussian_noise(x: tf.Tensor, draws, deviation: float) -> tf.Tensor:
    """Normal noise."""
    return x + deviation * draws.normal(x.shape)


def shot_noise(x: tf.Tensor, draws, photons: float) -> tf.Tensor:
    """The counts of a sensor that white gives `photons` on average."""
    return draws.poisson(x * photons) / photons


def impulse_noise(x: tf.Tensor, draws, share: float) -> tf.Tensor:
    """A share of the values, each channel on its own, black or white."""
    hit, white = draws.uniform(x.shape) <= share, draws.uniform(x.shape) <= 0.5
    return tf.where(hit, tf.cast(white, x.dtype), x)


def speckle_noise(x: tf.Tensor, draws, deviation: float) -> tf.Tensor:
    """Normal noise in proportion to the pixel."""
    return x + x * deviation * draws.normal(x.shape)
