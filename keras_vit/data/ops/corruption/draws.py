"""Random tensors from a seed."""

import tensorflow as tf


class Draws:
    """Random float64 tensors, each a pure function of the seed and of how many were drawn before it.

    Args:
        seed: (2,) integers.
    """

    def __init__(self, seed):
        self._seed, self._count = seed, 0

    def _next(self):
        self._count += 1
        return tf.random.experimental.stateless_fold_in(self._seed, self._count)

    def normal(self, shape) -> tf.Tensor:
        """Of mean 0 and standard deviation 1."""
        return tf.random.stateless_normal(shape, self._next(), dtype=tf.float64)

    def uniform(self, shape, low=0.0, high=1.0) -> tf.Tensor:
        """From `low` to `high`."""
        return tf.random.stateless_uniform(shape, self._next(), low, high, tf.float64)

    def integers(self, shape, low: int, high: int) -> tf.Tensor:
        """int32, from `low` to `high` - 1."""
        return tf.random.stateless_uniform(shape, self._next(), low, high, tf.int32)

    def poisson(self, rate) -> tf.Tensor:
        """Counts, one for each element of `rate`."""
        return tf.random.stateless_poisson(tf.shape(rate), self._next(), rate, tf.float64)
