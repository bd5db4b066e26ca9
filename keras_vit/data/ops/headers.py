"""What the first bytes of an encoded image say, and checks before it is decoded. TensorFlow ops."""

from typing import Any

import tensorflow as tf

MAX_PIXELS = 2**28  # of a JPEG; half for other formats, which are always decoded whole
LARGE = 2**25  # a JPEG with more pixels is decoded at a half or a quarter of its sides


def checked(encoded: tf.Tensor, is_fine: tf.Tensor, *message: Any) -> tf.Tensor:
    """`encoded`, or an error with the message."""
    with tf.control_dependencies([tf.debugging.Assert(is_fine, list(message))]):
        return tf.identity(encoded)


def within(encoded: tf.Tensor, pixels: tf.Tensor, limit: int) -> tf.Tensor:
    """`encoded`, after a check of the pixel count in its header."""
    return checked(encoded, pixels <= limit, f"The image has too many pixels: {limit} at most. It has", pixels)


def head(encoded: tf.Tensor, at: int, count: int) -> tf.Tensor:
    """`count` bytes from byte `at`, within the first 32; zeros after the end."""
    return tf.strings.substr(tf.strings.substr(encoded, 0, 32) + b"\0" * 32, at, count)


def product(encoded: tf.Tensor, at: int, kind: tf.DType, little: bool) -> tf.Tensor:
    """The int64 product of the two integers of dtype `kind` at byte `at`."""
    numbers = tf.io.decode_raw(head(encoded, at, 2 * kind.size), kind, little_endian=little)
    return tf.reduce_prod(tf.abs(tf.cast(numbers, tf.int64)))
