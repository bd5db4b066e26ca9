"""Images of any aspect as patches: resized to at most N patches with their aspect kept, cut, padded to N.

As in NaViT (arXiv 2307.06304) and SigLIP 2's NaFlex models (arXiv 2502.14786), whose sizes these are.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from keras_vit.data.ops.op_registry import as_uint8


def patch_grid(height: Any, width: Any, patch_size: int | Sequence[int], patches: int) -> tuple[Any, Any]:
    """The largest grid of at most `patches` patches for an image, its aspect kept up to a patch.

    Both sides are scaled by one factor and rounded up to whole patches. Integers throughout, so it is exact.

    Args:
        height, width: pixels of the image, scalars.
        patch_size: pixels, a number or (height, width).
        patches: largest number of patches.

    Returns:
        (rows, columns), int64 scalars.
    """
    p, q = (patch_size, patch_size) if isinstance(patch_size, int) else patch_size
    # A factor at which a side becomes k patches gives ceil(k * other / side) of the other.
    tall, wide = tf.cast(height, tf.int64) * q, tf.cast(width, tf.int64) * p
    numbers = tf.range(1, patches + 1, dtype=tf.int64)

    def most(side, other):
        others = (numbers * other + side - 1) // side
        k = tf.reduce_sum(tf.cast(numbers * others <= patches, tf.int64))
        return k, (k * other + side - 1) // side

    rows, its_columns = most(tall, wide)
    columns, its_rows = most(wide, tall)
    by_rows = rows * wide >= columns * tall  # the larger factor
    return tf.where(by_rows, rows, its_rows), tf.where(by_rows, its_columns, columns)


def to_patches(image: Any, patch_size: int | Sequence[int] = 16, patches: int = 256) -> dict[str, tf.Tensor]:
    """An image of any size as the inputs of keras_vit.NaFlexViT; eagerly, or in a tf.data pipeline.

        dataset.map(lambda image, label: (to_patches(image, 16, 256), label)).batch(32)

    Args:
        image: (height, width, c). Pixels 0..255.
        patch_size: pixels, a number or (height, width).
        patches: number of patches to which it is padded, at least 1.

    Returns:
        {"patches": (n, p, q, c) uint8, row by row, zeros after the last, "grid": (2,) int32, rows and columns}.

    Raises:
        ValueError: for another rank, or fewer than 1 patch.
    """
    p, q = (patch_size, patch_size) if isinstance(patch_size, int) else patch_size
    image = tf.convert_to_tensor(image)
    if image.shape.rank != 3 or image.shape[-1] is None:
        raise ValueError(f"to_patches: expected an image (height, width, c), got shape {tuple(image.shape)}.")
    if patches < 1:
        raise ValueError(f"to_patches: patches must be 1 or more, got {patches}.")
    channels, shape = image.shape[-1], tf.shape(image)
    rows, columns = (tf.cast(side, tf.int32) for side in patch_grid(shape[0], shape[1], (p, q), patches))
    pixels = as_uint8(tf.image.resize(image, (rows * p, columns * q), antialias=True))
    cut = tf.reshape(pixels, (rows, p, columns, q, channels))  # (height, width, c) -> (h, p, w, q, c)
    cut = tf.reshape(tf.transpose(cut, (0, 2, 1, 3, 4)), (-1, p, q, channels))  # (h, w, p, q, c) -> (h*w, p, q, c)
    padded = tf.pad(cut, [[0, patches - rows * columns], [0, 0], [0, 0], [0, 0]])
    return {"patches": tf.ensure_shape(padded, (patches, p, q, channels)), "grid": tf.stack([rows, columns])}
