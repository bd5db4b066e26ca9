"""Layer normalisation (arXiv 1607.06450) as one kernel forward and one backward, for TPUs on JAX.

XLA reads x for the means, again for the variances and again for the result, and as often in the backward pass. Here
each number is read and written once.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from keras_vit.layers.kernels.image_blocks import ROOM, images, padded, run, same

_BLOCKS, _FLOATS = 4, 4  # x, both gradients given and that of x, in 16 bits; intermediate values in float32


def _normalised(x, epsilon):
    """(x with mean 0 and variance 1 in each row, the factor), in float32: (n, d), (n, 1)."""
    x = x.astype(jnp.float32)
    x = x - x.mean(-1, keepdims=True)
    scale = jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + epsilon)
    return x * scale, scale


def norm_forward(x_ref, gamma_ref, beta_ref, y_ref, *, epsilon):
    """gamma x + beta of x normalised; blocks (1, n, d) and (1, d)."""
    x, _ = _normalised(x_ref[0], epsilon)
    y_ref[0] = (x * gamma_ref[...] + beta_ref[...]).astype(y_ref.dtype)


def norm_backward(x_ref, gamma_ref, g_ref, also_ref, dx_ref, dgamma_ref, dbeta_ref, *, epsilon):
    """The gradient of x from those of y (g) and x itself (`also`); those of gamma and beta, summed over an image."""
    x, scale = _normalised(x_ref[0], epsilon)
    g = g_ref[0].astype(jnp.float32)
    dgamma_ref[0] = (g * x).sum(0, keepdims=True)
    dbeta_ref[0] = g.sum(0, keepdims=True)
    g = g * gamma_ref[...]
    along = (g * x).mean(-1, keepdims=True)
    dx = scale * (g - g.mean(-1, keepdims=True) - x * along)
    dx_ref[0] = (also_ref[0].astype(jnp.float32) + dx).astype(dx_ref.dtype)


def fits(n: int, d: int) -> bool:
    """Whether an image's n tokens of width d fit on the chip."""
    return 2 * _BLOCKS * padded(n, d, 2) + _FLOATS * padded(n, d, 4) <= ROOM


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def fork(x: Any, gamma: Any, beta: Any, epsilon: float, interpret: bool = False) -> tuple[Any, Any]:
    """(x, gamma x' + beta), x' being x normalised over its last axis: the start of a residual branch; see `fits`.

    Both gradients meet in one kernel.

    Args:
        x: (b, n, d), in 16 bits.
        gamma, beta: (1, d), in float32.
        epsilon: added to the variances.
        interpret: run the kernel step by step without a TPU, as tests do.
    """
    taken = [(x, images()), (gamma, same), (beta, same)]
    made = [(jax.ShapeDtypeStruct(x.shape, x.dtype), images())]
    return (
        x,
        run(functools.partial(norm_forward, epsilon=epsilon), taken, made, flops=8 * x.size, interpret=interpret)[0],
    )


def _forward_rule(x, gamma, beta, epsilon, interpret):
    return fork(x, gamma, beta, epsilon, interpret), (x, gamma)


def _backward_rule(epsilon, interpret, kept, gradients):
    x, gamma = kept
    also, g = (each.astype(x.dtype) for each in gradients)
    taken = [(x, images()), (gamma, same), (g, images()), (also, images())]
    sums = jax.ShapeDtypeStruct((x.shape[0], 1, x.shape[2]), jnp.float32)
    made = [(jax.ShapeDtypeStruct(x.shape, x.dtype), images()), (sums, images()), (sums, images())]
    dx, dgamma, dbeta = run(
        functools.partial(norm_backward, epsilon=epsilon), taken, made, flops=16 * x.size, interpret=interpret
    )
    return dx, dgamma.sum(0), dbeta.sum(0)


fork.defvjp(_forward_rule, _backward_rule)
