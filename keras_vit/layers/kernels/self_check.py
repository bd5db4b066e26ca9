"""Verifies cuDNN's attention on this process's GPU: its first use compares a small case with ordinary operations."""

import concurrent.futures
import functools
import warnings
from typing import Any

import jax
import keras
import numpy as np

from keras_vit.layers.arguments import setting
from keras_vit.layers.kernels import cudnn

DOT_PRODUCT_ATTENTION = "KERAS_VIT_DOT_PRODUCT_ATTENTION"
_TOLERANCE = {"bfloat16": 2**-6, "float16": 2**-9}  # four steps of the dtype, relative to each array's largest number
_FEWEST = 128  # tokens; fewer were not timed on a GPU
_SHAPE = (2, 197, 2, 64)  # (b, n, k, c): the tokens and heads that were timed (docs/performance.md)


def local_gpus() -> list:
    """This process's GPUs."""
    return [device for device in jax.local_devices() if device.platform == "gpu"]


def _with_gradients(function, given):
    """A function's results and, with the results as upstream gradients, its arguments' gradients."""
    results, backward = jax.vjp(function, *given)
    return jax.tree.leaves((results, backward(results)))


def _difference(dtype, device):
    """The largest difference between the kernel and float32 operations, relative to each array's largest number."""
    generator = np.random.default_rng(0)
    given = [jax.device_put(generator.normal(size=_SHAPE).astype(dtype), device) for _ in range(3)]
    found = jax.jit(lambda *given: _with_gradients(cudnn.attend, given))(*given)
    with jax.default_matmul_precision("highest"):
        plain = jax.jit(lambda *given: _with_gradients(jax.nn.dot_product_attention, given))
        exact = plain(*(x.astype("float32") for x in given))
    pairs = [(np.asarray(ours, "float32"), np.asarray(theirs)) for ours, theirs in zip(found, exact, strict=True)]
    # NaN if any is.
    return float(np.max([np.abs(ours - theirs).max() / np.abs(theirs).max() for ours, theirs in pairs]))


@functools.cache
def trusted(dtype: str) -> bool:
    """Whether this process's programs may use the kernel for tokens of `dtype`, "bfloat16" or "float16".

    The first call compares, also while tracing; a kernel that fails or differs is disabled with one warning. With
    several processes each checks its own first device.

    Raises:
        ValueError: for an unknown value of the environment variable KERAS_VIT_DOT_PRODUCT_ATTENTION: "check" does the
            above, "on" and "off" use the kernel or not, without a comparison.
    """
    chosen, devices = setting(DOT_PRODUCT_ATTENTION, "check", "on", "off"), local_gpus()
    if chosen != "check" or not devices:
        return chosen != "off"
    try:
        with concurrent.futures.ThreadPoolExecutor(1) as other:  # JAX traces per thread: there it computes
            difference = other.submit(_difference, dtype, devices[0]).result()
        if difference <= _TOLERANCE[dtype]:  # false for NaN
            return True
        problem = f"differs from ordinary operations by {difference:.1e} of the largest value (device: {devices[0]})"
    except Exception as error:  # whatever compiler or chip raise
        problem = f"fails (device: {devices[0]}): {type(error).__name__}: {str(error)[:500]}"
    warnings.warn(
        f"cuDNN's attention in {dtype} {problem}. This process uses ordinary operations instead, which are slower."
        f" Please report it with the versions of JAX, {jax.__version__}, and of CUDA. {DOT_PRODUCT_ATTENTION}=off"
        f" switches it off without this check; {DOT_PRODUCT_ATTENTION}=on forces it.",
        stacklevel=2,
    )
    return False


def is_default(x: Any, width: int) -> bool:
    """Whether cuDNN's kernel is the default for tokens x (b, n, d) in heads of `width`, without masks: on one GPU, as
    measured (docs/performance.md), once it has agreed with ordinary operations there.
    """
    if not cudnn.usable(x, width) or keras.distribution.distribution() is not None:
        return False
    if not all(isinstance(size, int) for size in x.shape) or x.shape[1] < _FEWEST:  # None in an export for any batch
        return False
    return trusted(keras.backend.standardize_dtype(x.dtype))
