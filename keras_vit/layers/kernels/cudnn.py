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


def attend(q: Any, k: Any, v: Any) -> Any:
    """softmax(q k^T / sqrt(c)) v of q, k and v (b, n, k, c).

    The kernel trains only even numbers of tokens: an odd n gets one more token, to which none attends.
    """
    n, lengths = q.shape[1], None
    if n % 2:
        q, k, v = (jnp.pad(x, ((0, 0), (0, 1), (0, 0), (0, 0))) for x in (q, k, v))
        lengths = jnp.full((q.shape[0],), n, "int32")
    y = jax.nn.dot_product_attention(q, k, v, key_value_seq_lengths=lengths, implementation=_IMPLEMENTATION)
    return y[:, :n]
