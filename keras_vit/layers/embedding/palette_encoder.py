"""Pixels to tokens by a palette: the embedding of the nearest colour (iGPT: Chen et al., ICML 2020, section 3)."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.layers.arguments import integer
from keras_vit.layers.registration import serializable


def grid_palette(colors: int, channels: int = 3) -> np.ndarray:
    """Evenly spread colours: (colors, c) float32 integers from 0 to 255. 512 RGB colours are 8 x 8 x 8."""
    levels = int(np.ceil(colors ** (1 / channels) - 1e-9))
    values = np.rint(np.linspace(0, 255, levels)) if levels > 1 else np.array([128.0])
    grid = np.stack(np.meshgrid(*[values] * channels, indexing="ij"), axis=-1).reshape(-1, channels)
    chosen = np.rint(np.linspace(0, len(grid) - 1, colors)).astype(int)
    return grid[chosen].astype("float32")


@serializable
class PaletteEncoder(keras.layers.Layer):
    """Gives each pixel the embedding of the nearest colour in a palette.

    Args:
        colors: size of the palette.
        width: token size d.

    Input: pixels 0..255, (b, height, width, c). Output (b, n, d) with n = height * width, row by row. Weights:
    `palette` (colors, c), pixel values that do not train, initially `grid_palette`; and `embedding` (colors, d).
    Integers in palette and images find the same colours on every device, under every policy.
    """

    def __init__(self, colors: int, width: int, **kwargs: Any):
        if kwargs.pop("autocast", False):
            raise ValueError(
                "PaletteEncoder: autocast must be False, since a compute dtype of 16 bits would round the pixels."
            )
        super().__init__(autocast=False, **kwargs)
        self.colors = integer(colors, "PaletteEncoder: colors", least=2)
        self.width = integer(width, "PaletteEncoder: width")

    def build(self, input_shape):
        if len(input_shape) != 4 or None in input_shape[1:]:
            raise ValueError(
                f"PaletteEncoder: expected images (b, height, width, c) of fixed size, got shape {tuple(input_shape)}."
            )
        self.grid = tuple(input_shape[1:3])
        self.palette = self.add_weight(
            shape=(self.colors, input_shape[-1]),
            initializer=lambda shape, dtype: ops.convert_to_tensor(grid_palette(*shape), dtype),
            dtype="float32",
            autocast=False,  # 16 bits would round it
            trainable=False,
            name="palette",
        )
        normal = keras.initializers.RandomNormal(stddev=0.02)
        self.embedding = self.add_weight(shape=(self.colors, self.width), initializer=normal, name="embedding")

    def nearest(self, images: Any) -> Any:
        """The number of each pixel's nearest colour, the first of equally near ones: (b, h, w, c) -> (b, n) int32."""
        _, h, w, c = images.shape
        pixels = ops.cast(ops.reshape(images, (-1, h * w, c)), "float32")  # (b, h, w, c) -> (b, n, c)
        palette = ops.convert_to_tensor(self.palette)
        # |x - p|^2 without |x|^2. Products of integers are exact even where a device multiplies with fewer bits.
        far = ops.sum(ops.square(palette), axis=-1) - 2.0 * ops.matmul(pixels, ops.transpose(palette))  # (b, n, colors)
        return ops.cast(ops.argmin(far, axis=-1), "int32")

    def embed(self, numbers: Any) -> Any:
        """The embeddings of colour numbers: (...) integers -> (..., d)."""
        return ops.cast(ops.take(self.embedding, numbers, axis=0), self.compute_dtype)

    def call(self, images):
        return self.embed(self.nearest(images))

    def compute_output_shape(self, input_shape):
        return (input_shape[0], input_shape[1] * input_shape[2], self.width)
