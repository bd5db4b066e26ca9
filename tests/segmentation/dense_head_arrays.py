"""Weights and maps sampled by name: shared by the goldens of dense heads and the tests that read them."""

import pathlib
import zlib

import numpy as np

GOLDENS = pathlib.Path(__file__).parent / "goldens" / "dense_heads.npz"
SIZES = {"square": (3, 3), "wide": (2, 3)}
WIDTH, CLASSES = 8, 2  # of the maps, and of the logits


def sample(name, shape):
    """A float32 array; the same name and shape always give the same values. `name` ends as in Keras."""
    normal = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(tuple(shape))
    last = name.rsplit("/", 1)[-1]
    if last in ("gamma", "moving_variance"):
        return (1 + 0.2 * np.abs(normal)).astype("float32")
    return (0.3 * normal).astype("float32")


def maps(size, count=4, scales=(1, 1, 1, 1), width=WIDTH):
    """`count` maps (1, h, w, width), h and w times each of `scales`."""
    h, w = size
    return [sample(f"map_{i}", (1, round(h * s), round(w * s), width)) for i, s in zip(range(count), scales)]


def fill(layer):
    """Gives a layer's weights the sampled values of their paths."""
    for weight in layer.weights:
        weight.assign(sample(weight.path, weight.shape))


def thinned(x):
    """Some of a large map's places (1, h, w, c): the goldens stay small."""
    step = max(x.shape[1] // 8, 1)
    return np.asarray(x)[:, ::step, ::step]
