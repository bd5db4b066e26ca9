"""Ops that move pixels: sizes, windows, flips and shifts. They move an example's image, mask and boxes by the same
window and seed.

- image: pixels (h, w, c).
- mask: integers (h, w, 1), one per pixel of the image. It is resampled to the nearest pixel; what padding brings in is
  PADDING.
- boxes: float32 (m, 4), one per object: top, left, bottom, right as fractions of the image's height and width, as
  tensorflow-datasets has them. They are clipped to the window. A box outside it keeps its row, so that it stays aligned
  with the objects' labels, and has no area.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_vit.data.ops.decode import LARGE
from keras_vit.data.ops.registry import op

PADDING = 0  # of masks: the value of pixels that were not in the image


def pair(height: int, width: int | None) -> tuple[int, int]:
    """The parameters of a size as (height, width): one number or two, positive integers."""
    size = (height, height if width is None else width)
    if not all(isinstance(s, int) and s > 0 for s in size):
        raise ValueError(f"A size is one or two positive integers, got {size}.")
    return size


def moved(example: dict[str, Any], image: tf.Tensor, move_mask: Callable, move_boxes: Callable) -> dict[str, Any]:
    """An example whose image is now `image`, with its mask and boxes, if it has them, moved by the two functions.

    Raises:
        ValueError: if the mask is still encoded.
    """
    result = {"image": image}
    if "mask" in example:
        if example["mask"].dtype == tf.string:
            raise ValueError('The mask is encoded: begin the preprocessing with "decode".')
        result["mask"] = move_mask(example["mask"])
    if "boxes" in example:
        result["boxes"] = move_boxes(example["boxes"])
    return result


def resized_mask(mask: tf.Tensor, size) -> tf.Tensor:
    """A mask (h, w, 1) at another size: each pixel takes the value of the nearest one."""
    return tf.image.resize(mask, size, method="nearest")


def boxes_in_window(boxes: tf.Tensor, shape, begin, extent) -> tf.Tensor:
    """Boxes (m, 4), fractions of an image, as fractions of a window of it, and clipped to it.

    Args:
        boxes: top, left, bottom, right.
        shape: height and width of the image in pixels, (2,) integers.
        begin: top and left of the window, which may be outside the image, (2,) integers.
        extent: height and width of the window, (2,) integers.
    """
    shape, begin, extent = (tf.tile(tf.cast(value, tf.float32), [2]) for value in (shape, begin, extent))  # (4,)
    return tf.clip_by_value((boxes * shape - begin) / extent, 0.0, 1.0)


@op("image", "mask", "boxes")
def resize(height, width=None, method="bilinear", antialias=True):
    """resize(256): the shorter side to 256, the longer by the same factor, rounded down (as torchvision). resize(256,
    320): to that size.

    An image so long that the result would have more than LARGE pixels is an error while it is read.
    """
    size = pair(height, width)

    def apply(example):
        image, target = example["image"], size
        if width is None:
            h, w = tf.shape(image)[0], tf.shape(image)[1]
            shorter = tf.cast(tf.minimum(h, w), tf.int64)
            target = [height * tf.cast(s, tf.int64) // shorter for s in (h, w)]
            what = f"resize({height}): the result may have {LARGE} pixels at most, and would have, of an image of"
            with tf.control_dependencies(
                [tf.debugging.Assert(target[0] * target[1] <= LARGE, [what, h, w, "pixels:", *target])]
            ):
                target = [tf.cast(s, tf.int32) for s in target]
        resized = tf.image.resize(image, target, method=method, antialias=antialias)
        return moved(example, resized, lambda mask: resized_mask(mask, target), lambda boxes: boxes)

    return apply


@op("image", "mask", "boxes")
def central_crop(height, width=None):
    """The middle height x width pixels, of two middles the one at the even offset (as torchvision); a smaller image is
    padded with black.
    """
    size = pair(height, width)

    def apply(example):
        shape = tf.shape(example["image"])[:2]
        kept = tf.minimum(shape, size)
        # tf.round takes halves to the even number.
        offset = tf.cast(tf.round(tf.cast(shape - kept, tf.float32) / 2), tf.int32)

        def cropped(pixels):
            window = tf.slice(pixels, [offset[0], offset[1], 0], [kept[0], kept[1], -1])
            return tf.ensure_shape(tf.image.resize_with_crop_or_pad(window, *size), (*size, pixels.shape[-1]))

        in_window = lambda boxes: boxes_in_window(boxes, shape, offset - (size - kept) // 2, size)  # noqa: E731
        return moved(example, cropped(example["image"]), cropped, in_window)

    return apply


@op("image", "mask", "boxes")
def crop_border(pixels):
    """Without `pixels` on each side, a frame that is no part of the picture; an image that would have none left is an
    error while it is read.
    """
    if isinstance(pixels, bool) or not isinstance(pixels, int) or pixels < 0:
        raise ValueError(f"crop_border: expected a whole number of pixels, 0 or more, got {pixels!r}.")

    def apply(example):
        fixed = example["image"].shape[:2]
        if any(size is not None and size <= 2 * pixels for size in fixed):
            raise ValueError(f"crop_border({pixels}) leaves nothing of an image of {fixed[0]}x{fixed[1]} pixels.")
        shape = tf.shape(example["image"])[:2]
        large = tf.debugging.Assert(
            tf.reduce_all(shape > 2 * pixels), [f"crop_border({pixels}): got an image of", shape]
        )
        with tf.control_dependencies([large]):
            kept = shape - 2 * pixels

        def cropped(image):
            left = [size and size - 2 * pixels for size in fixed]
            return tf.ensure_shape(
                tf.slice(image, [pixels, pixels, 0], [*tf.unstack(kept), -1]), (*left, image.shape[-1])
            )

        in_window = lambda boxes: boxes_in_window(boxes, shape, (pixels, pixels), kept)  # noqa: E731
        return moved(example, cropped(example["image"]), cropped, in_window)

    return apply


@op("image", "mask", "boxes", random=True)
def random_crop(height, width=None, padding=0):
    """A random height x width window of the image, padded first by `padding` black pixels on each side."""
    size = pair(height, width)

    def padded(pixels):
        return tf.pad(pixels, [[padding, padding], [padding, padding], [0, 0]], constant_values=PADDING)

    def apply(example, seed):
        image = padded(example["image"])
        shape, window = tf.shape(image), tf.constant((*size, image.shape[-1]))
        fits = tf.debugging.Assert(
            tf.reduce_all(shape >= window), ["random_crop: expected an image of", window, "or more, got", shape]
        )
        with tf.control_dependencies([fits]):
            limit = shape - window + 1
        # The draw of tf.image.stateless_random_crop, whose offset the boxes need.
        offset = tf.random.stateless_uniform((3,), seed, 0, tf.int32.max, tf.int32) % limit

        def cropped_mask(mask):
            return tf.ensure_shape(tf.slice(padded(mask), offset, (*size, 1)), (*size, 1))

        in_window = lambda boxes: boxes_in_window(boxes, shape[:2] - 2 * padding, offset[:2] - padding, size)  # noqa: E731
        return moved(example, tf.slice(image, offset, window), cropped_mask, in_window)

    return apply


def sampled_window(shape: tf.Tensor, seed, scale, ratio) -> tuple[tf.Tensor, tf.Tensor]:
    """(top, left) and (height, width), each (2,) int32, of a random window of an image of `shape` (3,)."""
    begin, extent, _ = tf.image.stateless_sample_distorted_bounding_box(
        shape,
        tf.zeros((1, 0, 4), tf.float32),
        seed,
        aspect_ratio_range=ratio,
        area_range=scale,
        min_object_covered=0,
        use_image_if_no_bounding_boxes=True,
    )
    return begin[:2], extent[:2]


def _slice(pixels, begin, extent):
    """The window of pixels (h, w, c) from `begin`, (2,), of the size `extent`, (2,)."""
    window = tf.slice(pixels, tf.concat([begin, [0]], 0), tf.concat([extent, [-1]], 0))
    return tf.ensure_shape(window, (None, None, pixels.shape[-1]))


def resized_window(window: tf.Tensor, size: tuple[int, int], method: str) -> tf.Tensor:
    """The pixels (h, w, c) of a window at `size`: float32, antialiased; with method "auto" uint8 for uint8 pixels, in a
    third of the time.
    """
    if method != "auto":
        image = tf.image.resize(window, size, method=method, antialias=True)
    else:
        # Where both sides shrink, the mean over each pixel's area is as smooth as an antialiased filter. Where only one
        # does, it shrinks by the window's aspect at most: too little to need smoothing.
        shrinks = tf.reduce_all(tf.shape(window)[:2] > size)
        area, bilinear = (
            lambda method=method: tf.image.resize(window, size, method=method) for method in ("area", "bilinear")
        )
        image = tf.cond(shrinks, area, bilinear)
        image = tf.cast(image + 0.5, tf.uint8) if window.dtype == tf.uint8 else image
    return tf.ensure_shape(image, (*size, window.shape[-1]))


def moved_to_window(example, image, shape, begin, extent, size):
    """An example whose image was cropped to a window and resized, with mask and boxes moved likewise.

    Args:
        example: the example before the crop.
        image: (height, width, c), after it.
        shape: of the image before the crop, (3,) int32.
        begin, extent: the window, each (2,) int32.
        size: height and width of `image`.
    """
    to_size = lambda mask: tf.ensure_shape(resized_mask(_slice(mask, begin, extent), size), (*size, 1))  # noqa: E731
    return moved(example, image, to_size, lambda boxes: boxes_in_window(boxes, shape[:2], begin, extent))


@op("image", "mask", "boxes", random=True)
def random_resized_crop(height, width=None, scale=(0.05, 1.0), ratio=(0.75, 4 / 3), method="auto"):
    """A random window with `scale` of the area and an aspect within `ratio`, resized to height x width (Inception
    crop).

    With `method` "auto" a window that shrinks both ways becomes means over areas, and any other is interpolated
    bilinearly; "bilinear", "bicubic" and the others of tf.image.resize antialias.
    """
    size = pair(height, width)

    def apply(example, seed):
        image = example["image"]
        shape = tf.shape(image)
        begin, extent = sampled_window(shape, seed, scale, ratio)
        cropped = resized_window(_slice(image, begin, extent), size, method)
        return moved_to_window(example, cropped, shape, begin, extent, size)

    return apply


@op("image", "mask", "boxes", random=True)
def random_flip():
    """Exchanges left and right with probability 1/2."""

    def mirrored(example):
        top, left, bottom, right = range(4)
        return moved(
            example,
            tf.reverse(example["image"], [1]),
            lambda mask: tf.reverse(mask, [1]),
            lambda boxes: tf.stack([boxes[:, top], 1 - boxes[:, right], boxes[:, bottom], 1 - boxes[:, left]], 1),
        )

    def apply(example, seed):
        flips = tf.random.stateless_uniform((), seed) < 0.5  # the draw of tf.image.stateless_random_flip_left_right
        return tf.cond(flips, lambda: mirrored(example), lambda: example)

    return apply


@op("image", "mask", "boxes", random=True)
def random_shift(pixels):
    """A shift by up to `pixels` in each direction; what comes in at the border is black."""

    def apply(example, seed):
        offset = tf.random.stateless_uniform((2,), seed, 0, 2 * pixels + 1, tf.int32)

        def shifted(image):
            padded = tf.pad(image, [[pixels, pixels], [pixels, pixels], [0, 0]], constant_values=PADDING)
            return tf.ensure_shape(tf.slice(padded, [offset[0], offset[1], 0], tf.shape(image)), image.shape)

        def in_window(boxes):
            shape = tf.shape(example["image"])[:2]
            return boxes_in_window(boxes, shape, offset - pixels, shape)

        return moved(example, shifted(example["image"]), shifted, in_window)

    return apply
