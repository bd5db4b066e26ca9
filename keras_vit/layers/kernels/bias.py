"""A bias, and its gradient in the form that is quickest on each chip."""

from typing import Any

import jax
import jax.numpy as jnp

from keras_vit.layers.kernels import cudnn


@jax.custom_vjp
def add(y: Any, bias: Any) -> Any:
    """y (..., d) + bias (d,); the bias' gradient is a sum in float32.

    On TPUs it is a product with ones: for 12,608 rows on a v5e, XLA estimates 171 us for a sum, and 17 us for the
    product, on the matrix unit. On an H100 the sum saves 3.9% of a step of four blocks of ViT-B/16 in plain JAX.
    """
    return y + bias


def _gradients(kept, g):
    rows = tuple(range(g.ndim - 1))
    if cudnn.platform() == "gpu":
        return g, g.astype("float32").sum(rows).astype(kept.dtype)
    ones = jnp.ones((*g.shape[:-1], 8), g.dtype)  # eight columns: for one XLA makes the reduction again
    sums = jax.lax.dot_general(ones, g, ((rows, rows), ((), ())), preferred_element_type="float32")
    return g, sums[0].astype(kept.dtype)


add.defvjp(lambda y, bias: (y + bias, bias), _gradients)
