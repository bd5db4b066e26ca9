"""GELU as one operation that keeps its own slope for the backward pass.

Plain automatic differentiation keeps what GELU was given and, of the exact form, one more tensor of that size, and computes erf or tanh again in each product
of the backward pass. The slope, GELU's derivative, is one tensor, and the backward pass a product with it.
"""

import math
from typing import Any

from keras import ops

_TANH = math.sqrt(2 / math.pi)
_CUBE = 0.044715


def gelu_slope(x: Any, approximate: bool) -> Any:
    """The derivative of GELU: of x Phi(x), Phi(x) + x phi(x); or that of the approximation by tanh (arXiv 1606.08415, section 2)."""
    if approximate:
        t = ops.tanh(_TANH * (x + _CUBE * x * x * x))
        return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * _TANH * (1 + 3 * _CUBE * x * x)
    return 0.5 * (1 + ops.erf(x / math.sqrt(2))) + x * ops.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


def gelu_with_slope(x: Any, approximate: bool) -> Any:
    """GELU of x, of any shape, by tanh if `approximate`; its backward pass is a product with the slope."""

    @ops.custom_gradient
    def operation(x):
        slope = ops.cast(gelu_slope(ops.cast(x, "float32"), approximate), x.dtype)

        def gradient(*given, upstream=None):  # by position or by name, as the backend does
            return (given[0] if upstream is None else upstream) * slope

        return ops.gelu(x, approximate=approximate), gradient

    return operation(x)
