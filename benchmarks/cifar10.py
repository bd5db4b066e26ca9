"""CIFAR-10 in memory, with training batches made on the device: for benchmarks on JAX, without TensorFlow."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

CLASSES = 10


def read(path: str | None, split: str = "train") -> tuple[np.ndarray, np.ndarray]:
    """(images (n, 32, 32, 3) uint8, labels (n,) int32) of the "train" or the "test" split.

    From an .npz file with `images` and `labels`, and for the test split `test_images` and `test_labels`; without one by
    Keras' download.
    """
    if path:
        arrays, prefix = np.load(path), "" if split == "train" else "test_"
        return arrays[f"{prefix}images"], arrays[f"{prefix}labels"].astype("int32")
    import keras

    images, labels = keras.datasets.cifar10.load_data()[split == "test"]
    return images, labels[:, 0].astype("int32")


def batches(images: np.ndarray, labels: np.ndarray, size: int, seed: int, padding: int = 4) -> Iterator[Any]:
    """Endless (images (size, h, w, c), labels (size,)) on the device: shifted by up to `padding` pixels, half flipped.

    Each epoch has a new order, and leaves out what does not fill a batch.
    """
    import jax
    import jax.numpy as jnp

    n, h, w, _ = images.shape
    key = jax.random.key(seed)

    @jax.jit
    def batch(images, labels, step):
        epoch, part = step // (n // size), step % (n // size)
        order = jax.random.permutation(jax.random.fold_in(key, 2 * epoch), n)
        index = jax.lax.dynamic_slice(order, (part * size,), (size,))
        shift, flip = jax.random.split(jax.random.fold_in(key, 2 * step + 1))
        x = jnp.pad(images[index], ((0, 0), (padding, padding), (padding, padding), (0, 0)))
        start = jax.random.randint(shift, (size, 2), 0, 2 * padding + 1)
        x = jax.vmap(lambda x, at: jax.lax.dynamic_slice(x, (at[0], at[1], 0), (h, w, x.shape[2])))(x, start)
        flipped = jax.random.bernoulli(flip, 0.5, (size, 1, 1, 1))
        return jnp.where(flipped, x[:, :, ::-1], x), labels[index]

    images, labels = jax.device_put(images), jax.device_put(labels)
    return (batch(images, labels, step) for step in itertools.count())
