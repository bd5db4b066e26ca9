"""A bias with a gradient that the matrix unit sums."""

from typing import Any

import jax
import jax.numpy as jnp


@jax.custom_vjp
def add(y: Any, bias: Any) -> Any:
    """y (..., d) + bias (d,); the bias' gradient is a product with ones, summed in float32."""
    return y + bias


def _gradients(kept, g):
    rows = tuple(range(g.ndim - 1))
    ones = jnp.ones((*g.shape[:-1], 8), g.dtype)  # eight columns: for one XLA makes the reduction again
    sums = jax.lax.dot_general(ones, g, ((rows, rows), ((), ())), preferred_element_type="float32")
    return g, sums[0].astype(kept.dtype)


add.defvjp(lambda y, bias: (y + bias, bias), _gradients)
