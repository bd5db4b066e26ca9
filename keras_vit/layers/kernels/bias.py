"""A bias whose gradient is a sum in float32 or a product with ones."""

import functools
from typing import Any

import jax
import jax.numpy as jnp


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def add(y: Any, bias: Any, gradient: str) -> Any:
    """y (..., d) + bias (d,); `gradient` is "sum" or "product", the form of the bias' gradient."""
    return y + bias


def _gradients(gradient, kept, g):
    rows = tuple(range(g.ndim - 1))
    if gradient == "sum":
        return g, g.astype("float32").sum(rows).astype(kept.dtype)
    ones = jnp.ones((*g.shape[:-1], 8), g.dtype)  # eight columns: for one XLA makes the reduction again
    sums = jax.lax.dot_general(ones, g, ((rows, rows), ((), ())), preferred_element_type="float32")
    return g, sums[0].astype(kept.dtype)


add.defvjp(lambda y, bias, gradient: (y + bias, bias), _gradients)
