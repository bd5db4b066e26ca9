"""Convolutions of ResNets: with standardised kernels (arXiv 1903.10520), in the bottleneck units of hybrids and BiT.

A unit is 1x1, 3x3, 1x1 convolutions and a residual. Group normalisation comes after each convolution (hybrids; ResNet
v1) or before (BiT, arXiv 1912.11370; ResNet v2).
"""

from typing import Any

import keras
from keras import ops

from keras_vit.layers.arguments import choice, flag, integer
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


GROUPS = 32


def group_norm(epsilon: float, policy, name: str) -> keras.layers.GroupNormalization:
    """Group normalisation over 32 groups."""
    return keras.layers.GroupNormalization(GROUPS, epsilon=epsilon, dtype=policy, name=name)


@serializable
class BottleneckUnit(keras.layers.Layer):
    """A residual unit of three convolutions, with 4 x `filters` output channels.

    Args:
        filters: width F of the inner convolutions, a multiple of 32.
        strides: of the 3x3 convolution and the shortcut.
        preactivation: normalise before each convolution (BiT) rather than after it (hybrids). As in BiT, this order
            also pads symmetrically and does not normalise the shortcut.
        remat: recompute the unit in the backward pass instead of keeping its activations.

    Input (b, h, w, c); output (b, h', w', 4F). Where channels or strides change, the shortcut is a convolution, "proj".
    """

    def __init__(self, filters: int, strides: int = 1, preactivation: bool = False, remat: bool = False, **kwargs: Any):
        super().__init__(**kwargs)
        self.filters = integer(filters, "BottleneckUnit: filters")
        if self.filters % GROUPS:
            raise ValueError(
                f"BottleneckUnit: filters must be a multiple of {GROUPS} for group normalisation, got {filters}."
            )
        self.strides = integer(strides, "BottleneckUnit: strides")
        self.preactivation = flag(preactivation, "BottleneckUnit: preactivation")
        self.remat = flag(remat, "BottleneckUnit: remat")

    def build(self, input_shape):
        policy, channels = self.dtype_policy, input_shape[-1]
        form, padding, epsilon = ("variance", "fixed", 1e-5) if self.preactivation else ("std", "same", 1e-6)
        shared = {"form": form, "padding": padding, "dtype": policy}
        inner, outer = self.filters, 4 * self.filters
        self.conv1 = StdConv2D(inner, 1, name="conv1", **shared)
        self.conv2 = StdConv2D(inner, 3, self.strides, name="conv2", **shared)
        self.conv3 = StdConv2D(outer, 1, name="conv3", **shared)
        convs = [(self.conv1, channels), (self.conv2, inner), (self.conv3, inner)]
        widths = (channels, inner, inner) if self.preactivation else (inner, inner, outer)
        self.norm1 = group_norm(epsilon, policy, "norm1")
        self.norm2 = group_norm(epsilon, policy, "norm2")
        self.norm3 = group_norm(epsilon, policy, "norm3")
        for norm, width in zip((self.norm1, self.norm2, self.norm3), widths):
            norm.build((None, None, None, width))
        self.proj = self.proj_norm = None
        if channels != outer or self.strides != 1:
            self.proj = StdConv2D(outer, 1, self.strides, name="proj", **shared)
            convs.append((self.proj, channels))
            if not self.preactivation:
                self.proj_norm = group_norm(epsilon, policy, "proj_norm")
                self.proj_norm.build((None, None, None, outer))
        for conv, width in convs:
            conv.build((None, None, None, width))

    def _postactivated(self, x):
        shortcut = x if self.proj is None else self.proj_norm(self.proj(x))
        y = ops.relu(self.norm1(self.conv1(x)))
        y = ops.relu(self.norm2(self.conv2(y)))
        y = self.norm3(self.conv3(y))
        return ops.relu(shortcut + y)

    def _preactivated(self, x):
        y = ops.relu(self.norm1(x))
        shortcut = x if self.proj is None else self.proj(y)
        y = self.conv1(y)
        y = self.conv2(ops.relu(self.norm2(y)))
        y = self.conv3(ops.relu(self.norm3(y)))
        return shortcut + y

    def call(self, x, training=False):
        function = self._preactivated if self.preactivation else self._postactivated
        return keras.remat(function)(x) if self.remat and training else function(x)

    def compute_output_shape(self, input_shape):
        size = tuple(None if s is None else -(-s // self.strides) for s in input_shape[1:3])
        return (input_shape[0], *size, 4 * self.filters)
