"""Encoded bytes to pixels: the op `decode`, which gives what a viewer shows, upright, 8 bit, in one channel or three.

Everything is TensorFlow ops, so that an exported SavedModel does the same. What cannot be decoded is an error of the op's, which
training and evaluation catch (broken.py).
"""

import tensorflow as tf

from keras_vit.data import exif
from keras_vit.data.apart import apart
from keras_vit.data.ops import op

MAX_PIXELS = 2**28  # of a JPEG; others, which are decoded whole, may have half
LARGE = 2**25  # a JPEG of more pixels is decoded at a half or a quarter of its sides


def _within(encoded, pixels, limit):
    """`encoded`, after checking what its header says of its size."""
    message = f"The image has too many pixels: {limit} at most. It has"
    with tf.control_dependencies([tf.debugging.Assert(pixels <= limit, [message, pixels])]):
        return tf.identity(encoded)


def _head(encoded, at, count):
    """`count` bytes from byte `at` on of the first 32; zeros behind the end."""
    return tf.strings.substr(tf.strings.substr(encoded, 0, 32) + b"\0" * 32, at, count)


def _product(encoded, at, kind, little):
    """The product, int64, of two integers of dtype `kind` that lie in the bytes from `at` on."""
    numbers = tf.io.decode_raw(_head(encoded, at, 2 * kind.size), kind, little_endian=little)
    return tf.reduce_prod(tf.abs(tf.cast(numbers, tf.int64)))


def read_jpeg(encoded, channels, ratio=1):
    """A JPEG's pixels as stored, uint8; `ratio` 2, 4 or 8 divides the sides."""
    # The exact transform, as PIL has it: with the fast one a DeiT's logits correlate .998 with those on PIL's pixels.
    return tf.io.decode_jpeg(encoded, channels=channels, ratio=ratio, dct_method="INTEGER_ACCURATE")


@apart
def _odd_jpeg(encoded, channels, pixels, turned, cmyk):
    """A JPEG that is large (a half of its sides or a quarter is read, LARGE pixels or fewer), turned, or grey from CMYK."""
    encoded = _within(encoded, pixels, MAX_PIXELS)

    def stored(channels):
        fractions = {1: LARGE, 2: 4 * LARGE}
        cases = [(pixels <= most, lambda ratio=ratio: read_jpeg(encoded, channels, ratio)) for ratio, most in fractions.items()]
        return tf.case(cases, default=lambda: read_jpeg(encoded, channels, 4))

    if channels == 1:  # libjpeg does not make CMYK grey
        image = tf.cond(cmyk, lambda: tf.image.rgb_to_grayscale(stored(3)), lambda: stored(1))
    else:
        image = stored(channels)
    return exif.upright(image, turned)


def header(encoded):
    """(shape (3,) int32 by the header, 4 channels being CMYK; EXIF's orientation; whether both allow to decode it as it is) of a JPEG."""
    shape, turned = tf.image.extract_jpeg_shape(encoded), exif.orientation(encoded)
    plain = (turned == 1) & (shape[2] < 4) & (tf.reduce_prod(tf.cast(shape[:2], tf.int64)) <= LARGE)
    return shape, turned, plain


def _jpeg(encoded, channels):
    shape, turned, plain = header(encoded)
    pixels = tf.reduce_prod(tf.cast(shape[:2], tf.int64))
    odd = lambda: _odd_jpeg(encoded, channels, pixels, turned, shape[2] == 4)  # noqa: E731
    return tf.cond(plain, lambda: read_jpeg(encoded, channels), odd)


