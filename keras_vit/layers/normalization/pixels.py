"""The normalisation of pixels 0..255, inside the model."""

from typing import Any

import keras
from keras import ops

from keras_vit.layers.arguments import per_channel
from keras_vit.layers.registration import serializable


@serializable
class PixelNormalization(keras.layers.Layer):
    """Returns (pixels - mean) / std, with `mean` and `std` on the 0..255 scale.

    Args:
        mean, std: a number, or one per channel. 127.5 and 127.5 give [-1, 1] (Google's checkpoints).

    Input (b, h, w, c) of any numeric type; output the same shape in the compute dtype. The arithmetic is in float32
    under every policy. Autocast is off because bfloat16 would round the pixels first.
    """

    def __init__(self, mean: float | tuple = 127.5, std: float | tuple = 127.5, **kwargs: Any):
        if kwargs.pop("autocast", False):
            raise ValueError(
                "PixelNormalization: autocast must be False, since a compute dtype of 16 bits would round the pixels."
            )
        super().__init__(autocast=False, **kwargs)
        mean, std = per_channel(mean, "PixelNormalization: mean"), per_channel(std, "PixelNormalization: std")
        self.mean = mean if isinstance(mean, tuple) else float(mean)
        self.std = std if isinstance(std, tuple) else float(std)
        smallest = min(self.std) if isinstance(self.std, tuple) else self.std
        if smallest <= 0:
            raise ValueError(f"PixelNormalization: std must be positive, got {std}.")

    def build(self, input_shape):
        for name, value in (("mean", self.mean), ("std", self.std)):
            if isinstance(value, tuple) and len(value) != input_shape[-1]:
                raise ValueError(
                    f"PixelNormalization: {name} has {len(value)} values, the image has {input_shape[-1]} channels. "
                    "Give one value per channel, or a single number for all."
                )
        self.built = True

    def call(self, x, mask=None):
        if mask is not None:
            raise ValueError(
                "A mask of an image has no effect on a Vision Transformer. Mask its tokens:"
                " keras_vit.models.encode(tokens, spec, mask=mask)."
            )
        x = ops.cast(x, self.variable_dtype)
        mean = ops.convert_to_tensor(self.mean, dtype=self.variable_dtype)
        std = ops.convert_to_tensor(self.std, dtype=self.variable_dtype)
        return ops.cast((x - mean) / std, self.compute_dtype)

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {**super().get_config(), "mean": self.mean, "std": self.std}
