"""Chooses a layer's kernel: on TPUs one of this package, on a GPU cuDNN's, on all other chips ordinary operations.

For TPUs the program chooses (`jax.lax.platform_dependent`), not Python: programs lowered elsewhere for a TPU have the
kernels.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
from jax.sharding import PartitionSpec

from keras_vit.layers.kernels import cudnn as gpu
from keras_vit.layers.kernels.self_check import trusted

_FEWEST = 128  # tokens by cuDNN; fewer were not timed on a GPU


def _may_have_kernels(x):
    """Whether x is bfloat16 tokens (b, n, d) in a traced program, split evenly over the devices."""
    if x.dtype != "bfloat16" or len(x.shape) != 3:
        return False
    if not all(isinstance(size, int) for size in x.shape):  # an export for batches of any size
        return False
    # Without jit the choice by chip would be compiled again at each call.
    return isinstance(x, jax.core.Tracer) and x.shape[0] % _devices()[0] == 0


def _devices():
    """The number of devices that Keras' distribution splits a batch over, and the heads."""
    distribution = keras.distribution.distribution()
    if distribution is None:
        return 1, 1
    mesh = distribution.device_mesh.backend_mesh
    return mesh.shape[distribution.batch_dim_name], mesh.shape.get("model", 1)


def _on_each_device(function, split, results=1):
    """A function of arrays, on each device's part: XLA cannot split a kernel by itself.

    Args:
        function: the function.
        split: for each argument, the axis of devices, "batch" or "model", that splits each of its axes; the first also
            for the results.
        results: number of results.
    """
    distribution = keras.distribution.distribution()
    if distribution is None:
        return function
    mesh = distribution.device_mesh.backend_mesh
    names = {"batch": distribution.batch_dim_name, "model": "model" if "model" in mesh.shape else None, None: None}
    specs = [PartitionSpec(*(names[axis] for axis in axes)) for axes in split]
    return jax.shard_map(
        function,
        mesh=mesh,
        in_specs=tuple(specs),
        out_specs=specs[0] if results == 1 else (specs[0],) * results,
        check_vma=False,
    )


def attention(x: Any, width: int, heads: int) -> Callable[[Any, Any, Any, Callable], Any] | None:
    """Attention as one kernel, without any term between scores and weights, for rows as short as short_rows.py
    requires.

    Args:
        x: tokens (b, n, d).
        width: of queries, keys and values (b, n, k*c).
        heads: number of heads k.

    Returns:
        None if there is no kernel, or a function of q, k, v and a function of these in ordinary operations, for all
            other chips.
    """
    if not _may_have_kernels(x):
        return None
    from keras_vit.layers.kernels import short_rows  # Pallas, which only these programs need

    _, shards = _devices()
    if heads % shards or not short_rows.fits(x.shape[1], width // shards, heads // shards):
        return None
    if not trusted("attention", "bfloat16"):
        return None
    kernel = _on_each_device(
        lambda q, k, v: short_rows.attend(q, k, v, heads // shards), [("batch", None, "model")] * 3
    )
    return lambda q, k, v, plain: jax.lax.platform_dependent(q, k, v, tpu=kernel, default=plain)


def cudnn(x: Any, width: int) -> bool:
    """Whether cuDNN's kernel is the default for tokens x (b, n, d) in heads of `width`, without masks: on one GPU, as
    measured (docs/performance.md), once it has agreed with ordinary operations there.
    """
    if not gpu.usable(x, width) or keras.distribution.distribution() is not None:
        return False
    if not all(isinstance(size, int) for size in x.shape) or x.shape[1] < _FEWEST:  # None in an export for any batch
        return False
    return trusted("cuDNN attention", keras.backend.standardize_dtype(x.dtype))


def normalization(x: Any, epsilon: float) -> Callable[[Any, Any, Any, Callable], Any] | None:
    """Layer normalisation over the last axis of x (b, n, d) as one kernel.

    Returns:
        None if there is no kernel, or a function of x, gamma (d,), beta (d,) and a function of these in ordinary
            operations, for all other chips: (x, x normalised).
    """
    if not _may_have_kernels(x):
        return None
    from keras_vit.layers.kernels import layer_norm

    if not layer_norm.fits(*x.shape[1:]) or not trusted("layer normalization", "bfloat16"):
        return None

    def kernel(x, gamma, beta):
        rows = [jnp.asarray(row, "float32")[None] for row in (gamma, beta)]  # (d,) -> (1, d)
        split = [("batch", None, None), (None, None), (None, None)]
        return _on_each_device(lambda x, gamma, beta: layer_norm.fork(x, gamma, beta, epsilon), split, results=2)(
            x, *rows
        )

    return lambda x, gamma, beta, plain: jax.lax.platform_dependent(x, gamma, beta, tpu=kernel, default=plain)
