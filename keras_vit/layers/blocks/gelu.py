"""GELU in training, with its own backward pass.

Automatic differentiation keeps GELU's input, for the exact form another tensor of that size, and computes erf or tanh
repeatedly. We keep one tensor: the slope (GELU's derivative), a factor of the backward pass, or the input, where memory
is slower than arithmetic. TensorFlow on a CPU would pass memory fourteen times; compiled, each direction is one pass.
"""

import functools
import math
from typing import Any

import keras
from keras import ops

from keras_vit.layers.backend import forms, one_pass

_TANH = math.sqrt(2 / math.pi)
_CUBE = 0.044715


def gelu_slope(x: Any, approximate: bool) -> Any:
    """GELU's derivative: Phi(x) + x phi(x), or that of the tanh approximation (arXiv 1606.08415, section 2)."""
    if approximate:
        t = ops.tanh(_TANH * (x + _CUBE * x * x * x))
        return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * _TANH * (1 + 3 * _CUBE * x * x)
    return 0.5 * (1 + ops.erf(x / math.sqrt(2))) + x * ops.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


def gelu_with_slope(x: Any, approximate: bool) -> Any:
    """GELU of x, any shape, by tanh if `approximate`; its backward pass is a product with the slope."""

    @ops.custom_gradient
    def operation(x):
        slope = ops.cast(gelu_slope(ops.cast(x, "float32"), approximate), x.dtype)

        def gradient(*given, upstream=None):  # by position or name, as the backend does
            return (given[0] if upstream is None else upstream) * slope

        return ops.gelu(x, approximate=approximate), gradient

    return operation(x)


@functools.cache
def _passes(approximate):
    """(GELU of x, its gradient from x and the upstream one), each one pass over memory; 16 bits compute in float32."""

    def exact(x):
        return ops.cast(x, keras.backend.result_type(x.dtype, "float32"))

    def value(x):
        return ops.cast(ops.gelu(exact(x), approximate=approximate), x.dtype)

    def gradient(x, upstream):
        return ops.cast(exact(upstream) * gelu_slope(exact(x), approximate), x.dtype)

    return one_pass(value), one_pass(gradient)


def gelu_from_input(x: Any, approximate: bool) -> Any:
    """GELU of x, any shape, by tanh if `approximate`; its backward pass computes the slope from x."""
    value, gradient = _passes(approximate)

    @ops.custom_gradient
    def operation(x):
        return value(x), lambda *given, upstream=None: gradient(x, given[0] if upstream is None else upstream)

    return operation(x)


_FORMS = {"slope": gelu_with_slope, "input": gelu_from_input, None: ops.gelu}


def gelu_in_training(x: Any, approximate: bool) -> Any:
    """GELU of x, any shape, in the form with the quickest forward and backward pass on this engine."""
    return _FORMS[forms().gelu_keeps](x, approximate=approximate)