@apart
def _not_too_large_png(encoded):
    return _within(encoded, _product(encoded, 16, tf.int32, False), MAX_PIXELS // 2)


def _png(encoded, channels):
    # A smaller file cannot hold more pixels: deflate packs 1032 to one, and a byte has 8 pixels at most.
    small = tf.strings.length(encoded) < MAX_PIXELS // 2 // 1032 // 8
    return tf.io.decode_png(tf.cond(small, lambda: encoded, lambda: _not_too_large_png(encoded)), channels=channels)


def _matched(image, channels):
    """Pixels of 1, 3 or 4 channels, known only when it runs, with `channels` of them; an alpha channel is dropped."""
    if channels == 1:
        grey = lambda: tf.image.rgb_to_grayscale(image[..., :3])  # noqa: E731
        return tf.cond(tf.shape(image)[-1] == 1, lambda: image, grey)
    return tf.cond(tf.shape(image)[-1] == 1, lambda: tf.repeat(image, 3, -1), lambda: image[..., :3])


def _bmp(encoded):
    """TensorFlow takes palettes for shades of grey; here a file of 8 bits a pixel is looked up in its palette."""
    encoded = _within(encoded, _product(encoded, 18, tf.int32, True), MAX_PIXELS // 2)
    image = tf.io.decode_bmp(encoded)

    def coloured():
        start = 14 + tf.io.decode_raw(_head(encoded, 14, 4), tf.int32)[0]  # behind both headers
        start = tf.clip_by_value(start, 0, tf.strings.length(encoded) - 1)
        palette = tf.io.decode_raw(tf.strings.substr(encoded, start, 4 * 256), tf.uint8)
        colours = tf.reshape(palette, (-1, 4))[:, 2::-1]  # from blue, green, red, 0
        return tf.gather(colours, tf.cast(image[..., 0], tf.int32))

    return tf.cond(tf.shape(image)[-1] == 1, coloured, lambda: image)


def _gif(encoded):
    encoded = _within(encoded, _product(encoded, 6, tf.uint16, True), MAX_PIXELS // 2)
    return tf.io.decode_image(encoded, expand_animations=False)


def _webp(encoded):
    """TensorFlow 2.21 writes beyond its memory when it is to give an animation's first frame, so that animations are refused."""
    flags = tf.cast(tf.io.decode_raw(_head(encoded, 20, 1), tf.uint8), tf.int32)[0]
    animated = (_head(encoded, 12, 4) == b"VP8X") & (tf.bitwise.bitwise_and(flags, 2) > 0)
    with tf.control_dependencies([tf.debugging.Assert(~animated, ["An animated WebP cannot be read: save one frame of it."])]):
        return tf.io.decode_image(tf.identity(encoded), expand_animations=False)


@apart
def _other(encoded, channels):
    kinds = {b"BM": _bmp, b"GI": _gif, b"RI": _webp}
    start = tf.strings.substr(encoded, 0, 2)
    cases = [(start == magic, lambda kind=kind: kind(encoded)) for magic, kind in kinds.items()]
    image = tf.case(cases, default=lambda: tf.io.decode_image(encoded, expand_animations=False))
    return _matched(image, channels)


def decode_bytes(encoded, channels):
    """A scalar string tensor of an encoded image -> uint8 (h, w, channels), upright.

    Raises:
        InvalidArgumentError: when it runs, if TensorFlow does not know the format, the data is damaged or cut short, or the image
            has more than MAX_PIXELS pixels (half of that if it is no JPEG).
    """
    start = tf.strings.substr(encoded, 0, 2)
    kinds = {b"\xff\xd8": _jpeg, b"\x89P": _png}
    cases = [(start == magic, lambda kind=kind: kind(encoded, channels)) for magic, kind in kinds.items()]
    return tf.ensure_shape(tf.case(cases, default=lambda: _other(encoded, channels)), (None, None, channels))


@op
def decode(channels=3):
    """Encoded JPEG, PNG, BMP, GIF or WebP bytes (of animations the first frame) to uint8 (h, w, channels); arrays pass, channels matched."""

    def apply(image):
        if image.dtype == tf.string:
            return decode_bytes(image, channels)
        if image.shape[-1] == channels:
            return image
        if (image.shape[-1], channels) == (1, 3):
            return tf.image.grayscale_to_rgb(image)
        if (image.shape[-1], channels) == (3, 1):
            return tf.image.rgb_to_grayscale(image)
        raise ValueError(f"decode(channels={channels}) got an array of {image.shape[-1]} channels.")

    return apply
