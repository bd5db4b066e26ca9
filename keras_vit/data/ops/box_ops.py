"""Ops for images with boxes: crops that keep objects, zooming out, and dropping small boxes.

A dropped box becomes four zeros; its row stays.
"""

import math

import tensorflow as tf

from keras_vit.data.ops.geometry import PADDING, boxes_in_window, fill_of, moved, padded
from keras_vit.data.ops.headers import LARGE
from keras_vit.data.ops.op_registry import op


def _check_probability(name, probability):
    if not 0 <= probability <= 1:
        raise ValueError(f"{name}: expected a probability from 0 to 1, got {probability!r}.")


def box_areas(boxes: tf.Tensor) -> tf.Tensor:
    """Returns the areas (m,) of boxes (m, 4)."""
    return tf.reduce_prod(tf.maximum(boxes[:, 2:] - boxes[:, :2], 0.0), 1)


def only(boxes: tf.Tensor, kept: tf.Tensor) -> tf.Tensor:
    """Returns boxes (m, 4) with zeros where `kept`, (m,) booleans, is false."""
    return tf.where(kept[:, None], boxes, 0.0)


def covering_window(shape: tf.Tensor, boxes: tf.Tensor, seed, least, scale, ratio) -> tuple[tf.Tensor, tf.Tensor]:
    """Samples a window that covers at least the share `least` of some box; returns (top, left) and (height, width).

    Both are (2,) int32. After 100 unsuitable windows it returns the whole image. If no box has an area, the image is
    the box.
    """
    boxes = tf.clip_by_value(boxes, 0.0, 1.0)
    begin, extent, _ = tf.image.stateless_sample_distorted_bounding_box(
        shape,
        tf.boolean_mask(boxes, box_areas(boxes) > 0)[None],
        seed,
        min_object_covered=least,
        aspect_ratio_range=ratio,
        area_range=scale,
        max_attempts=100,
        use_image_if_no_bounding_boxes=True,
    )
    return begin[:2], extent[:2]


@op("image", "mask", "boxes", random=True)
def box_crop(least=(0.1, 0.3, 0.5, 0.7, 0.9), keep=0.25, scale=(0.1, 1.0), ratio=(0.5, 2.0), probability=0.85):
    """With `probability`, crops a random window that covers at least a share of some box (SSD, arXiv 1512.02325).

    The share is `least`, or one of several with equal probability. Drops a box if less than `keep` of its area remains.
    `scale` bounds the window's share of the image's area, `ratio` its aspect, width to height.
    """
    leasts = tuple(least) if isinstance(least, list | tuple) else (least,)
    if not leasts or not all(0 <= share <= 1 for share in (*leasts, keep)):
        raise ValueError(f"box_crop: expected shares from 0 to 1, got least={least} and keep={keep}.")
    if not (0 < scale[0] <= scale[1] <= 1 and 0 < ratio[0] <= ratio[1]):
        raise ValueError(
            f"box_crop: expected 0 < low <= high and a scale of at most 1, got scale={scale} and ratio={ratio}."
        )
    _check_probability("box_crop", probability)

    def apply(example, seed):
        shape, boxes = tf.shape(example["image"]), example.get("boxes", tf.zeros((0, 4)))
        samples = tf.random.stateless_uniform((2,), seed)
        share = tf.constant(leasts, tf.float32)[tf.cast(samples[1] * len(leasts), tf.int32)]
        applies = samples[0] < probability
        begin, extent = covering_window(shape, boxes, seed + 1, share, scale, ratio)
        begin, extent = tf.where(applies, begin, 0), tf.where(applies, extent, shape[:2])

        def window(pixels):
            part = tf.slice(pixels, tf.concat([begin, [0]], 0), tf.concat([extent, [-1]], 0))
            return tf.ensure_shape(part, (None, None, pixels.shape[-1]))

        def in_window(boxes):
            inside = boxes_in_window(boxes, shape[:2], begin, extent)
            visible = box_areas(inside) * tf.cast(tf.reduce_prod(extent), tf.float32)
            whole = box_areas(boxes) * tf.cast(tf.reduce_prod(shape[:2]), tf.float32)
            return tf.where(applies, only(inside, visible >= keep * whole), boxes)

        return moved(example, window(example["image"]), window, in_window)

    return apply


@op("image", "mask", "boxes", random=True, reads=("void",))
def expand(low=1.0, high=4.0, probability=0.5):
    """With `probability`, places the image at random on a larger black canvas (SSD's zoom out).

    Both sides grow by a factor uniform between `low` and `high`, reduced if the canvas would exceed LARGE pixels.
    """
    if not 1 <= low <= high:
        raise ValueError(f"expand: expected 1 <= low <= high, got {low} and {high}.")
    _check_probability("expand", probability)

    def apply(example, seed):
        shape = tf.shape(example["image"])[:2]
        sides = tf.cast(shape, tf.float32)
        samples = tf.random.stateless_uniform((4,), seed)
        largest = math.sqrt(LARGE) / tf.sqrt(tf.reduce_prod(sides))
        factor = tf.minimum(low + (high - low) * samples[1], largest)
        factor = tf.where(samples[0] < probability, tf.maximum(factor, 1.0), 1.0)
        canvas = tf.cast(tf.round(sides * factor), tf.int32)
        margin = canvas - shape
        before = tf.minimum(tf.cast(samples[2:] * tf.cast(margin + 1, tf.float32), tf.int32), margin)
        after = margin - before

        def placed(pixels, fill=PADDING):
            return tf.ensure_shape(padded(pixels, before, after, fill), (None, None, pixels.shape[-1]))

        def in_window(boxes):
            return boxes_in_window(boxes, shape, -before, canvas)

        return moved(example, placed(example["image"]), lambda mask: placed(mask, fill_of(example)), in_window)

    return apply


@op("boxes", reads=("image",))
def drop_small_boxes(side=1.0, share=0.0):
    """Drops boxes with a side below `side` pixels or an area below `share` of the image."""
    if not (side >= 0 and 0 <= share <= 1):
        raise ValueError(
            f"drop_small_boxes: expected a side of 0 or more and a share from 0 to 1, got {side}, {share}."
        )

    def apply(example):
        if "boxes" not in example:
            return {}
        boxes = example["boxes"]
        size = tf.cast(tf.shape(example["image"])[:2], tf.float32)
        sides = (boxes[:, 2:] - boxes[:, :2]) * size
        return {"boxes": only(boxes, (tf.reduce_min(sides, 1) >= side) & (box_areas(boxes) >= share))}

    return apply
