"""Ops for robustness tests: shift pixels, drop or shuffle patches. Images need a fixed size."""

import tensorflow as tf

from keras_vit.data.ops.corruption.filters import folded
from keras_vit.data.ops.op_registry import PROBABILITY, Check, integer, is_integer, one_of, op

_PIXELS = Check("an integer, in pixels", is_integer)
_DROP = {
    "patch": Check(
        "integers of at least 1",
        lambda patch: all(is_integer(side, 1) for side in (patch if isinstance(patch, tuple) else (patch,))),
    ),
    "share": PROBABILITY,
    "fill": Check("a level from 0 to 255", lambda value: 0 <= value <= 255),
}


def _check_size(image, name):
    if not image.shape.is_fully_defined():
        raise ValueError(
            f'{name}: expected images of a fixed size, got {tuple(image.shape)}. Put it after "central_crop(224)".'
        )


@op(
    "image",
    refuses=("mask", "boxes"),
    checks={"down": _PIXELS, "right": _PIXELS, "border": one_of(("mirror", "black"))},
)
def shift(down=0, right=0, border="mirror"):
    """Moves the image by whole pixels (negative: up and left); fills the border with its mirror image or black."""

    def apply(image):
        _check_size(image, "shift")
        for axis, pixels in enumerate((down, right)):
            n = image.shape[axis]
            places = tf.range(n) - pixels
            if border == "black":
                places = tf.where((places >= 0) & (places < n), places, n)  # n: a black pixel after the last
                image = tf.pad(image, [[0, int(i == axis)] for i in range(3)])
                image = tf.gather(image, places, axis=axis)
            else:
                image = tf.gather(image, folded(places, n, "mirror"), axis=axis)
        return image

    return apply


def _in_patches(image, rows, columns):
    """(h, w, c) -> (rows * columns, h / rows, w / columns, c)."""
    h, w, c = image.shape
    x = tf.reshape(image, (rows, h // rows, columns, w // columns, c))
    return tf.reshape(tf.transpose(x, (0, 2, 1, 3, 4)), (rows * columns, h // rows, w // columns, c))


def _together(patches, rows, columns):
    """Inverts _in_patches."""
    _, height, width, c = patches.shape
    x = tf.transpose(tf.reshape(patches, (rows, columns, height, width, c)), (0, 2, 1, 3, 4))
    return tf.reshape(x, (rows * height, columns * width, c))


def _check_divisible(image, rows, columns, what):
    if image.shape[0] % rows or image.shape[1] % columns:
        raise ValueError(f"{what} cannot divide an image of {image.shape[0]}x{image.shape[1]} pixels evenly.")


@op("image", random=True, checks=_DROP)
def drop_patches(patch, share, fill=0):
    """Fills a random share of an image's patches with level `fill` (arXiv 2105.10497, Sec. 3.1).

    `patch` is a side in pixels or (height, width). Drops exactly round(share * patches) per image.
    """
    sides = patch if isinstance(patch, tuple) else (patch, patch)

    def apply(image, seed):
        _check_size(image, "drop_patches")
        rows, columns = (max(length // side, 1) for length, side in zip(image.shape, sides))
        _check_divisible(image, *sides, f"drop_patches: patches of {patch} pixels")
        n = rows * columns
        if share and not round(share * n):
            raise ValueError(
                f"drop_patches: a share of {share} of {n} patches is less than one: raise it, or use smaller patches."
            )
        dropped = tf.random.experimental.stateless_shuffle(tf.range(n), seed) < round(share * n)  # (n,)
        x = _in_patches(image, rows, columns)
        return _together(tf.where(dropped[:, None, None, None], tf.cast(fill, x.dtype), x), rows, columns)

    return apply


@op("image", random=True, refuses=("mask", "boxes"), checks={"grid": integer(1)})
def shuffle_patches(grid):
    """Cuts into grid x grid parts and shuffles them (arXiv 2105.10497, Sec. 3.2)."""

    def apply(image, seed):
        _check_size(image, "shuffle_patches")
        _check_divisible(image, grid, grid, f"shuffle_patches: {grid}x{grid} parts")
        order = tf.random.experimental.stateless_shuffle(tf.range(grid * grid), seed)
        return _together(tf.gather(_in_patches(image, grid, grid), order), grid, grid)

    return apply
