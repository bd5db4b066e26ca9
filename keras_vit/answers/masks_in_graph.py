"""Masks of encoded images inside a TensorFlow graph, each at its image's own size, as `model.segment`."""

from collections.abc import Callable

import keras
import tensorflow as tf

from keras_vit.data import parse
from keras_vit.data.annotations.image_size import size_in_file
from keras_vit.fit.checks.pixels import InputRange
from keras_vit.prediction.decoding_in_graph import OK, decoder
from keras_vit.segmentation.segment import whole_text


def _prepared(model) -> Callable:
    """An encoded image -> its pixels of the model's size, its (height, width) as decoded, and in the file, (4,)."""
    text = whole_text(model)
    first, _, rest = text.partition("|")
    decode, resize = parse(first).graph("image"), parse(rest)

    def pixels_and_sizes(encoded):
        image = decode(encoded)
        return resize.image(image), tf.concat([tf.shape(image)[:2], size_in_file(encoded, image)], 0)

    return pixels_and_sizes


def masks_of_encoded(model: keras.Model) -> Callable:
    """Returns encoded images (b,) strings -> {"mask_bytes": PNG files (b,) strings, "status": (b,) strings}.

    A PNG is grey, of 8 bits, or 16 with 255 classes or more. An image that is not decoded has the mask "".
    """
    pixel_range = InputRange.of(model)
    shape, dtype = (*model.image_size, model.channels), tf.uint8 if model.classes < 255 else tf.uint16
    decode = decoder(_prepared(model), (shape, (4,)), (tf.uint8, tf.int32))

    def mask(logits_and_sizes):
        logits, sizes = logits_and_sizes
        ids = tf.cast(
            tf.argmax(tf.image.resize(logits, sizes[:2]), axis=-1)[..., None], dtype
        )  # (h, w, k) -> (h', w', 1)
        # All logits of a JPEG decoded at a fraction of its sides would take gigabytes at its file's size.
        same = tf.reduce_all(sizes[:2] == sizes[2:])
        return tf.io.encode_png(tf.cond(same, lambda: ids, lambda: tf.image.resize(ids, sizes[2:], method="nearest")))

    def masks(encoded_images):
        (images, sizes), status = decode(encoded_images)
        logits = tf.cast(model(tf.cast(pixel_range.of_bytes(images), tf.float32), training=False), tf.float32)
        drawn = tf.map_fn(mask, (logits, tf.maximum(sizes, 1)), fn_output_signature=tf.string)
        return {"mask_bytes": tf.where(status == OK, drawn, tf.constant("")), "status": status}

    return masks
