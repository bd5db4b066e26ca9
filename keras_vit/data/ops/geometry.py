"""Resizing, cropping, flipping and shifting ops, which move an example's image, its maps and boxes together.

- image: pixels (h, w, c).
- mask: integers (h, w, 1), one per pixel, resampled to the nearest pixel. Padding is the example's "void", an integer,
  or else PADDING.
- depth: float32 (h, w, 1), metres, 0 for void; moves as the mask, to the nearest pixel, so that no depths are mixed at
  edges. Padding is 0. A zoom does not change metres.
- segments: int32 (h, w, 2), numbers of objects; moves as the mask. Padding is 0, no object.
- boxes: float32 (m, 4), one per object: top, left, bottom, right as fractions of the image's height and width, as in
  tensorflow-datasets. Ops clip them to the window. A box outside keeps its row, with no area, so rows stay aligned
  with the objects' labels.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_vit.data.ops.headers import LARGE
from keras_vit.data.ops.op_registry import AS_MASKS, integer, op

PADDING = 0  # for pixels outside the image, and for masks without void


def as_size(height: int, width: int | None) -> tuple[int, int]:
    """Returns a size, given as one positive integer or two, as (height, width)."""
    size = (height, height if width is None else width)
    if not all(isinstance(s, int) and s > 0 for s in size):
        raise ValueError(f"Expected a size of one or two positive integers, got {size}.")
    return size


def transformed(
    example: dict[str, Any], image: tf.Tensor, mask: Callable, boxes: Callable, maps: Callable | None = None
) -> dict[str, Any]:
    """Returns the new `image`, with the example's mask, depth, segments and boxes, if any, transformed by functions.

    `maps` transforms depth and segments; None for `mask`.

    Raises:
        ValueError: if the mask is still encoded.
    """
    result = {"image": image}
    if "mask" in example:
        if example["mask"].dtype == tf.string:
            raise ValueError('The mask is still encoded: start the preprocessing with "decode".')
        result["mask"] = mask(example["mask"])
    for key in AS_MASKS:
        if key in example:
            result[key] = (maps or mask)(example[key])
    if "boxes" in example:
        result["boxes"] = boxes(example["boxes"])
    return result


def resize_example(example: dict[str, Any], size, method: str, antialias: bool) -> dict[str, Any]:
    """Resizes an example's image and mask to `size` (height, width); boxes, as fractions, stay."""
    image = tf.image.resize(example["image"], size, method=method, antialias=antialias)
    return transformed(example, image, lambda mask: resize_mask(mask, size), lambda boxes: boxes)


def resize_mask(mask: tf.Tensor, size) -> tf.Tensor:
    """Resizes a mask (h, w, 1) to the nearest pixel."""
    return tf.image.resize(mask, size, method="nearest")


def check_pixels(what: str, shape, target) -> tf.Operation:
    """Asserts that an image of `shape`, resized to `target`, (2,) integers each, has at most LARGE pixels."""
    target = [tf.cast(side, tf.int64) for side in (target[0], target[1])]
    limit = f"{what}: expected a result of at most {LARGE} pixels. The image has height and width"
    details = [limit, shape[0], shape[1], "and the result would have", *target]
    return tf.debugging.Assert(target[0] * target[1] <= LARGE, details)


def boxes_in_window(boxes: tf.Tensor, shape, begin, extent) -> tf.Tensor:
    """Converts boxes from fractions of an image to fractions of a window, clipped.

    Args:
        boxes: (m, 4). Top, left, bottom, right.
        shape: (2,) integers. Height and width of the image in pixels.
        begin: (2,) integers. Top and left of the window, possibly outside the image.
        extent: (2,) integers. Height and width of the window.
    """
    shape, begin, extent = (tf.tile(tf.cast(value, tf.float32), [2]) for value in (shape, begin, extent))  # (4,)
    return tf.clip_by_value((boxes * shape - begin) / extent, 0.0, 1.0)


def _slice(pixels, begin, extent):
    """Returns the window of pixels (h, w, c) at `begin` (2,) with size `extent` (2,), inside the image."""
    return tf.slice(pixels, tf.concat([begin, [0]], 0), tf.concat([extent, [-1]], 0))


