"""Reads headers of encoded images and checks them before decoding, in TensorFlow ops."""

from typing import Any

import tensorflow as tf

MAX_PIXELS = 2**28  # for JPEG; half for other formats, which always decode at full size
LARGE = 2**25  # a JPEG with more pixels is decoded at a half or a quarter of its sides


def checked(encoded: tf.Tensor, is_fine: tf.Tensor, *message: Any) -> tf.Tensor:
    """Returns `encoded` after asserting `is_fine`; `message` describes the error."""
    with tf.control_dependencies([tf.debugging.Assert(is_fine, list(message))]):
        return tf.identity(encoded)


def within(encoded: tf.Tensor, pixels: tf.Tensor, limit: int) -> tf.Tensor:
    """Returns `encoded` after a check of its pixel count."""
    return checked(encoded, pixels <= limit, f"The image is too large: expected at most {limit} pixels, got", pixels)


def head(encoded: tf.Tensor, at: int, count: int) -> tf.Tensor:
    """Returns `count` bytes from byte `at`, within the first 32, with zeros after the end."""
    return tf.strings.substr(tf.strings.substr(encoded, 0, 32) + b"\0" * 32, at, count)


def product(encoded: tf.Tensor, at: int, kind: tf.DType, little: bool) -> tf.Tensor:
    """Returns the int64 product of the two integers of dtype `kind` at byte `at`."""
    numbers = tf.io.decode_raw(head(encoded, at, 2 * kind.size), kind, little_endian=little)
    return tf.reduce_prod(tf.abs(tf.cast(numbers, tf.int64)))
