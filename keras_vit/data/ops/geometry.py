"""Resizing, cropping, flipping and shifting ops, which move an example's image, mask, depth and boxes together.

- image: pixels (h, w, c).
- mask: integers (h, w, 1), one per pixel, resampled to the nearest pixel. Padding is the example's "void", an integer,
  or else PADDING.
- depth: float32 (h, w, 1), metres, 0 for void; moves as the mask, to the nearest pixel, so that no depths are mixed at
  edges. Padding is 0. A zoom does not change metres.
- boxes: float32 (m, 4), one per object: top, left, bottom, right as fractions of the image's height and width, as in
  tensorflow-datasets. Ops clip them to the window. A box outside keeps its row, with no area, so rows stay aligned
  with the objects' labels.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_vit.data.ops.headers import LARGE
from keras_vit.data.ops.op_registry import op

PADDING = 0  # for pixels outside the image, and for masks without void


def pair(height: int, width: int | None) -> tuple[int, int]:
    """Returns a size, given as one positive integer or two, as (height, width)."""
    size = (height, height if width is None else width)
    if not all(isinstance(s, int) and s > 0 for s in size):
        raise ValueError(f"Expected a size of one or two positive integers, got {size}.")
    return size


def moved(example: dict[str, Any], image: tf.Tensor, move_mask: Callable, move_boxes: Callable) -> dict[str, Any]:
    """Returns the new `image`, with the example's mask, depth and boxes, if any, moved by the two functions.

    Raises:
        ValueError: if the mask is still encoded.
    """
    result = {"image": image}
    if "mask" in example:
        if example["mask"].dtype == tf.string:
            raise ValueError('The mask is still encoded: start the preprocessing with "decode".')
        result["mask"] = move_mask(example["mask"])
    if "depth" in example:
        result["depth"] = move_mask(example["depth"])
    if "boxes" in example:
        result["boxes"] = move_boxes(example["boxes"])
    return result


def padded(pixels: tf.Tensor, before, after, fill=PADDING) -> tf.Tensor:
    """Pads pixels (h, w, c) with the value `fill`.

    Args:
        pixels: image or mask.
        before, after: (2,) integers each. Rows and columns to add above and on the left, below and on the right.
        fill: scalar. PADDING for images; `fill_of` for masks, and PADDING for depths, which are floats.
    """
    fill = PADDING if pixels.dtype.is_floating else fill
    margins = [[before[0], after[0]], [before[1], after[1]], [0, 0]]
    return tf.pad(pixels, margins, constant_values=tf.cast(fill, pixels.dtype))


def fill_of(example: dict[str, Any]) -> Any:
    """What to pad an example's mask with: its "void", or else PADDING."""
    return example.get("void", PADDING)


def resized_mask(mask: tf.Tensor, size) -> tf.Tensor:
    """Resizes a mask (h, w, 1) to the nearest pixel."""
    return tf.image.resize(mask, size, method="nearest")


def resized(example: dict[str, Any], size, method: str, antialias: bool) -> dict[str, Any]:
    """Resizes an example's image and mask to `size` (height, width); boxes, as fractions, stay."""
    image = tf.image.resize(example["image"], size, method=method, antialias=antialias)
    return moved(example, image, lambda mask: resized_mask(mask, size), lambda boxes: boxes)


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


