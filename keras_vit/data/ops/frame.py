"""Maps boxes in a preprocessed image back to the original.

A frame is the top, left, bottom and right of the preprocessed image as fractions of the original's height and width:
(0, 0, 1, 1) after resize(512, 512), below 0 and above 1 where an op padded. It is computed by moving points through the
ops like boxes, so it is correct for every op that moves boxes.
"""

import dataclasses
import functools

import numpy as np
import tensorflow as tf

from keras_vit.data.ops.op_registry import Preprocess, parse

_POINTS = 1025  # per axis; ops must leave two of them inside the image


def _ends(moved):
    """Returns where positions 0 and 1 of the preprocessed image came from, (2,), given one axis's moved points (n,)."""
    steps = moved[1:] != moved[:-1]
    inside = tf.cast(steps[1:] & steps[:-1], tf.int32)  # (n - 2,); points that an op clipped equal a neighbour
    shown = tf.debugging.Assert(
        tf.reduce_sum(inside) > 1, ["The preprocessing keeps too little of the image to locate that part."]
    )
    with tf.control_dependencies([shown]):
        first, last = 1 + tf.argmax(inside), _POINTS - 2 - tf.argmax(inside[::-1])
    step = (moved[last] - moved[first]) / tf.cast(last - first, tf.float32)  # from one point to the next
    places = tf.cast(first, tf.float32) + (tf.constant([0.0, 1.0]) - moved[first]) / step
    return places / (_POINTS - 1)


def with_frame(ops: Preprocess, image) -> tuple[tf.Tensor, tf.Tensor]:
    """Preprocesses a bare image, encoded bytes or pixels (h, w, c), like `ops.image`; also returns its frame (4,).

    Raises:
        ValueError: if an op is random.
    """
    moving = dataclasses.replace(ops, steps=tuple(step for step in ops.steps if "image" in step[0].keys))
    points = tf.tile(tf.linspace(0.0, 1.0, _POINTS)[:, None], [1, 4])
    result = moving({"image": image, "boxes": points})
    top_bottom, left_right = _ends(result["boxes"][:, 0]), _ends(result["boxes"][:, 1])
    return result["image"], tf.reshape(tf.stack([top_bottom, left_right], 1), (4,))


@functools.lru_cache(maxsize=8)
def _frame_function(text):
    ops = parse(text)

    def of_size(size):
        return with_frame(ops, tf.zeros((size[0], size[1], 3), tf.uint8))[1]

    return tf.function(of_size, autograph=False).get_concrete_function(tf.TensorSpec((2,), tf.int32))


@functools.lru_cache(maxsize=2**14)
def frame(text: str, height: int, width: int) -> tuple[float, float, float, float]:
    """Returns the frame (top, left, bottom, right) of an image of this size after the preprocessing `text`.

    Raises:
        ValueError: if an op is random.
        InvalidArgumentError: if the result shows less than a 500th of the image's height or width.
    """
    return tuple(_frame_function(text)(tf.constant([height, width])).numpy().tolist())


def to_original(boxes, frame):
    """Converts boxes (..., 4) from fractions of a preprocessed image to fractions of the original, without clipping.

    Args:
        boxes: float32 NumPy array or TensorFlow tensor, like the result.
        frame: (4,), or a shape that broadcasts with the boxes. From `frame` or `with_frame`.
    """
    in_graph = tf.is_tensor(boxes)
    frame = tf.convert_to_tensor(frame) if in_graph else np.asarray(frame, boxes.dtype)
    start, extent = frame[..., :2], frame[..., 2:] - frame[..., :2]
    twice = (lambda x: tf.concat([x, x], -1)) if in_graph else (lambda x: np.concatenate([x, x], -1))
    return boxes * twice(extent) + twice(start)
