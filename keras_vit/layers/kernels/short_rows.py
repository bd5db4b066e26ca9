"""Attention over rows short enough for a head's scores to stay in a TPU's own memory: a Pallas kernel, for JAX.

XLA writes scores and weights (b, k, n, n) to HBM, keeps the weights for the backward pass, and copies queries, keys and
values into a layout with the heads outside. Here one program has all tokens of an image for some of the heads, as the
projections give them, (n, k*c). Nothing of size (n, n) leaves the chip, and the backward pass recomputes the weights.

The chip works on 128 lanes at a time, which two heads of 64 share. Cutting out a head would move its lanes. Instead the
other heads' lanes are zero on one side of each product, and left as they are in the result; the matrix unit takes 128
lanes in any case.
"""

import functools
import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from keras_vit.layers.kernels.image_blocks import LANES, ROOM, images, padded, run

# Arrays of the backward pass: q, k, v, g and three gradients (n, width); scores and the like (n, n), in float32.
_BLOCKS, _SQUARES = 7, 4


def _product(a, b, over):
    """The float32 product of two matrices, summed over axis over[0] of a and over[1] of b."""
    return jax.lax.dot_general(a, b, (((over[0],), (over[1],)), ((), ())), preferred_element_type=jnp.float32)


def _heads(n, width, c) -> Iterator[tuple[slice, Any]]:
    """For each head of c lanes: its whole groups of lanes, and which of these are its own, (n, lanes)."""
    for start in range(0, width, c):
        low, high = start // LANES * LANES, min(-(-(start + c) // LANES) * LANES, width)
        lane = low + jax.lax.broadcasted_iota(jnp.int32, (n, high - low), 1)
        yield slice(low, high), (lane >= start) & (lane < start + c)


def _only(own, x):
    """x with zeros in other heads' lanes."""
    return jnp.where(own, x, jnp.zeros_like(x))


def _put(ref, lanes, own, x):
    """Writes a head's lanes of x (n, lanes) to a block."""
    ref[0, :, lanes] = jnp.where(own, x.astype(ref.dtype), ref[0, :, lanes])


def _scaled(q, c):
    """The queries over sqrt(c), rounded as in the plain form."""
    return (q.astype(jnp.float32) * c**-0.5).astype(q.dtype)


def attention_forward(q_ref, k_ref, v_ref, y_ref, *, c):
    """softmax(q k^T / sqrt(c)) v of each head; blocks (1, n, width)."""
    for lanes, own in _heads(*q_ref.shape[1:], c):
        q, k, v = _scaled(q_ref[0, :, lanes], c), k_ref[0, :, lanes], v_ref[0, :, lanes]
        scores = _product(_only(own, q), k, (1, 1))  # (n, n), a row for each query
        weights = jnp.exp(scores - scores.max(1, keepdims=True))
        y = _product(weights.astype(v.dtype), v, (1, 0)) / weights.sum(1, keepdims=True)
        _put(y_ref, lanes, own, y)


def attention_backward(q_ref, k_ref, v_ref, g_ref, dq_ref, dk_ref, dv_ref, *, c):
    """The gradients of q, k and v from that of y, g; with a row per key, two of three products need no transpose."""
    for lanes, own in _heads(*q_ref.shape[1:], c):
        q, k, v, g = _scaled(q_ref[0, :, lanes], c), k_ref[0, :, lanes], v_ref[0, :, lanes], g_ref[0, :, lanes]
        scores = _product(k, _only(own, q), (1, 1))
        weights = jnp.exp(scores - scores.max(0, keepdims=True))
        weights = weights / weights.sum(0, keepdims=True)
        slope = _product(v, _only(own, g), (1, 1))  # of the weights
        slope = (weights * (slope - (weights * slope).sum(0, keepdims=True))).astype(q.dtype)  # of the scores
        _put(dq_ref, lanes, own, _product(slope, k, (0, 0)) * c**-0.5)
        _put(dk_ref, lanes, own, _product(slope, q, (1, 0)))
        _put(dv_ref, lanes, own, _product(weights.astype(g.dtype), g, (1, 0)))


def _width(n: int, d: int, c: int) -> int | None:
    """The number of the d lanes per program: as many whole heads and lane groups as fit, or all; None if none fit."""
    part = math.lcm(c, LANES)
    widths = [width for width in range(part, d, part) if d % width == 0] + [d]
    squares = _SQUARES * padded(n, n, 4)
    # Each block twice: the next one is on its way.
    return max((width for width in widths if squares + 2 * _BLOCKS * padded(n, width, 2) <= ROOM), default=None)


def fits(n: int, d: int, heads: int) -> bool:
    """Whether rows of n tokens of width d are short enough."""
    return _width(n, d, d // heads) is not None


def _run(kernel, arrays, results, products, heads, interpret):
    """Runs a kernel with `products` (n, n) matrix products per head."""
    b, n, d = arrays[0].shape
    width = _width(n, d, d // heads)
    blocks, made = images(width), jax.ShapeDtypeStruct(arrays[0].shape, arrays[0].dtype)
    costs = {"flops": products * 2 * b * n * n * d, "exponentials": b * heads * n * n}
    kernel = functools.partial(kernel, c=d // heads)
    taken, made = [(array, blocks) for array in arrays], [(made, blocks)] * results
    return run(kernel, taken, made, **costs, parts=d // width, interpret=interpret)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def attend(q: Any, k: Any, v: Any, heads: int, interpret: bool = False) -> Any:
    """softmax(q k^T / sqrt(c)) v of each head, for 16-bit arrays; see `fits`.

    Args:
        q, k, v: (b, n, k*c), heads side by side.
        heads: number of heads k.
        interpret: run the kernel step by step without a TPU, as tests do.

    Returns:
        (b, n, k*c).
    """
    return _run(attention_forward, (q, k, v), 1, 2, heads, interpret)[0]


def _forward_rule(q, k, v, heads, interpret):
    return attend(q, k, v, heads, interpret), (q, k, v)


def _backward_rule(heads, interpret, kept, g):
    return tuple(_run(attention_backward, (*kept, g.astype(kept[0].dtype)), 3, 5, heads, interpret))


attend.defvjp(_forward_rule, _backward_rule)
