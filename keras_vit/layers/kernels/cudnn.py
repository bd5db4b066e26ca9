"""Attention by cuDNN's kernel, on GPUs."""

from typing import Any, Literal

import jax
import jax.numpy as jnp
import keras

_IMPLEMENTATION: Literal["cudnn", "xla"] = "cudnn"


def platform() -> str:
    """The kind of this process's devices: "cpu", "gpu" or "tpu"."""
    return jax.devices()[0].platform


def usable(x: Any, width: int) -> bool:
    """Whether cuDNN attends here among tokens of x's dtype in heads of `width`: on a GPU from Ampere on, in 16 bits."""
    if keras.backend.standardize_dtype(x.dtype) not in ("bfloat16", "float16") or width % 8 or width > 128:
        return False
    return platform() == "gpu" and float(getattr(jax.devices()[0], "compute_capability", 0)) >= 8.0


def with_even_count(x: Any) -> Any:
    """Tokens x (b, n, ...), and after an odd number of them one of zeros: JAX refuses to train odd numbers by cuDNN."""
    return jnp.pad(x, ((0, 0), (0, x.shape[1] % 2), *((0, 0) for _ in x.shape[2:])))


def attend(q: Any, k: Any, v: Any, count: int | None = None) -> Any:
    """softmax(q k^T / sqrt(c)) v of q, k and v (b, n, k, c), where none attends to a token from `count` on.

    An odd n costs copies here, so callers make it even earlier, where copying is free.
    """
    n = q.shape[1]
    count = n if count is None else count
    q, k, v = (with_even_count(x) for x in (q, k, v))
    lengths = None if count == q.shape[1] else jnp.full((q.shape[0],), count, "int32")
    y = jax.nn.dot_product_attention(q, k, v, key_value_seq_lengths=lengths, implementation=_IMPLEMENTATION)
    return y[:, :n]
