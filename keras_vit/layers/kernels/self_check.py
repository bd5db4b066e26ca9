"""Verifies a kernel on this process's TPU or GPU: its first use compares a small case with ordinary operations."""

import concurrent.futures
import dataclasses
import functools
import warnings
from collections.abc import Callable

import jax
import numpy as np

from keras_vit.layers.arguments import setting

TPU_KERNELS, DOT_PRODUCT_ATTENTION = "KERAS_VIT_TPU_KERNELS", "KERAS_VIT_DOT_PRODUCT_ATTENTION"
_TOLERANCE = {"bfloat16": 2**-6, "float16": 2**-9}  # four steps of the dtype, relative to each array's largest number
_HEADS, _EPSILON = 2, 1e-6


def local_devices(platform: str) -> list:
    """This process's TPUs ("tpu") or GPUs ("gpu"); none if programs are only compiled for them."""
    return [device for device in jax.local_devices() if device.platform == platform]


def _split(given):
    return [x.reshape(*x.shape[:2], _HEADS, -1) for x in given]  # (b, n, k*c) -> (b, n, k, c)


def _plain_attention(*given):
    return jax.nn.dot_product_attention(*_split(given)).reshape(given[0].shape)


def _attention():
    from keras_vit.layers.kernels import short_rows

    return lambda *given: short_rows.attend(*given, _HEADS), _plain_attention, [(2, 17, 128)] * 3


def _cudnn_attention():
    from keras_vit.layers.kernels import cudnn

    shapes = [(2, 197, 128)] * 3  # the tokens and heads that were timed (docs/performance.md)
    return lambda *given: cudnn.attend(*_split(given)).reshape(given[0].shape), _plain_attention, shapes


def _normalization():
    from keras_vit.layers.kernels import layer_norm

    def plain(x, gamma, beta):
        return x, jax.nn.standardize(x, epsilon=_EPSILON) * gamma + beta

    def kernel(x, gamma, beta):
        return layer_norm.fork(x, gamma.astype("float32"), beta.astype("float32"), _EPSILON)

    return kernel, plain, [(2, 17, 128), (1, 128), (1, 128)]


def _bias():
    from keras_vit.layers.kernels import bias

    return bias.add, lambda y, bias: y + bias, [(2, 17, 128), (128,)]


@dataclasses.dataclass(frozen=True)
class _Kernel:
    case: Callable
    """() -> (the kernel, the same in ordinary operations, the shapes of their arguments)."""
    platform: str = "tpu"
    setting: str = TPU_KERNELS


_KERNELS = {
    "attention": _Kernel(_attention),
    "layer normalization": _Kernel(_normalization),
    "bias gradients": _Kernel(_bias),
    "cuDNN attention": _Kernel(_cudnn_attention, "gpu", DOT_PRODUCT_ATTENTION),
}


def _with_gradients(function, given):
    """A function's results and, with the results as upstream gradients, its arguments' gradients."""
    results, backward = jax.vjp(function, *given)
    return jax.tree.leaves((results, backward(results)))


def _difference(kernel, dtype, device):
    """The largest difference between a kernel and float32 operations, relative to each array's largest number."""
    function, plain, shapes = _KERNELS[kernel].case()
    generator = np.random.default_rng(0)
    given = [jax.device_put(generator.normal(size=shape).astype(dtype), device) for shape in shapes]
    found = jax.jit(lambda *given: _with_gradients(function, given))(*given)
    with jax.default_matmul_precision("highest"):
        exact = jax.jit(lambda *given: _with_gradients(plain, given))(*(x.astype("float32") for x in given))
    pairs = [(np.asarray(ours, "float32"), np.asarray(theirs)) for ours, theirs in zip(found, exact, strict=True)]
    # NaN if any is.
    return float(np.max([np.abs(ours - theirs).max() / np.abs(theirs).max() for ours, theirs in pairs]))


@functools.cache
def trusted(kernel: str, dtype: str) -> bool:
    """Whether this process's programs may use a kernel.

    The first call compares, also while tracing; a kernel that fails or differs is disabled with one warning. Without
    such a device here nothing is compared, and programs compiled for TPUs elsewhere have the kernel. With several
    processes each checks its own first device.

    Args:
        kernel: "attention", "layer normalization" or "bias gradients" on TPUs, "cuDNN attention" on GPUs.
        dtype: of the tokens, "bfloat16" or "float16".

    Raises:
        ValueError: for an unknown value of the environment variable KERAS_VIT_TPU_KERNELS or, for cuDNN's,
            KERAS_VIT_DOT_PRODUCT_ATTENTION: "check" does the above, "on" and "off" use the kernels or not, without a
            comparison.
    """
    row = _KERNELS[kernel]
    chosen, devices = setting(row.setting, "check", "on", "off"), local_devices(row.platform)
    if chosen != "check" or not devices:
        return chosen != "off"
    try:
        with concurrent.futures.ThreadPoolExecutor(1) as other:  # JAX traces per thread: there it computes
            difference = other.submit(_difference, kernel, dtype, devices[0]).result()
        if difference <= _TOLERANCE[dtype]:  # false for NaN
            return True
        problem = f"differs from ordinary operations by {difference:.1e} of the largest value (device: {devices[0]})"
    except Exception as error:  # whatever compiler or chip raise
        problem = f"fails (device: {devices[0]}): {type(error).__name__}: {str(error)[:500]}"
    warnings.warn(
        f"The {row.platform.upper()} kernel for {kernel} in {dtype} {problem}. This process uses ordinary operations"
        f" instead, which are slower. Please report it with the versions of JAX, {jax.__version__}, and of libtpu or"
        f" CUDA. {row.setting}=off switches such kernels off without this check; {row.setting}=on forces them.",
        stacklevel=2,
    )
    return False
