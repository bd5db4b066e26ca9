"""Ops for images with boxes: crops that keep objects, zooming out, and dropping small boxes.

A dropped box becomes four zeros; its row stays.
"""

import math

import tensorflow as tf

from keras_vit.data.ops.geometry import crop
from keras_vit.data.ops.headers import LARGE
from keras_vit.data.ops.op_registry import AREAS, INTERVAL, PROBABILITY, Check, op

_SHARES = Check(
    "a share from 0 to 1, or several",
    lambda value: (
        all(0 <= share <= 1 for share in (value if isinstance(value, list | tuple) else (value,))) and value != ()
    ),
)


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


_BOX_CROP = {"least": _SHARES, "keep": PROBABILITY, "scale": AREAS, "ratio": INTERVAL, "probability": PROBABILITY}


@op("image", "mask", "boxes", random=True, checks=_BOX_CROP)
def box_crop(least=(0.1, 0.3, 0.5, 0.7, 0.9), keep=0.25, scale=(0.1, 1.0), ratio=(0.5, 2.0), probability=0.85):
    """With `probability`, crops a random window that covers at least a share of some box (SSD, arXiv 1512.02325).

    The share is `least`, or one of several with equal probability. Drops a box if less than `keep` of its area remains.
    `scale` bounds the window's share of the image's area, `ratio` its aspect, width to height.
    """
    leasts = tuple(least) if isinstance(least, list | tuple) else (least,)

    def apply(example, seed):
        shape, boxes = tf.shape(example["image"]), example.get("boxes", tf.zeros((0, 4)))
        samples = tf.random.stateless_uniform((2,), seed)
        share = tf.constant(leasts, tf.float32)[tf.cast(samples[1] * len(leasts), tf.int32)]
        applies = samples[0] < probability
        begin, extent = covering_window(shape, boxes, seed + 1, share, scale, ratio)
        begin, extent = tf.where(applies, begin, 0), tf.where(applies, extent, shape[:2])

        result = crop(example, begin, extent, inside=True)
        if "boxes" in example:
            visible = box_areas(result["boxes"]) * tf.cast(tf.reduce_prod(extent), tf.float32)
            whole = box_areas(boxes) * tf.cast(tf.reduce_prod(shape[:2]), tf.float32)
            result["boxes"] = tf.where(applies, only(result["boxes"], visible >= keep * whole), boxes)
        return result

    return apply


_EXPAND = {
    "low high": Check("1 <= low <= high", lambda bounds: 1 <= bounds[0] <= bounds[1]),
    "probability": PROBABILITY,
}


@op("image", "mask", "boxes", random=True, reads=("void",), checks=_EXPAND)
def expand(low=1.0, high=4.0, probability=0.5):
    """With `probability`, places the image at random on a larger black canvas (SSD's zoom out).

    Both sides grow by a factor uniform between `low` and `high`, reduced if the canvas would exceed LARGE pixels.
    """

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
        return crop(example, -before, canvas)

    return apply


_SIDE = Check("a side of 0 pixels or more", lambda value: value >= 0)


@op("boxes", reads=("image",), checks={"side": _SIDE, "share": PROBABILITY})
def drop_small_boxes(side=1.0, share=0.0):
    """Drops boxes with a side below `side` pixels or an area below `share` of the image."""

    def apply(example):
        if "boxes" not in example:
            return {}
        boxes = example["boxes"]
        size = tf.cast(tf.shape(example["image"])[:2], tf.float32)
        sides = (boxes[:, 2:] - boxes[:, :2]) * size
        return {"boxes": only(boxes, (tf.reduce_min(sides, 1) >= side) & (box_areas(boxes) >= share))}

    return apply
