"""Weights of RGB models in models of other channels: pure functions of arrays."""

import numpy as np


def adapt_kernel(kernel, channels):
    """The first convolution's kernel for another number of input channels.

    One channel takes the sum over the old ones: on a grey image it sees what the RGB model sees. More take the old ones in turn,
    scaled by old / new, so that the response to a uniform image keeps its size.

    Args:
        kernel: (p, q, c, d).
        channels: the new c.

    Returns:
        (p, q, channels, d).
    """
    old = kernel.shape[2]
    if channels == 1:
        return kernel.sum(axis=2, keepdims=True)
    return kernel[:, :, np.arange(channels) % old] * np.float32(old / channels)


def adapt_constants(values, channels):
    """`mean` or `std` for another number of channels: a number stays, one a channel is averaged or taken in turn."""
    if not isinstance(values, (tuple, list)):
        return values
    if channels == 1:
        return float(np.mean(values))
    return tuple(values[i % len(values)] for i in range(channels))


def fold_normalisation(kernel, bias, old, new):
    """A patch embedding that makes of pixels normalised by `new` what it made of pixels normalised by `old`.

    (g - m) / s = (g - m') / s' * s' / s + (m' - m) / s: the factor goes into the kernel, the constant into the bias.

    Args:
        kernel, bias: (p, q, c, d) and (d,).
        old, new: (mean, std), each a number or one a channel.

    Returns:
        kernel, bias.
    """
    c = kernel.shape[2]
    mean, std, new_mean, new_std = (np.broadcast_to(np.asarray(v, "float64"), (c,)) for v in (*old, *new))
    offset = np.einsum("pqcd,c->d", kernel.astype("float64"), (new_mean - mean) / std)
    scaled = kernel * (new_std / std)[:, None]
    return scaled.astype(kernel.dtype), (bias + offset).astype(bias.dtype)
