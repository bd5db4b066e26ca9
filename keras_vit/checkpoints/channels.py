"""Adapt RGB weights to another number of channels: pure functions of arrays."""

import numpy as np


def adapt_kernel(kernel: np.ndarray, channels: int) -> np.ndarray:
    """The first convolution's kernel for another number of input channels.

    For one channel the kernels are summed, so a grey image gives the RGB model's output. For more channels they repeat
    in turn, scaled by old / new, so that the response to a uniform image stays the same.

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


def adapt_constants(values: float | tuple, channels: int) -> float | tuple:
    """`mean` or `std` for another number of channels: averaged for one, repeated in turn for more; a number stays."""
    if not isinstance(values, (tuple, list)):
        return values
    if channels == 1:
        return float(np.mean(values))
    return tuple(values[i % len(values)] for i in range(channels))


def fold_normalisation(kernel: np.ndarray, bias: np.ndarray, old: tuple, new: tuple) -> tuple[np.ndarray, np.ndarray]:
    """A patch embedding for pixels normalised by `new`, equal to the given one on pixels normalised by `old`.

    (g - m) / s = (g - m') / s' * s' / s + (m' - m) / s: the factor goes into the kernel, the constant into the bias.

    Args:
        kernel, bias: (p, q, c, d) and (d,).
        old, new: (mean, std), each a number or one per channel.

    Returns:
        (kernel, bias).
    """
    c = kernel.shape[2]
    mean, std, new_mean, new_std = (np.broadcast_to(np.asarray(v, "float64"), (c,)) for v in (*old, *new))
    offset = np.einsum("pqcd,c->d", kernel.astype("float64"), (new_mean - mean) / std)
    scaled = kernel * (new_std / std)[:, None]
    return scaled.astype(kernel.dtype), (bias + offset).astype(bias.dtype)
