"""Masks of dropout from a hash of the seed and the place: a few integer operations per element, which XLA fuses into
what needs the mask.

A counter-based generator, such as JAX's Threefry, spends some hundred operations on each element: of a training step on
a TPU more than a quarter of the time, since a mask is made again wherever it is used. A mask needs no cryptography, but
rates that are exact, and independence of elements, layers, steps, replicas and seeds that differ in one bit;
tests/layers/test_masks.py tests that.

Words are 32 bits. `_mix` is a bijection of well-mixed shifts and products (lowbias32:
github.com/skeeto/hash-prospector, by exhaustive search).
"""

from typing import Any

from keras import ops

_ROW = 0x9E3779B9  # the golden ratio's bits: rows far apart
_SECOND = 0x7F4A7C15  # tells the second key from the first


def _word(value):
    return ops.cast(value, "uint32")


def _shifted(x, bits):
    """x xor (x >> bits)."""
    return ops.bitwise_xor(x, ops.right_shift(x, _word(bits)))


def _mix(x):
    """A bijection of words, each bit of which depends on every bit of x."""
    x = _shifted(x, 16) * _word(0x7FEB352D)
    x = _shifted(x, 15) * _word(0x846CA68B)
    return _shifted(x, 16)


def _keys(seed: Any, rows: int):
    """Two keys for each row, (rows,) words each, of a seed (2,). Every bit of it changes half of the bits of each."""
    first, second = _word(seed[0]), _word(seed[1])
    whole = _mix(_mix(first) + second)
    row = _mix(ops.arange(rows, dtype="uint32") * _word(_ROW) + whole)  # (rows,)
    return row, _mix(row + _mix(ops.bitwise_xor(whole, _word(_SECOND))))


def words(shape: tuple[int, ...], seed: Any) -> Any:
    """Random words, (b, ...) uint32: each row has keys of its own, and each place in it a hash of these and the place.

    Args:
        shape: of fixed sizes.
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
    """Which elements are kept, (b, ...) bool: each is dropped with probability `rate`, in steps of 2^-32."""
    return ops.greater_equal(words(shape, seed), _word(round(rate * 2**32)))
