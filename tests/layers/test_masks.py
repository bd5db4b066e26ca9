"""layers.masks: rates, and independence of places, rows, layers, steps, replicas and seeds; broken hashes are found."""

import numpy as np
import pytest
from keras import ops

from keras_vit.layers import dropout
from keras_vit.layers.dropout import _CHILD, _REPLICA

ROWS, PLACES, RATE = 64, 4096, 0.1


def as_array(x):
    return np.asarray(ops.convert_to_numpy(x))


def dropped(words_of, seed, rate=RATE):
    """Which elements of a (ROWS, PLACES) mask are dropped."""
    return words_of((ROWS, PLACES), seed) < round(rate * 2**32)


def deviation(share, expected, n):
    """How many standard deviations a share of n is from what is expected."""
    return abs(share - expected) / np.sqrt(expected * (1 - expected) / n)


def together(one, other):
    """The deviation from independence of two masks, in standard deviations of how often both drop an element."""
    return deviation((one & other).mean(), RATE**2, one.size)


# Pairs of seeds that a training meets: successive steps, replicas, children of a block's seed, neighbours in any bit.
SEEDS = [((a, b), (a, b + 1)) for a in (0, 1, 12345) for b in (0, 1, 7, 2**20)]
SEEDS += [((a, 3), ((a + _REPLICA) % 2**32, 3)) for a in (0, 1, 2**31)]
SEEDS += [((a, 3), ((a + _CHILD) % 2**32, 3)) for a in (0, 1, 2**31)]
SEEDS += [((9, 4), (9 ^ 1 << bit, 4)) for bit in range(0, 32, 5)] + [
    ((9, 4), (9, 4 ^ 1 << bit)) for bit in range(0, 32, 5)
]
SEEDS += [((5, 7), (7, 5)), ((1, 0), (0, 1))]
LIMIT = 5.5  # standard deviations: chance exceeds it once in 26 million


def faults(words_of):
    """What is wrong with a function (shape, seed) -> words: yields the name of each test that it fails."""
    return (name for name, value in deviations(words_of) if value > LIMIT)


def deviations(words_of):
    """(name, standard deviations from what is expected) of every test."""
    for seed in ((0, 0), (1, 2), (2**31, 2**20)):
        mask = dropped(words_of, seed)
        for rate in (0.02, 0.1, 0.5, 0.9):
            yield "rate", deviation(dropped(words_of, seed, rate).mean(), rate, mask.size)
        yield "rate of rows", np.max(deviation(mask.mean(1), RATE, PLACES)) - 1  # the largest of many
        yield "rate of places", np.max(deviation(mask.mean(0), RATE, ROWS)) - 2
        bits = np.unpackbits(words_of((ROWS, PLACES), seed).view("uint8").reshape(-1, 4), axis=1)  # of each word
        yield "bits", np.max(deviation(bits.mean(0), 0.5, len(bits)))
        for step in (1, 2, 3, 4, 8, 12, 64, 197, 768, 1024):
            yield "places", together(mask[:, step:], mask[:, :-step])
        for step in (1, 2, 3, 8, 32):
            yield "rows", together(mask[step:], mask[:-step])
    for one, other in SEEDS:
        a, b = dropped(words_of, one), dropped(words_of, other)
        yield "seeds", together(a, b)
        yield "seeds, rows exchanged", together(a, np.roll(b, 1, 0))
        for bit in (1, 2, 4, 64):  # places exchanged in pairs
            yield "seeds, places exchanged", together(a, b[:, np.arange(PLACES) ^ bit])


def ours(shape, seed):
    return as_array(dropout.words(shape, np.array(seed, "int64")))


@pytest.mark.extended
def test_the_masks_have_no_fault():
    assert not list(faults(ours))


def mixed(x):
    """lowbias32, in NumPy."""
    x = np.asarray(x, "uint32")
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))


def places(shape):
    return np.arange(np.prod(shape), dtype="uint32").reshape(shape)


BROKEN = {
    # Seeds that differ in a bit give the same masks with their places exchanged.
    "the seed is only mixed with the place": lambda shape, seed: mixed(
        places(shape) ^ np.uint32(seed[0]) ^ np.uint32(seed[1])
    ),
    "only one word of the seed counts": lambda shape, seed: mixed(places(shape) + mixed(seed[0])),
    "the second word is added to the place": lambda shape, seed: mixed(
        places(shape) + mixed(seed[0]) + np.uint32(seed[1])
    ),
    "every row is the same": lambda shape, seed: np.tile(
        mixed(places((1, shape[1])) ^ mixed((seed[0] * 31 + seed[1] + 7) % 2**32)), (shape[0], 1)
    ),
    "nothing is mixed": lambda shape, seed: (
        places(shape) * np.uint32(0x9E3779B1) + mixed(mixed(seed[0]) + np.uint32(seed[1]))
    ),
    "a bit is stuck": lambda shape, seed: ours(shape, seed) | np.uint32(2**20),
    "the rate is off by a hundredth": lambda shape, seed: (ours(shape, seed) * 0.99).astype("uint32"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_hash_is_found(name):
    with np.errstate(over="ignore"):
        assert next(faults(BROKEN[name]), None)


def test_words_are_those_of_numpy():
    """The same integers, computed by NumPy: on every backend and device the same masks."""
    with np.errstate(over="ignore"):
        u = np.uint32
        whole = mixed(mixed(u(12)) + u(345))
        row = mixed(np.arange(3, dtype="uint32") * u(0x9E3779B9) + whole)
        second = mixed(row + mixed(whole ^ u(0x7F4A7C15)))
        x = (places((1, 4 * 5)).reshape(1, 4, 5) ^ row[:, None, None]) * u(0x7FEB352D)
        x = (x ^ (x >> u(15))) ^ second[:, None, None]
        x = (x ^ (x >> u(16))) * u(0x846CA68B)
        x = (x ^ (x >> u(13))) * u(0x9E3779B1)
        np.testing.assert_array_equal(ours((3, 4, 5), (12, 345)), x ^ (x >> u(16)))


@pytest.mark.parametrize("shape", [(6,), (6, 1), (2, 3, 4, 5)])
def test_masks_have_any_shape(shape):
    assert ours(shape, (1, 2)).shape == shape and len(np.unique(ours(shape, (1, 2)))) == np.prod(shape)


def test_a_rate_of_nothing_keeps_everything():
    assert as_array(dropout.keep_mask((8, 64), 0.0, np.array([1, 2]))).all()


def test_seeds_larger_than_a_word_count_by_their_lower_bits():
    np.testing.assert_array_equal(ours((2, 8), (5, 6)), ours((2, 8), (5 + 2**32, 6 + 2**40)))
