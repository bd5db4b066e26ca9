"""Seeds that differ between replicas, and seeds that rematerialisation takes once and uses twice."""

import keras
from keras import ops

from keras_vit.layers.backend import replica_id, seed_dtype

# Large odd strides keep the streams of a seed's children separate: Keras counts calls in the second word, these change
# the first.
_CHILD = 0x3C6EF35
_REPLICA = 0x5851F43


class ReplicaSeedGenerator(keras.random.SeedGenerator):
    """A SeedGenerator whose seeds differ between the replicas of a tf.distribute strategy (Keras' own are the same on
    all).
    """

    def __init__(self, seed: int | None = None, name: str = "seeds", **kwargs):
        # A fixed name: Keras' default counts the generators of the process, so a checkpoint would not find its variable
        # again.
        super().__init__(seed, name=name, **kwargs)

    def next(self, ordered=True):
        return fold_in(super().next(ordered), replica_id(), stride=_REPLICA)


class FixedSeed(keras.random.SeedGenerator):
    """One seed, (2,) integers, in the form that `keras.random` functions accept. It has no state: every call gives the
    same.
    """

    def __init__(self, seed):
        self._seed = seed

    def next(self, ordered=True):
        return ops.cast(self._seed, seed_dtype())


def fold_in(seed, number, stride: int = _CHILD):
    """The `number`-th child of `seed`: (2,) integers -> (2,) integers, another stream, the same at every call."""
    offset = ops.cast(number, seed.dtype) * ops.cast(stride, seed.dtype)
    return seed + ops.stack([offset, ops.zeros_like(offset)])
