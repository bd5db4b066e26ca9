"""Affine transforms of one image. Each output pixel takes the nearest input pixel, or `fill` outside the image.

Pixels (h, w, c), uint8 or floats on the 0..255 scale (rounded first), become uint8 of the same shape, with PIL's
values. Parameters may be numbers or scalar tensors.
"""

import math

import tensorflow as tf

from keras_vit.data.ops.op_registry import as_uint8

GRAY = 128


def affine(image: tf.Tensor, matrix, fill=GRAY) -> tf.Tensor:
    """Maps output point (x, y) to input point (a x + b y + c, d x + e y + f), for `matrix` (a, b, c, d, e, f).

    Points are pixel centres: the first is (0.5, 0.5).
    """
    image = as_uint8(image)
    a, b, c, d, e, f = (tf.cast(value, tf.float32) for value in matrix)
    h, w = tf.shape(image)[0], tf.shape(image)[1]
    x = tf.range(tf.cast(w, tf.float32)) + 0.5
    y = (tf.range(tf.cast(h, tf.float32)) + 0.5)[:, None]
    # A frame of `fill` around the image supplies every point outside it.
    framed = tf.pad(image, [[1, 1], [1, 1], [0, 0]], constant_values=tf.cast(fill, tf.uint8))
    column = tf.clip_by_value(tf.cast(tf.floor(a * x + (b * y + c)), tf.int32), -1, w) + 1
    row = tf.clip_by_value(tf.cast(tf.floor(d * x + (e * y + f)), tf.int32), -1, h) + 1
    pixels = tf.reshape(framed, (-1, image.shape[-1]))
    return tf.ensure_shape(tf.gather(pixels, row * (w + 2) + column), image.shape)


def rotate(image: tf.Tensor, degrees, fill=GRAY) -> tf.Tensor:
    """Rotates counter-clockwise about the centre."""
    angle = tf.cast(degrees, tf.float32) * (math.pi / 180.0)
    sin, cos = tf.sin(angle), tf.cos(angle)
    centre_x, centre_y = tf.cast(tf.shape(image)[1], tf.float32) / 2, tf.cast(tf.shape(image)[0], tf.float32) / 2
    c = centre_x - cos * centre_x + sin * centre_y
    f = centre_y - sin * centre_x - cos * centre_y
    return affine(image, (cos, -sin, c, sin, cos, f), fill)


def shear_x(image: tf.Tensor, amount, fill=GRAY) -> tf.Tensor:
    """Moves each row left by `amount` times its distance from the top."""
    return affine(image, (1.0, amount, 0.0, 0.0, 1.0, 0.0), fill)


def shear_y(image: tf.Tensor, amount, fill=GRAY) -> tf.Tensor:
    """Moves each column up by `amount` times its distance from the left."""
    return affine(image, (1.0, 0.0, 0.0, amount, 1.0, 0.0), fill)


def _shift(image, pixels, axis, fill):
    image, size = as_uint8(image), tf.shape(image)
    length = size[axis]
    pixels = tf.clip_by_value(tf.cast(tf.round(pixels), tf.int32), -length, length)
    padding = [[0, 0], [0, 0], [0, 0]]
    padding[axis] = [tf.maximum(pixels, 0), tf.maximum(-pixels, 0)]
    padded = tf.pad(image, padding, constant_values=tf.cast(fill, tf.uint8))
    begin = [0, 0, 0]
    begin[axis] = tf.maximum(-pixels, 0)
    return tf.ensure_shape(tf.slice(padded, begin, size), image.shape)


def translate_x(image: tf.Tensor, pixels, fill=GRAY) -> tf.Tensor:
    """Moves the image right by whole pixels."""
    return _shift(image, pixels, 1, fill)


def translate_y(image: tf.Tensor, pixels, fill=GRAY) -> tf.Tensor:
    """Moves the image down by whole pixels."""
    return _shift(image, pixels, 0, fill)
