"""Images to tokens: patches, x_p E in equation 1 of arXiv 2010.11929, and learned tokens next to them."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.layers.arguments import choice, flag, integer, is_integer, number
from keras_vit.layers.registration import serializable

FORMS = ("conv", "dense")


def pair(value: int | Sequence[int], what: str) -> tuple[int, int]:
    """(height, width) from a number or a pair.

    Args:
        value: a positive integer, or two in a tuple, list or array.
        what: the argument's name, for the error.

    Raises:
        ValueError: if `value` is neither.
    """
    values = (
        (value, value) if is_integer(value) else tuple(value) if isinstance(value, (tuple, list, np.ndarray)) else ()
    )
    if len(values) != 2 or not all(is_integer(v) and v > 0 for v in values):
        raise ValueError(f"{what} must be a positive integer or a pair (height, width) of them, got {value!r}.")
    return int(values[0]), int(values[1])


def grid_size(image_size: tuple[int, int], patch_size: tuple[int, int]) -> tuple[int, int]:
    """An image's patch grid (h, w), sizes in pixels (height, width); ValueError unless a whole number of patches."""
    if any(i % p for i, p in zip(image_size, patch_size)):
        near = tuple(max(p, round(i / p) * p) for i, p in zip(image_size, patch_size))
        raise ValueError(
            f"An image of {image_size[0]}x{image_size[1]} pixels is not divisible by patches of "
            f"{patch_size[0]}x{patch_size[1]}. The nearest size that is: {near[0]}x{near[1]}."
        )
    return image_size[0] // patch_size[0], image_size[1] // patch_size[1]


def cut(images: Any, patch_size: tuple[int, int]) -> Any:
    """The patches' pixels: (b, height, width, c) -> (b, n, p*q*c), patches in row-major order, each row by row."""
    p, q = patch_size
    _, height, width, c = images.shape
    h, w = height // p, width // q
    x = ops.reshape(images, (-1, h, p, w, q, c))  # (b, height, width, c) -> (b, h, p, w, q, c)
    x = ops.transpose(x, (0, 1, 3, 2, 4, 5))  # (b, h, w, p, q, c)
    return ops.reshape(x, (-1, h * w, p * q * c))  # (b, h, w, p, q, c) -> (b, n, p*q*c)


def check_tokens(n: int | None, prefix: int, grid: tuple[int, int], owner: str) -> None:
    """Refuses another number of tokens than prefix and patches (ValueError naming `owner`); None (unknown) passes."""
    h, w = grid
    if n not in (None, prefix + h * w):
        raise ValueError(
            f"{owner}: got {n} tokens, expected {prefix + h * w} ({prefix} before a grid of {h}x{w} patches)."
        )