def crop(example: dict[str, Any], begin, extent, size=(None, None), inside: bool = False) -> dict[str, Any]:
    """Crops an example's image, mask, depth, segments and boxes to a window, and pads where it leaves the image.

    Padding is PADDING, except in masks: the example's void, or else PADDING.

    Args:
        example: dict. "image", pixels (h, w, c), and perhaps "mask", "depth", "segments", "boxes" and "void".
        begin: (2,) integers. Top and left of the window, possibly outside the image.
        extent: (2,) integers. Height and width of the window.
        size: (height, width). The extent, as far as it is known before reading the image.
        inside: bool. Whether the window is inside the image, so that nothing needs padding.
    """
    shape, begin, extent = tf.shape(example["image"])[:2], tf.convert_to_tensor(begin), tf.convert_to_tensor(extent)
    first, last = tf.clip_by_value(begin, 0, shape), tf.clip_by_value(begin + extent, 0, shape)
    before = tf.clip_by_value(-begin, 0, extent)
    after = extent - before - (last - first)

    def window(pixels, fill=PADDING):
        part = _slice(pixels, begin, extent) if inside else _slice(pixels, first, last - first)
        if not inside:
            margins = [[before[0], after[0]], [before[1], after[1]], [0, 0]]
            part = tf.pad(part, margins, constant_values=tf.cast(fill, pixels.dtype))
        return tf.ensure_shape(part, (*size, pixels.shape[-1]))

    return transformed(
        example,
        window(example["image"]),
        lambda mask: window(mask, example.get("void", PADDING)),
        lambda boxes: boxes_in_window(boxes, shape, begin, extent),
        window,
    )


