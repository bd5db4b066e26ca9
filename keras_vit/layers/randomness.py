"""Seeds that differ between replicas, and that rematerialisation can draw once and use twice."""

import keras
from keras import ops

from keras_vit.layers.backend import replica_id, seed_dtype

# Large odd numbers keep the streams of a seed's children apart: Keras counts calls in the second word, these move the first.
_CHILD = 0x3C6EF35
_REPLICA = 0x5851F43


class ReplicaSeedGenerator(keras.random.SeedGenerator):
    """A SeedGenerator whose draws differ between the replicas of a tf.distribute strategy (Keras' own are the same on all)."""

    def __init__(self, seed=None, name="seeds", **kwargs):
        # A fixed name: Keras' own counts the generators of the process, and a checkpoint would not know it again.
        super().__init__(seed, name=name, **kwargs)

    def next(self, ordered=True):
        return fold_in(super().next(ordered), replica_id(), stride=_REPLICA)


class Drawn(keras.random.SeedGenerator):
    """A seed that has been drawn already, in the shape that `keras.random` functions take. It has no state."""

    def __init__(self, seed):
        self._drawn = seed

    def next(self, ordered=True):
        return ops.cast(self._drawn, seed_dtype())


def fold_in(seed, number, stride=_CHILD):
    """Returns the `number`-th child of `seed` ((2,) integers): another stream, the same at every call."""
    offset = ops.cast(number, seed.dtype) * ops.cast(stride, seed.dtype)
    return seed + ops.stack([offset, ops.zeros_like(offset)])