@op("image", "mask", "boxes")
def resize(height, width=None, method="bilinear", antialias=True):
    """resize(256) resizes the shorter side to 256, the longer in proportion, rounded down (torchvision).

    resize(256, 320) resizes to that height and width. A result above LARGE pixels is an error at read time.
    """
    size = pair(height, width)

    def apply(example):
        target = size
        if width is None:
            h, w = tf.unstack(tf.shape(example["image"])[:2])
            shorter = tf.cast(tf.minimum(h, w), tf.int64)
            target = [height * tf.cast(s, tf.int64) // shorter for s in (h, w)]
            with tf.control_dependencies([check_pixels(f"resize({height})", (h, w), target)]):
                target = [tf.cast(s, tf.int32) for s in target]
        return resized(example, target, method, antialias)

    return apply


@op("image", "mask", "boxes", reads=("void",))
def central_crop(height, width=None):
    """Crops the central height x width pixels and pads smaller images with black.

    Half offsets round to even, as in torchvision.
    """
    size = pair(height, width)

    def apply(example):
        shape = tf.shape(example["image"])[:2]
        kept = tf.minimum(shape, size)
        # tf.round rounds halves to even.
        offset = tf.cast(tf.round(tf.cast(shape - kept, tf.float32) / 2), tf.int32)

        missing = size - kept
        before = missing // 2

        def cropped(pixels, fill=PADDING):
            window = tf.slice(pixels, [offset[0], offset[1], 0], [kept[0], kept[1], -1])
            return tf.ensure_shape(padded(window, before, missing - before, fill), (*size, pixels.shape[-1]))

        def in_window(boxes):
            return boxes_in_window(boxes, shape, offset - before, size)

        return moved(example, cropped(example["image"]), lambda mask: cropped(mask, fill_of(example)), in_window)

    return apply


@op("image", "mask", "boxes")
def crop_border(pixels):
    """Removes `pixels` from each side; an image too small for that is an error at read time."""
    if isinstance(pixels, bool) or not isinstance(pixels, int) or pixels < 0:
        raise ValueError(f"crop_border: expected a whole number of pixels, 0 or more, got {pixels!r}.")

    def apply(example):
        fixed = example["image"].shape[:2]
        if any(size is not None and size <= 2 * pixels for size in fixed):
            raise ValueError(f"crop_border({pixels}): nothing is left of an image of {fixed[0]}x{fixed[1]} pixels.")
        shape = tf.shape(example["image"])[:2]
        large = tf.debugging.Assert(
            tf.reduce_all(shape > 2 * pixels), [f"crop_border({pixels}): nothing is left of an image of", shape]
        )
        with tf.control_dependencies([large]):
            kept = shape - 2 * pixels

        def cropped(image):
            left = [size and size - 2 * pixels for size in fixed]
            return tf.ensure_shape(
                tf.slice(image, [pixels, pixels, 0], [*tf.unstack(kept), -1]), (*left, image.shape[-1])
            )

        def in_window(boxes):
            return boxes_in_window(boxes, shape, (pixels, pixels), kept)

        return moved(example, cropped(example["image"]), cropped, in_window)

    return apply


@op("image", "mask", "boxes", random=True, reads=("void",))
def random_crop(height, width=None, padding=0):
    """Pads each side with `padding` black pixels, then crops a random height x width window."""
    size, margin = pair(height, width), (padding, padding)

    def apply(example, seed):
        image = padded(example["image"], margin, margin)
        shape, window = tf.shape(image), tf.constant((*size, image.shape[-1]))
        fits = tf.debugging.Assert(
            tf.reduce_all(shape >= window), ["random_crop: expected an image of at least", window, "got", shape]
        )
        with tf.control_dependencies([fits]):
            limit = shape - window + 1
        # The draw of tf.image.stateless_random_crop; boxes need its offset.
        offset = tf.random.stateless_uniform((3,), seed, 0, tf.int32.max, tf.int32) % limit

        def cropped_mask(mask):
            return tf.ensure_shape(
                tf.slice(padded(mask, margin, margin, fill_of(example)), offset, (*size, 1)), (*size, 1)
            )

        def in_window(boxes):
            return boxes_in_window(boxes, shape[:2] - 2 * padding, offset[:2] - padding, size)

        return moved(example, tf.slice(image, offset, window), cropped_mask, in_window)

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


def _slice(pixels, begin, extent):
    """Returns the window of pixels (h, w, c) at `begin` (2,) with size `extent` (2,)."""
    window = tf.slice(pixels, tf.concat([begin, [0]], 0), tf.concat([extent, [-1]], 0))
    return tf.ensure_shape(window, (None, None, pixels.shape[-1]))


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


def moved_to_window(example, image, shape, begin, extent, size):
    """Returns the resized crop `image` with the example's mask and boxes moved to the same window.

    Args:
        example: dict. The example before the crop.
        image: (height, width, c). The resized crop.
        shape: (3,) int32. Shape of the image before the crop.
        begin, extent: (2,) int32 each. The window.
        size: (height, width). Size of `image`.
    """

    def to_size(mask):
        return tf.ensure_shape(resized_mask(_slice(mask, begin, extent), size), (*size, 1))

    return moved(example, image, to_size, lambda boxes: boxes_in_window(boxes, shape[:2], begin, extent))


@op("image", "mask", "boxes", random=True)
def random_resized_crop(height, width=None, scale=(0.05, 1.0), ratio=(0.75, 4 / 3), method="auto"):
    """Resizes a random window of area `scale` and aspect `ratio` to height x width (Inception crop).

    `method`: "auto" averages areas if both sides shrink and interpolates bilinearly otherwise; "bilinear", "bicubic"
    and the other methods of tf.image.resize antialias.
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
    """Flips left and right with probability 1/2."""

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


@op("image", "mask", "boxes", random=True, reads=("void",))
def random_shift(pixels):
    """Shifts by up to `pixels` in each direction and fills the border with black."""
    margin = (pixels, pixels)

    def apply(example, seed):
        offset = tf.random.stateless_uniform((2,), seed, 0, 2 * pixels + 1, tf.int32)

        def shifted(image, fill=PADDING):
            large = padded(image, margin, margin, fill)
            return tf.ensure_shape(tf.slice(large, [offset[0], offset[1], 0], tf.shape(image)), image.shape)

        def in_window(boxes):
            shape = tf.shape(example["image"])[:2]
            return boxes_in_window(boxes, shape, offset - pixels, shape)

        return moved(example, shifted(example["image"]), lambda mask: shifted(mask, fill_of(example)), in_window)

    return apply
