"""Ops that fit an image into height x width pixels and keep its aspect ratio."""

import tensorflow as tf

from keras_vit.data.ops.geometry import as_size, check_pixels, crop, resize_example
from keras_vit.data.ops.op_registry import INTERVAL, one_of, op


def fitted(shape: tf.Tensor, size: tuple[int, int], factor=1.0) -> tf.Tensor:
    """Returns the largest (height, width), (2,) int32, with the aspect ratio of `shape` within `factor` * `size`."""
    sides = tf.cast(shape, tf.float32)
    scale = tf.reduce_min(tf.cast(size, tf.float32) * factor / sides)
    return tf.maximum(tf.cast(tf.round(sides * scale), tf.int32), 1)


@op("image", "mask", "boxes", reads=("void",), checks={"place": one_of(("centre", "corner"))})
def letterbox(height, width=None, place="centre", method="bilinear", antialias=True):
    """letterbox(640) resizes to fit into 640 x 640 with the aspect ratio kept, then pads with black.

    `place`: "centre" pads on both sides, "corner" below and on the right. frame.py maps boxes in the result back to the
    original.
    """
    size = as_size(height, width)

    def apply(example):
        shape = fitted(tf.shape(example["image"])[:2], size)
        before = (size - shape) // 2 if place == "centre" else tf.zeros_like(shape)
        return crop({**example, **resize_example(example, shape, method, antialias)}, -before, size, size)

    return apply


@op("image", "mask", "boxes", random=True, checks={"low high": INTERVAL})
def scale_jitter(height, width=None, low=0.1, high=2.0, method="bilinear", antialias=True):
    """scale_jitter(512) resizes to fit into a random factor times 512 x 512, with the aspect ratio kept.

    The factor is uniform between `low` and `high`. Followed by scene_crop(512) it is large-scale jitter
    (arXiv 2012.07177, Sec. 3; ViTDet). A result above LARGE pixels is an error at read time.
    """
    size = as_size(height, width)

    def apply(example, seed):
        shape = tf.shape(example["image"])[:2]
        target = fitted(shape, size, tf.random.stateless_uniform((), seed, low, high))
        with tf.control_dependencies([check_pixels(f"scale_jitter({height})", shape, target)]):
            return resize_example(example, tf.identity(target), method, antialias)

    return apply
