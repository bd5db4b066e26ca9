"""Convolution with weight standardisation (arXiv 1903.10520), for the hybrids and BiT."""

from typing import Any

import keras
from keras import ops

from keras_vit.layers.arguments import choice, integer
from keras_vit.layers.registration import serializable

# Epsilon's place in the division: in the hybrids' code ("std") and in BiT's ("variance").
FORMS = ("std", "variance")


@serializable
class StdConv2D(keras.layers.Layer):
    """A 2-D convolution without bias, its kernel standardised to mean 0 and variance 1 per output channel.

    Args:
        filters: output channels.
        kernel_size: pixels, of a square kernel.
        strides: pixels.
        padding: "same" (as much as the stride needs, an odd pixel at the end) or "fixed" ((kernel_size - 1) // 2 zeros
            on each side).
        form: "std", (w - mean) / (std + 1e-5), as in the hybrids; "variance", (w - mean) / sqrt(var + 1e-10), as in
            BiT.

    Input (b, h, w, c); output (b, h', w', filters). The kernel, (kernel_size, kernel_size, c, filters), is standardised
    in the variable dtype under every policy.
    """

    def __init__(
        self,
        filters: int,
        kernel_size: int = 1,
        strides: int = 1,
        padding: str = "same",
        form: str = "std",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.filters = integer(filters, "StdConv2D: filters")
        self.kernel_size = integer(kernel_size, "StdConv2D: kernel_size")
        self.strides = integer(strides, "StdConv2D: strides")
        self.padding = choice(padding, "StdConv2D: padding", ("same", "fixed"))
        self.form = choice(form, "StdConv2D: form", FORMS)

    def build(self, input_shape):
        shape = (self.kernel_size, self.kernel_size, input_shape[-1], self.filters)
        # Not rounded to 16 bits: mean and variance are the variable's.
        self.kernel = self.add_weight(shape=shape, initializer="lecun_normal", autocast=False, name="kernel")

    def standardized(self) -> Any:
        """The standardised kernel, (kernel_size, kernel_size, c, filters), in the variable dtype."""
        w = ops.convert_to_tensor(self.kernel)
        mean, variance = ops.moments(w, axes=(0, 1, 2), keepdims=True)
        if self.form == "std":
            return (w - mean) / (ops.sqrt(variance) + 1e-5)
        return (w - mean) / ops.sqrt(variance + 1e-10)

    def call(self, x):
        pad = (self.kernel_size - 1) // 2
        if self.padding == "fixed" and pad:
            x = ops.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
        padding = "same" if self.padding == "same" else "valid"
        kernel = ops.cast(self.standardized(), x.dtype)
        return ops.conv(x, kernel, strides=self.strides, padding=padding, data_format="channels_last")

    def compute_output_shape(self, input_shape):
        # Odd kernels with fixed padding, and all kernels with "same", have ceil(size / stride) positions.
        size = tuple(None if s is None else -(-s // self.strides) for s in input_shape[1:3])
        return (input_shape[0], *size, self.filters)