@op("image", "mask", "boxes")
def resize(height, width=None, method="bilinear", antialias=True):
    """resize(256) resizes the shorter side to 256, the longer in proportion, rounded down (torchvision).

    resize(256, 320) resizes to that height and width. A result above LARGE pixels is an error at read time.
    """
    size = as_size(height, width)

    def apply(example):
        target = size
        if width is None:
            h, w = tf.unstack(tf.shape(example["image"])[:2])
            shorter = tf.cast(tf.minimum(h, w), tf.int64)
            target = [height * tf.cast(s, tf.int64) // shorter for s in (h, w)]
            with tf.control_dependencies([check_pixels(f"resize({height})", (h, w), target)]):
                target = [tf.cast(s, tf.int32) for s in target]
        return resize_example(example, target, method, antialias)

    return apply


@op("image", "mask", "boxes", reads=("void",))
def central_crop(height, width=None):
    """Crops the central height x width pixels and pads smaller images with black.

    Half offsets round to even, as in torchvision.
    """
    size = as_size(height, width)

    def apply(example):
        shape = tf.shape(example["image"])[:2]
        excess = tf.maximum(shape - size, 0)
        # tf.round rounds halves to even.
        offset = tf.cast(tf.round(tf.cast(excess, tf.float32) / 2), tf.int32)
        return crop(example, offset - tf.maximum(size - shape, 0) // 2, size, size)

    return apply


@op("image", "mask", "boxes", checks={"pixels": integer(0)})
def crop_border(pixels):
    """Removes `pixels` from each side; an image too small for that is an error at read time."""

    def apply(example):
        fixed = example["image"].shape[:2]
        if any(size is not None and size <= 2 * pixels for size in fixed):
            raise ValueError(f"crop_border({pixels}): nothing is left of an image of {fixed[0]}x{fixed[1]} pixels.")
        shape = tf.shape(example["image"])[:2]
        large = tf.debugging.Assert(
            tf.reduce_all(shape > 2 * pixels), [f"crop_border({pixels}): nothing is left of an image of", shape]
        )
        with tf.control_dependencies([large]):
            extent = shape - 2 * pixels
        return crop(example, (pixels, pixels), extent, [size and size - 2 * pixels for size in fixed], inside=True)

    return apply


@op("image", "mask", "boxes", random=True, reads=("void",))
def random_crop(height, width=None, padding=0):
    """Pads each side with `padding` black pixels, then crops a random height x width window."""
    size = as_size(height, width)

    def apply(example, seed):
        image = example["image"]
        shape, window = tf.shape(image) + [2 * padding, 2 * padding, 0], tf.constant((*size, image.shape[-1]))
        fits = tf.debugging.Assert(
            tf.reduce_all(shape >= window), ["random_crop: expected an image of at least", window, "got", shape]
        )
        with tf.control_dependencies([fits]):
            limit = shape - window + 1
        # The draw of tf.image.stateless_random_crop; boxes need its offset.
        offset = tf.random.stateless_uniform((3,), seed, 0, tf.int32.max, tf.int32) % limit
        return crop(example, offset[:2] - padding, size, size)

    return apply


def sampled_window(shape: tf.Tensor, seed, scale, ratio) -> tuple[tf.Tensor, tf.Tensor]:
    """Samples a window of an image of `shape` (3,); returns (top, left) and (height, width), each (2,) int32."""
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


def resized_window(window: tf.Tensor, size: tuple[int, int], method: str) -> tf.Tensor:
    """Resizes a window (h, w, c) to float32 with antialiasing; "auto" keeps uint8 and takes a third of the time."""
    if method != "auto":
        image = tf.image.resize(window, size, method=method, antialias=True)
    else:
        # If both sides shrink, area averaging is as smooth as an antialiased filter. If only one does, it shrinks by
        # at most the window's aspect: too little to need smoothing.
        shrinks = tf.reduce_all(tf.shape(window)[:2] > size)
        area, bilinear = (
            lambda method=method: tf.image.resize(window, size, method=method) for method in ("area", "bilinear")
        )
        image = tf.cond(shrinks, area, bilinear)
        image = tf.cast(image + 0.5, tf.uint8) if window.dtype == tf.uint8 else image
    return tf.ensure_shape(image, (*size, window.shape[-1]))


def crop_and_resize(example, image, shape, begin, extent, size):
    """Returns the resized crop `image` with the example's mask and boxes moved to the same window.

    Args:
        example: dict. The example before the crop.
        image: (height, width, c). The resized crop.
        shape: (3,) int32. Shape of the image before the crop.
        begin, extent: (2,) int32 each. The window.
        size: (height, width). Size of `image`.
    """

    def to_size(mask):
        return tf.ensure_shape(resize_mask(_slice(mask, begin, extent), size), (*size, mask.shape[-1]))

    return transformed(example, image, to_size, lambda boxes: boxes_in_window(boxes, shape[:2], begin, extent))


@op("image", "mask", "boxes", random=True)
def random_resized_crop(height, width=None, scale=(0.05, 1.0), ratio=(0.75, 4 / 3), method="auto"):
    """Resizes a random window of area `scale` and aspect `ratio` to height x width (Inception crop).

    `method`: "auto" averages areas if both sides shrink and interpolates bilinearly otherwise; "bilinear", "bicubic"
    and the other methods of tf.image.resize antialias.
    """
    size = as_size(height, width)

    def apply(example, seed):
        image = example["image"]
        shape = tf.shape(image)
        begin, extent = sampled_window(shape, seed, scale, ratio)
        window = tf.ensure_shape(_slice(image, begin, extent), (None, None, image.shape[-1]))
        cropped = resized_window(window, size, method)
        return crop_and_resize(example, cropped, shape, begin, extent, size)

    return apply


@op("image", "mask", "boxes", random=True)
def random_flip():
    """Flips left and right with probability 1/2."""

    def mirrored(example):
        top, left, bottom, right = range(4)
        return transformed(
            example,
            tf.reverse(example["image"], [1]),
            lambda mask: tf.reverse(mask, [1]),
            lambda boxes: tf.stack([boxes[:, top], 1 - boxes[:, right], boxes[:, bottom], 1 - boxes[:, left]], 1),
        )

    def apply(example, seed):
        flips = tf.random.stateless_uniform((), seed) < 0.5  # the draw of tf.image.stateless_random_flip_left_right
        return tf.cond(flips, lambda: mirrored(example), lambda: example)

    return apply


@op("image", "mask", "boxes", random=True, reads=("void",))
def random_shift(pixels):
    """Shifts by up to `pixels` in each direction and fills the border with black."""

    def apply(example, seed):
        image = example["image"]
        offset = tf.random.stateless_uniform((2,), seed, 0, 2 * pixels + 1, tf.int32)
        return crop(example, offset - pixels, tf.shape(image)[:2], image.shape[:2])

    return apply
