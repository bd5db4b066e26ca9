"""Objects in encoded images inside a TensorFlow graph, as `model.detect` finds them, with fixed shapes.

Letters: b images, n candidates, d detections.
"""

from collections.abc import Callable

import keras
import tensorflow as tf

from keras_vit.data import parse
from keras_vit.data.ops.frame import to_original, with_frame
from keras_vit.detection.detect import class_names, letterboxes, shown_text
from keras_vit.fit.checks.pixels import InputRange
from keras_vit.prediction.decoding_in_graph import OK, decoder


def _prepared(model):
    """An encoded image -> its pixels of the model's size, and its frame (4,), as in data.ops.frame."""
    text = shown_text(model)
    ops = parse(text)
    if letterboxes(text):
        return lambda encoded: with_frame(ops, encoded)
    image = ops.graph("image")
    return lambda encoded: (image(encoded), tf.constant([0.0, 0.0, 1.0, 1.0]))


def objects_of_encoded(model: keras.Model, detections: Callable) -> Callable:
    """Returns encoded images (b,) strings -> {"boxes", "scores", "labels", "classes" (b, d) names, "status" (b,)}.

    Boxes are fractions of each image. Empty places, and an image that is not decoded, have the class "".

    Args:
        model: a DetectionModel.
        detections: the model's pixels -> {"boxes", "scores", "labels"}.
    """
    shape = (*model.image_size, model.channels)
    decode = decoder(_prepared(model), (shape, (4,)), (tf.uint8, tf.float32))
    names, pixels = tf.constant([*class_names(model), ""]), InputRange.of(model)

    def found(encoded_images):
        (images, frames), status = decode(encoded_images)
        rows = detections(tf.cast(pixels.of_bytes(images), tf.float32))
        boxes = tf.clip_by_value(to_original(rows["boxes"], frames[:, None]), 0.0, 1.0)
        visible = tf.reduce_all(boxes[..., 2:] > boxes[..., :2], -1)  # others lie in the padding
        there = (rows["labels"] >= 0) & visible & (status == OK)[:, None]  # (b, d)
        labels = tf.where(there, rows["labels"], -1)
        rows = {
            "boxes": tf.where(there[..., None], boxes, 0.0),
            "scores": tf.where(there, rows["scores"], 0.0),
            "labels": labels,
            "classes": tf.gather(names, tf.where(there, labels, model.classes)),
        }
        first = tf.argsort(tf.cast(~there, tf.int32), stable=True)  # empty places are last
        return {**{name: tf.gather(values, first, batch_dims=1) for name, values in rows.items()}, "status": status}

    return found
