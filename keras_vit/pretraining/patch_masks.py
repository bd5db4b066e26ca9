"""Hides or replaces patches, and makes targets for them: functions of one image and a seed, in tf.data.

In the data pipeline an example has the same hidden patches on one device or many, and after a resume.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

MASKED, TAKEN = 0.8, 0.1  # appendix B.1.2: shares of corrupted patches with the learned embedding, with another's
BITS = 3  # of a colour channel
THUMBNAIL = 4  # pixels on a side


def shuffled(seed: Any, patches: int) -> tf.Tensor:
    """0 to patches - 1, (n,) int32, in the order of uniform draws, as in MAE's code."""
    return tf.argsort(tf.random.stateless_uniform((patches,), seed), stable=True)


def cut(image: tf.Tensor, patch_size: tuple[int, int]) -> tf.Tensor:
    """The patches of an image: (height, width, c) -> (n, p, q, c), in row-major order."""
    p, q = patch_size
    height, width, c = image.shape
    x = tf.reshape(image, (height // p, p, width // q, q, c))  # (height, width, c) -> (h, p, w, q, c)
    return tf.reshape(tf.transpose(x, (0, 2, 1, 3, 4)), (-1, p, q, c))  # (h, w, p, q, c) -> (n, p, q, c)


def _check_count(count, patches, what):
    if not 0 < count < patches:
        raise ValueError(f"{count} {what} patches of an image's {patches}: expected 1 to {patches - 1}.")


def hide(image: Any, seed: Any, patches: int, count: int) -> tuple[dict[str, Any], tf.Tensor]:
    """An example for a MaskedAutoencoder.

    Args:
        image: (height, width, c).
        seed: (2,) integers.
        patches: number of patches, n.
        count: number of visible patches, m.

    Returns:
        {"image": image, "kept": (m,) int32 numbers of the visible patches, in order}, and (n,) uint8, 1 for hidden
            patches.

    Raises:
        ValueError: unless some are visible and some hidden.
    """
    _check_count(count, patches, "visible")
    kept = tf.sort(shuffled(seed, patches)[:count])
    hidden = tf.tensor_scatter_nd_update(tf.ones((patches,), tf.uint8), kept[:, None], tf.zeros((count,), tf.uint8))
    return {"image": image, "kept": kept}, hidden


def colours(patches: tf.Tensor) -> tf.Tensor:
    """Mean colours as classes, 3 bits per channel, the first highest: pixels 0..255 (..., p, q, c) -> (...,) int32."""
    mean = tf.reduce_mean(tf.cast(patches, tf.float32), axis=(-3, -2))
    levels = tf.clip_by_value(tf.cast(mean * (2**BITS / 256), tf.int32), 0, 2**BITS - 1)  # (..., c)
    places = [2 ** (BITS * i) for i in reversed(range(levels.shape[-1]))]
    return tf.reduce_sum(levels * tf.constant(places), axis=-1)


def class_colour(classes: Any, channels: int) -> np.ndarray:
    """The central pixel value of a class of `colours`: (...,) -> (..., c) uint8."""
    shifts = BITS * np.arange(channels)[::-1]
    levels = np.asarray(classes)[..., None] >> shifts & (2**BITS - 1)
    return ((levels + 0.5) * 256 / 2**BITS).astype("uint8")


def thumbnails(patches: tf.Tensor) -> tf.Tensor:
    """Patches as 4 x 4 pixels, each a mean: (n, p, q, c) -> (n, 16, p/4, q/4, c), row by row."""
    n, p, q, c = patches.shape
    side = THUMBNAIL
    x = tf.reshape(patches, (-1, side, p // side, side, q // side, c))  # (n, p, q, c) -> (n, 4, p/4, 4, q/4, c)
    return tf.reshape(tf.transpose(x, (0, 1, 3, 2, 4, 5)), (-1, side * side, p // side, q // side, c))


def replacements(seed: Any, patches: int, count: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Each patch's embedding, (n,) int32 as in layers.hidden_patches.ReplacedPatches, and which patches are hidden
    (n,).

    Of the `count` hidden patches 80% get the learned embedding (-1), 10% another patch's, the rest keep their own, as
    near as whole numbers allow.
    """
    hidden = shuffled(seed, patches)[:count]
    masked = round(MASKED * count)
    taken = min(round(TAKEN * count), count - masked)
    other = tf.random.stateless_uniform((taken,), seed + 1, 1, patches, tf.int32)  # a shift to another patch
    taken_from = (hidden[masked : masked + taken] + other) % patches
    source = tf.concat([tf.fill((masked,), -1), taken_from, hidden[masked + taken :]], 0)
    at = hidden[:, None]
    return (
        tf.tensor_scatter_nd_update(tf.range(patches), at, source),
        tf.scatter_nd(at, tf.ones((count,)), (patches,)) > 0,
    )


def corrupt(
    image: Any, seed: Any, patch_size: tuple[int, int], count: int, target: str = "mean_colour"
) -> tuple[dict[str, Any], tf.Tensor]:
    """An example for a MaskedPatchPredictor.

    Args:
        image: (height, width, c), of fixed size.
        seed: (2,) integers.
        patch_size: (height, width).
        count: number of corrupted and predicted patches.
        target: "mean_colour", "thumbnail" or "pixels".

    Returns:
        {"image": image, "source": (n,) int32}, and the loss's y: classes (n,) for mean colours, (n, 16) for thumbnails,
            int32, -1 where nothing is predicted; (n,) uint8, 1 for hidden patches, for pixels.

    Raises:
        ValueError: unless some are corrupted and some left.
    """
    patches, n = cut(image, patch_size), (image.shape[0] // patch_size[0]) * (image.shape[1] // patch_size[1])
    _check_count(count, n, "corrupted")
    source, hidden = replacements(seed, n, count)
    if target == "pixels":
        y = tf.cast(hidden, tf.uint8)
    elif target == "thumbnail":
        y = tf.where(hidden[:, None], colours(thumbnails(patches)), -1)
    else:
        y = tf.where(hidden, colours(patches), -1)
    return {"image": image, "source": source}, y


def each(function: Callable, images: Any, seed: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """function(image, seed) of each image (b, height, width, c), as arrays; image i's seed is (seed, i)."""
    if not len(images):
        raise ValueError("There are no images: expected at least one.")
    seeds = tf.stack([tf.fill((len(images),), seed), tf.range(len(images))], axis=1)
    batch = (
        tf.data.Dataset.from_tensor_slices((images, seeds))
        .map(tf.autograph.experimental.do_not_convert(function))
        .batch(len(images))
    )
    return next(iter(batch.as_numpy_iterator()))
