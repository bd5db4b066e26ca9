"""Layers for masked pre-training: drop, restore or replace patches, and make the pixels to predict."""

from typing import Any

import keras
from keras import ops

from keras_vit.layers.arguments import flag, integer
from keras_vit.layers.blocks.token_merging import rows, with_prefix
from keras_vit.layers.embedding.patches import cut, grid_size, pair
from keras_vit.layers.registration import serializable


@serializable
class KeptPatches(keras.layers.Layer):
    """Selects some patches, and the tokens before the patches.

    Args:
        prefix: number of tokens before the patches.

    Inputs (b, prefix + n, d) and patch numbers (b, m), integers; output (b, prefix + m, d), in the patches' order.
    """

    def __init__(self, prefix: int = 0, **kwargs: Any):
        super().__init__(**kwargs)
        self.prefix = integer(prefix, "KeptPatches: prefix", least=0)

    def call(self, x, kept):
        return rows(x, with_prefix(kept, self.prefix))

    def compute_output_shape(self, x_shape, kept_shape):
        m = kept_shape[1]
        return (x_shape[0], None if m is None else self.prefix + m, x_shape[-1])


@serializable
class RestoredPatches(keras.layers.Layer):
    """The inverse of KeptPatches: dropped patches get one learned token (arXiv 2111.06377, section 3).

    Args:
        patches: number of patches, n.
        prefix: number of tokens before them.

    Inputs (b, prefix + m, d) and the numbers of the m patches (b, m), integers; output (b, prefix + n, d). The weight
    is (1, 1, d).
    """

    def __init__(self, patches: int, prefix: int = 0, **kwargs: Any):
        super().__init__(**kwargs)
        self.patches = integer(patches, "RestoredPatches: patches")
        self.prefix = integer(prefix, "RestoredPatches: prefix", least=0)

    def build(self, x_shape, kept_shape):
        initializer = keras.initializers.RandomNormal(stddev=0.02)
        self.mask_token = self.add_weight(shape=(1, 1, x_shape[-1]), initializer=initializer, name="mask_token")

    def call(self, x, kept):
        # A one-hot matrix product has a fixed order of summation; a scatter does not.
        places = ops.one_hot(ops.sort(kept, axis=-1), self.patches, dtype=x.dtype)  # (b, m, n)
        patches = ops.matmul(ops.transpose(places, (0, 2, 1)), x[:, self.prefix :])  # (b, n, d)
        hidden = 1 - ops.sum(places, axis=1)[..., None]  # (b, n, 1)
        patches = patches + hidden * ops.cast(self.mask_token, x.dtype)
        return ops.concatenate([x[:, : self.prefix], patches], axis=1) if self.prefix else patches

    def compute_output_shape(self, x_shape, kept_shape):
        return (x_shape[0], self.prefix + self.patches, x_shape[-1])


@serializable
class ReplacedPatches(keras.layers.Layer):
    """Replaces some patches' embeddings by a learned one, or by another patch's (arXiv 2010.11929, appendix B.1.2).

    Inputs: embeddings (b, n, d), and for each the number of the patch to take it from (b, n), integers: its own to keep
    it, -1 for the learned one. Output (b, n, d). The weight is (1, 1, d).
    """

    def build(self, x_shape, source_shape):
        initializer = keras.initializers.RandomNormal(stddev=0.02)
        self.mask_token = self.add_weight(shape=(1, 1, x_shape[-1]), initializer=initializer, name="mask_token")

    def call(self, x, source):
        taken = rows(x, ops.maximum(source, 0))
        return ops.where(source[..., None] < 0, ops.cast(self.mask_token, x.dtype), taken)

    def compute_output_shape(self, x_shape, source_shape):
        return x_shape


@serializable
class PatchPixels(keras.layers.Layer):
    """The patches' pixels as targets, float32: (b, height, width, c) -> (b, n, p*q*c).

    Args:
        patch_size: pixels, a number or (height, width).
        normalise: normalise each patch by its own mean and standard deviation (arXiv 2111.06377, section 3), of the
            unbiased variance plus 1e-6.
    """

    def __init__(self, patch_size: int | tuple[int, int], normalise: bool = False, **kwargs: Any):
        super().__init__(**{**kwargs, "dtype": "float32"})  # 16 bits would round the targets
        self.patch_size = pair(patch_size, "PatchPixels: patch_size")
        self.normalise = flag(normalise, "PatchPixels: normalise")

    def call(self, images):
        patches = cut(images, self.patch_size)
        if self.normalise:
            mean, deviation = patch_statistics(patches)
            patches = (patches - mean) / deviation
        return ops.stop_gradient(patches)

    def compute_output_shape(self, input_shape):
        h, w = grid_size(input_shape[1:3], self.patch_size)
        return (input_shape[0], h * w, self.patch_size[0] * self.patch_size[1] * input_shape[-1])


def patch_statistics(patches: Any) -> tuple[Any, Any]:
    """Mean and standard deviation of each patch's pixels: (b, n, v) -> (b, n, 1) each."""
    values = patches.shape[-1]
    mean = ops.mean(patches, axis=-1, keepdims=True)
    variance = ops.sum(ops.square(patches - mean), axis=-1, keepdims=True) / max(values - 1, 1)
    return mean, ops.sqrt(variance + 1e-6)
