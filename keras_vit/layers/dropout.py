"""Dropout of activations and of whole residual branches, with masks that differ between replicas.

On JAX and on TPUs masks are a hash of seed and place: a few integer operations per element, which XLA fuses into what
needs the mask. A counter-based generator, such as JAX's Threefry, spends some hundred operations per element: more than
a quarter of a training step on a TPU, since a mask is made wherever it is used. A mask needs no cryptography, but exact
rates, and independence of elements, layers, steps, replicas and seeds that differ in one bit
(tests/layers/test_masks.py). Words are 32 bits. `_mix` is a bijection of well-mixed shifts and products (lowbias32:
github.com/skeeto/hash-prospector, by exhaustive search).
"""

from typing import Any

import keras
from keras import ops

from keras_vit.layers.arguments import integer
from keras_vit.layers.arguments import rate as checked_rate
from keras_vit.layers.backend import hashes_masks, replica_id, seed_dtype
from keras_vit.layers.registration import serializable

# Large odd strides separate the streams of a seed's children; Keras counts calls in the second word, these change the
# first.
_CHILD = 0x3C6EF35
_REPLICA = 0x5851F43


class ReplicaSeedGenerator(keras.random.SeedGenerator):
    """A SeedGenerator with different seeds per tf.distribute replica (Keras' own are the same on all)."""

    def __init__(self, seed: int | None = None, name: str = "seeds", **kwargs):
        # A fixed name: Keras' default counts the process's generators, so a checkpoint could not find its variable.
        super().__init__(seed, name=name, **kwargs)

    def next(self, ordered=True):
        return fold_in(super().next(ordered), replica_id(), stride=_REPLICA)


class FixedSeed(keras.random.SeedGenerator):
    """One seed, (2,) integers, for `keras.random` functions; stateless, so every call gives the same."""

    def __init__(self, seed):
        self._seed = seed

    def next(self, ordered=True):
        return ops.cast(self._seed, seed_dtype())


def fold_in(seed, number, stride: int = _CHILD):
    """The `number`-th child of `seed`: (2,) integers -> (2,) integers, a separate, reproducible stream."""
    offset = ops.cast(number, seed.dtype) * ops.cast(stride, seed.dtype)
    return seed + ops.stack([offset, ops.zeros_like(offset)])


_ROW = 0x9E3779B9  # the golden ratio's bits: rows far apart
_SECOND = 0x7F4A7C15  # separates the second key from the first


def _word(value):
    return ops.cast(value, "uint32")


def _shifted(x, bits):
    """x xor (x >> bits)."""
    return ops.bitwise_xor(x, ops.right_shift(x, _word(bits)))


def _mix(x):
    """A bijection of words in which every output bit depends on every input bit."""
    x = _shifted(x, 16) * _word(0x7FEB352D)
    x = _shifted(x, 15) * _word(0x846CA68B)
    return _shifted(x, 16)


def _keys(seed: Any, rows: int):
    """Two keys per row, (rows,) words each, from a seed (2,); every bit of it changes half of the bits of each."""
    first, second = _word(seed[0]), _word(seed[1])
    whole = _mix(_mix(first) + second)
    row = _mix(ops.arange(rows, dtype="uint32") * _word(_ROW) + whole)  # (rows,)
    return row, _mix(row + _mix(ops.bitwise_xor(whole, _word(_SECOND))))


def words(shape: tuple[int, ...], seed: Any) -> Any:
    """Random words, (b, ...) uint32: a hash of two keys per row and the place in it.

    Args:
        shape: static.
        seed: (2,) integers, of which 32 bits count.
    """
    rows, *rest = shape
    place = ops.zeros((1,) * len(rest), "uint32")
    stride = 1
    for axis in reversed(range(len(rest))):
        steps = ops.arange(rest[axis], dtype="uint32") * _word(stride % 2**32)
        place = place + ops.reshape(steps, [-1 if i == axis else 1 for i in range(len(rest))])
        stride *= rest[axis]
    one, two = (ops.reshape(key, (rows,) + (1,) * len(rest)) for key in _keys(seed, rows))
    x = ops.bitwise_xor(place[None], one) * _word(0x7FEB352D)  # (b, ...)
    x = _shifted(ops.bitwise_xor(_shifted(x, 15), two), 16) * _word(0x846CA68B)
    x = _shifted(x, 13) * _word(0x9E3779B1)
    return _shifted(x, 16)


def keep_mask(shape: tuple[int, ...], rate: float, seed: Any) -> Any:
    """Which elements to keep, (b, ...) bool: each is dropped with probability `rate`, in steps of 2^-32."""
    return ops.greater_equal(words(shape, seed), _word(round(rate * 2**32)))


class _RandomLayer(keras.layers.Layer):
    """The base of both layers: a rate, a seed generator, and an optional seed in the call."""

    def __init__(self, rate: float, seed: int | None = None, **kwargs):
        super().__init__(**kwargs)
        self.rate = checked_rate(rate, f"{type(self).__name__}: rate")
        self.seed = None if seed is None else integer(seed, f"{type(self).__name__}: seed", least=0)
        self.supports_masking = True
        self.seed_generator = ReplicaSeedGenerator(self.seed) if self.rate else None

    def noise_shape(self, x: Any) -> tuple | None:
        """The mask's shape; None for the shape of x."""
        return None

    def call(self, x, training=False, seed=None):
        """With `seed`, (2,) integers, the mask comes from it; otherwise from the layer's own generator."""
        if not training or not self.rate:
            return x
        generator, shape = self.seed_generator if seed is None else FixedSeed(seed), self.noise_shape(x)
        if not hashes_masks(shape or tuple(x.shape)):
            return keras.random.dropout(x, self.rate, noise_shape=shape, seed=generator)
        kept = keep_mask(shape or tuple(x.shape), self.rate, generator.next())
        return keras.ops.where(kept, x / (1.0 - self.rate), keras.ops.zeros_like(x))

    def compute_output_shape(self, input_shape, **_):
        return input_shape

    def get_config(self):
        return {**super().get_config(), "rate": self.rate, "seed": self.seed}


@serializable
class Dropout(_RandomLayer):
    """Zeroes elements with probability `rate`, scales the others by 1 / (1 - rate). Masks differ between replicas."""


@serializable
class DropPath(_RandomLayer):
    """Drops a residual branch of whole examples (stochastic depth, arXiv 1603.09382), else scales by 1 / (1 - rate)."""

    def noise_shape(self, x: Any) -> tuple | None:
        return (keras.ops.shape(x)[0],) + (1,) * (len(x.shape) - 1)
