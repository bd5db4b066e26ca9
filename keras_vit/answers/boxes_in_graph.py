"""Objects in encoded images inside a TensorFlow graph, as `model.detect` finds them, with fixed shapes.

Letters: b images, n candidates, d detections, h' w' the grid of masks.
"""

from collections.abc import Callable

import keras
import tensorflow as tf

from keras_vit.data import parse
from keras_vit.data.annotations.image_size import size_in_file
from keras_vit.data.ops.frame import to_original, with_frame
from keras_vit.detection.detect import class_names, letterboxes, shown_text
from keras_vit.fit.checks.pixels import InputRange
from keras_vit.prediction.decoding_in_graph import OK, decoder


def _prepared(model):
    """An encoded image -> its pixels of the model's size, its frame (4,), as in data.ops.frame, and its size (2,)."""
    text = shown_text(model)
    first, _, rest = text.partition("|")
    decode, ops = parse(first).graph("image"), parse(rest)

    def pixels_frame_and_size(encoded):
        image = decode(encoded)
        size = size_in_file(encoded, image)
        if letterboxes(text):
            return *with_frame(ops, image), size
        return ops.image(image), tf.constant([0.0, 0.0, 1.0, 1.0]), size

    return pixels_frame_and_size


def _over_images(masks, frames, size):
    """Masks (b, d, h', w') over the model's input, of which images show the part that `frames` (b, 4) say -> (b, d,
    height, width) over the images, half-pixel bilinear.
    """
    extent = frames[:, 2:] - frames[:, :2]
    extent = tf.where(extent == 0, 1.0, extent)  # of an image that is not decoded
    first, last = -frames[:, :2] / extent, (1 - frames[:, :2]) / extent  # the image's corners, in the input
    sides, inset = tf.cast(masks.shape[2:], tf.float32), 0.5 / tf.cast(size, tf.float32)
    # crop_and_resize goes from the centre of the first pixel to that of the last, and knows nothing beyond the border.
    corners = [(first + (last - first) * share) * sides + 0.5 for share in (inset, 1 - inset)]
    places = tf.concat(corners, 1) / tf.tile(sides + 1, [2])
    layers = tf.pad(tf.transpose(masks, (0, 2, 3, 1)), [[0, 0], [1, 1], [1, 1], [0, 0]], "SYMMETRIC")
    moved = tf.image.crop_and_resize(layers, places, tf.range(tf.shape(masks)[0]), size)  # (b, height, width, d)
    return tf.transpose(moved, (0, 3, 1, 2))


def _png_files(masks, labels, frame, size):
    """PNG files (d,) of masks, logits (d, h', w'), at an image's size, 255 inside; "" where the label is -1."""

    def png(mask_and_label):
        mask, label = mask_and_label

        def drawn():
            logits = _over_images(mask[None, None], frame[None], size)[0, 0]
            return tf.io.encode_png(tf.cast(logits > 0, tf.uint8)[..., None] * 255)

        return tf.cond(label < 0, lambda: tf.constant(""), drawn)

    return tf.map_fn(png, (masks, labels), fn_output_signature=tf.TensorSpec((), tf.string))


def objects_of_encoded(model: keras.Model, detections: Callable, as_files: bool = False) -> Callable:
    """Returns encoded images (b,) strings -> {"boxes", "scores", "labels", "classes" (b, d) names, "status" (b,)}, and
    "masks" (b, d, h', w') or "mask_bytes" (b, d) strings if the model has masks.

    Boxes are fractions of each image, and masks probabilities over the whole image. Empty places, and an image that is
    not decoded, have the class "".

    Args:
        model: a DetectionModel or InstanceModel.
        detections: the model's pixels -> {"boxes", "scores", "labels"}, and perhaps "masks".
        as_files: whether `detections` gives masks as logits, to be PNG files of each image's own size.
    """
    shape, letterboxed = (*model.image_size, model.channels), letterboxes(shown_text(model))
    decode = decoder(_prepared(model), (shape, (4,), (2,)), (tf.uint8, tf.float32, tf.int32))
    names, pixels = tf.constant([*class_names(model), ""]), InputRange.of(model)

    def found(encoded_images):
        (images, frames, sizes), status = decode(encoded_images)
        rows = detections(tf.cast(pixels.of_bytes(images), tf.float32))
        boxes = tf.clip_by_value(to_original(rows["boxes"], frames[:, None]), 0.0, 1.0)
        visible = tf.reduce_all(boxes[..., 2:] > boxes[..., :2], -1)  # others lie in the padding
        there = (rows["labels"] >= 0) & visible & (status == OK)[:, None]  # (b, d)
        labels = tf.where(there, rows["labels"], -1)
        answer = {
            "boxes": tf.where(there[..., None], boxes, 0.0),
            "scores": tf.where(there, rows["scores"], 0.0),
            "labels": labels,
            "classes": tf.gather(names, tf.where(there, labels, model.classes)),
        }
        if "masks" in rows:
            over = as_files or not letterboxed
            masks = rows["masks"] if over else _over_images(rows["masks"], frames, rows["masks"].shape[2:])
            answer["masks"] = tf.where(there[..., None, None], masks, 0.0)
        first = tf.argsort(tf.cast(~there, tf.int32), stable=True)  # empty places are last
        answer = {name: tf.gather(values, first, batch_dims=1) for name, values in answer.items()}
        if as_files:
            parts = (answer.pop("masks"), answer["labels"], frames, tf.maximum(sizes, 1))
            spec = tf.TensorSpec((labels.shape[1],), tf.string)
            answer["mask_bytes"] = tf.map_fn(lambda each: _png_files(*each), parts, fn_output_signature=spec)
        return {**answer, "status": status}

    return found
