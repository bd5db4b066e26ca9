"""Reads the upright size of an encoded image, mostly from its header, and compares it with the annotations."""

import tensorflow as tf

from keras_vit.data.ops import orientation
from keras_vit.data.ops.decode import decode_other, header
from keras_vit.data.ops.headers import MAX_PIXELS


def _jpeg_size(encoded):
    shape, turned, _ = header(encoded)
    return tf.ensure_shape(shape[:2], (2,)), turned


def _png_size(encoded):
    start = tf.strings.substr(encoded + b"\0" * 24, 16, 8)
    size = tf.io.decode_raw(start, tf.int32, little_endian=False)[::-1]  # width, height -> height, width
    return tf.ensure_shape(size, (2,)), orientation.of_png(encoded)


def _other_size(encoded):
    return tf.ensure_shape(tf.shape(decode_other(encoded, 3))[:2], (2,)), tf.constant(1)


def size_and_orientation(encoded: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns an image's upright (height, width), (2,) int32, and EXIF orientation, () int32.

    Args:
        encoded: scalar string tensor. An image that `decode` supports.

    Raises:
        InvalidArgumentError: at run time, for an unreadable header or too many pixels.
    """
    start = tf.strings.substr(encoded, 0, 2)
    kinds = {b"\xff\xd8": _jpeg_size, b"\x89P": _png_size}
    cases = [(start == magic, lambda kind=kind: kind(encoded)) for magic, kind in kinds.items()]
    size, turned = tf.case(cases, default=lambda: _other_size(encoded))
    size = tf.where(turned >= 5, size[::-1], size)
    pixels = tf.reduce_prod(tf.cast(size, tf.int64))
    fits = (pixels <= MAX_PIXELS) & tf.reduce_all(size > 0)
    with tf.control_dependencies([tf.debugging.Assert(fits, ["The image has an invalid size:", size])]):
        return tf.ensure_shape(tf.identity(size), (2,)), tf.ensure_shape(turned, ())


def annotated_size(encoded: tf.Tensor, fault: tf.Tensor, stated: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns an image's upright size and orientation, and whether it was annotated as stored, not upright.

    Args:
        encoded: scalar string tensor. The image.
        fault: scalar string tensor. Why its annotations are unusable; "" if they are usable.
        stated: (2,) int32. Height and width in its annotations; 0 if not stated.

    Raises:
        InvalidArgumentError: at run time, for an image with a fault or a size unlike the stated one.
    """
    size, turned = size_and_orientation(encoded)
    fits = tf.reduce_all(stated == size) | (stated[0] == 0)
    as_stored = ~fits & (turned >= 5) & tf.reduce_all(stated == size[::-1])
    message = ["The annotations are for another size (height, width):", stated, "the image has", size]
    message.append("Annotate this image, or export both at the same size.")
    checks = [
        tf.debugging.Assert(fault == "", ["Its annotations cannot be used:", fault]),
        tf.debugging.Assert(fits | as_stored, message),
    ]
    with tf.control_dependencies(checks):
        return tf.identity(size), turned, as_stored


def size_in_file(encoded: tf.Tensor, pixels: tf.Tensor) -> tf.Tensor:
    """Returns the size of an image, encoded and as decoded `pixels`, which a large JPEG has fewer of than its file."""
    is_jpeg = tf.strings.substr(encoded, 0, 2) == b"\xff\xd8"
    return tf.cond(is_jpeg, lambda: upright_size(encoded), lambda: tf.shape(pixels)[:2])


def upright_size(encoded: tf.Tensor) -> tf.Tensor:
    """Returns only the size."""
    return size_and_orientation(encoded)[0]