@serializable
class PatchEncoder(keras.layers.Layer):
    """Cuts an image into patches and embeds each linearly.

    Args:
        patch_size: pixels, a number or (height, width).
        width: token size d.
        form: "conv" (a convolution with its kernel size as stride) or "dense" (flatten, then a matrix product). Same
            weights, same result; speed depends on the machine.
        norm: layer-normalise each patch's pixels before the embedding, and the tokens after it (as vit-pytorch).
            Implies the dense form.
        epsilon: of those normalisations.
        use_bias: whether the embedding has a bias.

    Input (b, height, width, c); output (b, n, d) with n = h * w patches in row-major order. The kernel is (p, q, c, d).
    """

    def __init__(
        self,
        patch_size: int | Sequence[int],
        width: int,
        form: str = "conv",
        norm: bool = False,
        epsilon: float = 1e-5,
        use_bias: bool = True,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.patch_size = pair(patch_size, "PatchEncoder: patch_size")
        self.width = integer(width, "PatchEncoder: width")
        self.norm = flag(norm, "PatchEncoder: norm")
        form = choice(form, "PatchEncoder: form", FORMS)
        self.form = "dense" if self.norm else form
        self.epsilon = number(epsilon, "PatchEncoder: epsilon", least=0)
        self.use_bias = flag(use_bias, "PatchEncoder: use_bias")

    def build(self, input_shape):
        if len(input_shape) != 4 or None in input_shape[1:]:
            raise ValueError(
                f"PatchEncoder: expected images (b, height, width, c) of fixed size, got shape {tuple(input_shape)}."
            )
        self.grid = grid_size(input_shape[1:3], self.patch_size)
        channels = input_shape[-1]
        shape = (*self.patch_size, channels, self.width)
        self.kernel = self.add_weight(shape=shape, initializer="lecun_normal", name="kernel")
        if self.use_bias:
            self.bias = self.add_weight(shape=(self.width,), initializer="zeros", name="bias")
        if self.norm:
            pixels = self.patch_size[0] * self.patch_size[1] * channels
            policy = self.dtype_policy
            self.pixel_norm = keras.layers.LayerNormalization(epsilon=self.epsilon, dtype=policy, name="pixel_norm")
            self.pixel_norm.build((None, None, pixels))
            self.embedding_norm = keras.layers.LayerNormalization(
                epsilon=self.epsilon, dtype=policy, name="embedding_norm"
            )
            self.embedding_norm.build((None, None, self.width))

    def call(self, images):
        p, q = self.patch_size
        _, height, width, c = images.shape
        h, w = height // p, width // q
        if not keras.backend.is_float_dtype(images.dtype):  # Keras casts floats only
            images = ops.cast(images, self.compute_dtype)
        if self.form == "conv":
            x = ops.conv(images, self.kernel, strides=(p, q), padding="valid", data_format="channels_last")
            x = ops.reshape(x, (-1, h * w, self.width))  # (b, h, w, d) -> (b, n, d)
        else:
            x = cut(images, self.patch_size)  # (b, n, p*q*c)
            x = self.pixel_norm(x) if self.norm else x
            x = ops.matmul(x, ops.reshape(self.kernel, (p * q * c, self.width)))  # (b, n, d)
        x = x + self.bias if self.use_bias else x
        return self.embedding_norm(x) if self.norm else x

    def compute_output_shape(self, input_shape):
        h, w = grid_size(input_shape[1:3], self.patch_size)
        return (input_shape[0], h * w, self.width)


@serializable
class PatchGrid(keras.layers.Layer):
    """Patch tokens as an image-like map, without the tokens before them.

    Args:
        grid: (h, w) patches.
        prefix: number of tokens before the patches.

    Input (b, prefix + h * w, d); output (b, h, w, d).
    """

    def __init__(self, grid: tuple[int, int], prefix: int = 0, **kwargs: Any):
        super().__init__(**kwargs)
        self.grid = pair(grid, "PatchGrid: grid")
        self.prefix = integer(prefix, "PatchGrid: prefix", least=0)
        self.input_spec = keras.layers.InputSpec(ndim=3)

    def build(self, input_shape):
        check_tokens(input_shape[1], self.prefix, self.grid, "PatchGrid")

    def call(self, x):
        check_tokens(x.shape[1], self.prefix, self.grid, "PatchGrid")
        h, w = self.grid
        # A wrong number of tokens, unknown until run time, must not pass for more images.
        b = -1 if x.shape[1] is not None else ops.shape(x)[0]
        return ops.reshape(x[:, self.prefix :], (b, h, w, x.shape[-1]))  # (b, h*w, d) -> (b, h, w, d)

    def compute_output_shape(self, input_shape):
        return (input_shape[0], *self.grid, input_shape[-1])


@serializable
class ClassToken(keras.layers.Layer):
    """Inserts `count` learned tokens after the first `after` tokens of the sequence.

    By default the paper's class token, at the front. `ClassToken(4, after=1, initializer="normal")` adds four registers
    (arXiv 2309.16588) between class token and patches.

    Args:
        count: number of tokens.
        after: number of input tokens before them.
        initializer: any Keras initializer; "normal" has a standard deviation of 0.02.

    Input (b, n, d); output (b, n + count, d). The weight is (1, count, d). A mask includes the new tokens.
    """

    def __init__(
        self, count: int = 1, after: int = 0, initializer: str | keras.initializers.Initializer = "zeros", **kwargs: Any
    ):
        super().__init__(**kwargs)
        if not (is_integer(count) and is_integer(after)) or count < 1 or after < 0:
            raise ValueError(
                f"ClassToken: expected integers count >= 1 and after >= 0, got count={count!r}, after={after!r}."
            )
        self.count = int(count)
        self.after = int(after)
        if initializer == "normal":
            initializer = keras.initializers.RandomNormal(stddev=0.02)
        self.initializer = keras.initializers.get(initializer)
        self.supports_masking = True
        self.input_spec = keras.layers.InputSpec(ndim=3)

    def build(self, input_shape):
        if input_shape[1] is not None and input_shape[1] < self.after:
            raise ValueError(f"ClassToken: after={self.after}, but there are only {input_shape[1]} tokens.")
        shape = (1, self.count, input_shape[-1])
        self.tokens = self.add_weight(shape=shape, initializer=self.initializer, name="tokens")

    def call(self, x):
        tokens = ops.broadcast_to(self.tokens, (ops.shape(x)[0], self.count, x.shape[-1]))  # (b, count, d)
        tokens = ops.cast(tokens, x.dtype)
        if not self.after:
            return ops.concatenate([tokens, x], axis=1)
        return ops.concatenate([x[:, : self.after], tokens, x[:, self.after :]], axis=1)

    def compute_mask(self, inputs, previous_mask):
        if previous_mask is None:
            return None
        there = ops.repeat(ops.ones_like(previous_mask[:, :1]), self.count, axis=1)  # (b, count)
        return ops.concatenate([previous_mask[:, : self.after], there, previous_mask[:, self.after :]], axis=1)

    def compute_output_shape(self, input_shape):
        b, n, d = input_shape
        return (b, None if n is None else n + self.count, d)

    def get_config(self):
        initializer = keras.initializers.serialize(self.initializer)
        return {**super().get_config(), "count": self.count, "after": self.after, "initializer": initializer}
