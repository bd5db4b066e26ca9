"""Decode encoded images inside a TensorFlow graph, one by one, so that a bad one fails alone and says why."""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_vit.data.ops.decode import ODD
from keras_vit.data.ops.headers import MAX_PIXELS

OK = "ok"  # status of a decoded image
READ = "JPEG, PNG, BMP, GIF or WebP"
_LARGEST = f"{MAX_PIXELS:,} pixels (a JPEG; others half of that)"
# (offset, bytes there, format): formats that can be read, then others.
_READ = ((0, b"\xff\xd8", "JPEG"), (0, b"\x89PNG", "PNG"), (0, b"BM", "BMP"), (0, b"GIF8", "GIF"), (8, b"WEBP", "WebP"))
_UNREAD = (
    (8, b"avif", "AVIF"),
    (8, b"hei", "HEIC"),
    (8, b"mif1", "HEIC"),
    (0, b"II*\0", "TIFF"),
    (0, b"MM\0*", "TIFF"),
    (0, b"%PDF", "PDF"),
    (0, b"<svg", "SVG"),
    (0, b"<?xml", "SVG"),
)


def _begins(encoded, at, magic):
    """Whether `encoded`, scalar string bytes, has `magic` at byte `at`."""
    head = tf.strings.substr(encoded, 0, 16) + b"\1" * 16
    return tf.strings.substr(head, at, len(magic)) == magic


def why_not(encoded: tf.Tensor) -> tf.Tensor:
    """Why `encoded`, scalar string bytes, could not be decoded, in words."""
    cases: list = [(tf.strings.length(encoded) == 0, lambda: tf.constant("It is empty: there are no bytes."))]
    for magic, (is_odd, name) in ODD.items():
        text = f"{name} is not read here: save it as a PNG."
        odd = tf.cond(_begins(encoded, 0, magic), lambda is_odd=is_odd: is_odd(encoded), lambda: tf.constant(False))
        cases.append((odd, functools.partial(tf.constant, text)))
    for at, magic, kind in _READ:
        text = f"The {kind} cannot be decoded: it is damaged, cut short, or has more than {_LARGEST}."
        cases.append((_begins(encoded, at, magic), functools.partial(tf.constant, text)))
    for at, magic, kind in _UNREAD:
        text = f"{kind} is not read here. Use {READ}."
        cases.append((_begins(encoded, at, magic), functools.partial(tf.constant, text)))
    return tf.case(cases, default=lambda: tf.constant(f"This is not an image: expected the bytes of a {READ}."))


def decoder(image: Callable, shape: tuple, dtype: Any = tf.uint8) -> Callable:
    """Returns encoded images (b,) strings -> (what `image` gives of each, by default pixels (b, h, w, c) uint8, status
    (b,) strings).

    The status is OK, or why the image was not decoded; its pixels are then zeros.

    Args:
        image: encoded image, a scalar string -> its pixels, or a tuple of tensors; fails for anything else.
        shape: (h, w, c) of these pixels, or a tuple of shapes.
        dtype: of the pixels, or a tuple of them.
    """
    several = isinstance(dtype, tuple)
    specs = tuple(map(tf.TensorSpec, shape, dtype)) if several else tf.TensorSpec(shape, dtype)

    def fine(encoded):
        return tf.nest.map_structure(
            lambda x, spec: tf.ensure_shape(x, spec.shape), image(encoded), specs
        ), tf.constant(OK)

    def failed(encoded):
        return tf.nest.map_structure(lambda spec: tf.zeros(spec.shape, spec.dtype), specs), why_not(encoded)

    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False  # they would cost more than a small image

    def one(encoded):
        # An op's error ends the whole graph, but inside a dataset it can be skipped.
        source = tf.data.Dataset.from_tensors(encoded)
        either = source.map(fine).ignore_errors().concatenate(source.map(failed))
        return either.take(1).with_options(options).get_single_element()

    spec = specs, tf.TensorSpec((), tf.string)
    return lambda encoded_images: tf.map_fn(one, encoded_images, fn_output_signature=spec)


def with_status(decode: Callable, function: Callable) -> Callable:
    """`function` of images (b, h, w, c) as one of encoded images (b,) strings, which adds "status" (b,) strings.

    Rows of images that were not decoded are zeros and empty strings.

    Args:
        decode: what `decoder` returns.
        function: images -> {name: tensor (b, ...)}.
    """

    def emptied(value, status):
        decoded = tf.reshape(status == OK, (-1, *(1 for _ in value.shape[1:])))
        return tf.where(decoded, value, tf.zeros((), value.dtype) if value.dtype != tf.string else tf.constant(""))

    def encoded(encoded_images):
        images, status = decode(encoded_images)
        results = function(images)
        return {**{name: emptied(value, status) for name, value in results.items()}, "status": status}

    return encoded
