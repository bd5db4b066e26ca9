"""Masks: PNG bytes to their stored grey values, palette indices or colours, without conversion."""

import zlib

import tensorflow as tf

from keras_vit.data.ops.branches import outlined
from keras_vit.data.ops.headers import LARGE, MAX_PIXELS, checked, head, product, within

PALETTE = 3  # the colour type of a PNG with a palette
_PNG_MOST = 1000  # metadata chunks before the pixels, at most
_GREYS = b"PLTE" + bytes(level for level in range(256) for _ in range(3))
# A PNG's chunk: the length of its content, kind and content, checksum.
_GREY_PALETTE = (3 * 256).to_bytes(4, "big") + _GREYS + zlib.crc32(_GREYS).to_bytes(4, "big")


@outlined
def _not_too_large_png(encoded):
    starts = head(encoded, 12, 4) == b"IHDR"  # libpng accepts a PNG with another chunk before its header
    encoded = checked(encoded, starts, "The PNG does not start with its header.")
    return within(encoded, product(encoded, 16, tf.int32, False), MAX_PIXELS // 2)


def guarded_png(encoded: tf.Tensor) -> tf.Tensor:
    """Checks a PNG's pixel count where its file is large enough to exceed the limit."""
    # Deflate compresses at most 1032 to one, and a byte encodes at most 8 pixels.
    small = tf.strings.length(encoded) < MAX_PIXELS // 2 // 1032 // 8
    return tf.cond(small, lambda: encoded, lambda: _not_too_large_png(encoded))


def _first_chunk(encoded, kind):
    """Returns the offset of a PNG's first chunk of a kind, such as b"IDAT", or its length without one."""
    size = tf.strings.length(encoded)

    def after(at):
        length = tf.io.decode_raw(tf.strings.substr(encoded, at, 4), tf.int32, little_endian=False)[0]
        return tf.minimum(at + tf.clip_by_value(length, 0, size) + 12, size)

    return tf.while_loop(
        lambda at: (at + 8 <= size) & (tf.strings.substr(encoded, at + 4, 4) != kind),
        lambda at: [after(at)],
        [tf.minimum(33, size)],
        maximum_iterations=_PNG_MOST,
    )[0]


def is_png(encoded: tf.Tensor) -> tf.Tensor:
    """Whether a scalar string tensor is a PNG, by its first bytes."""
    return head(encoded, 0, 4) == b"\x89PNG"


def png_color_type(encoded: tf.Tensor) -> tf.Tensor:
    """Reads the colour type from a PNG's header, int32: 0 grey, 2 RGB, 3 palette, 4 grey and alpha, 6 RGBA."""
    return tf.cast(tf.io.decode_raw(head(encoded, 25, 1), tf.uint8), tf.int32)[0]


def png_bits(encoded: tf.Tensor) -> tf.Tensor:
    """Reads the bits per value from a PNG's header, int32."""
    return tf.cast(tf.io.decode_raw(head(encoded, 24, 1), tf.uint8), tf.int32)[0]


@outlined
def _palette_indices(encoded):
    """Decodes a palette PNG's indices: TensorFlow looks up colours, so colour i becomes grey level i."""
    pixels = tf.strings.substr(encoded, _first_chunk(encoded, b"IDAT"), -1)
    encoded = tf.strings.join([tf.strings.substr(encoded, 0, 33), _GREY_PALETTE, pixels])
    return tf.cast(tf.io.decode_png(guarded_png(encoded), channels=1), tf.int32)


def _grey_levels(encoded):
    # TensorFlow spreads values of fewer bits evenly over 0..65535.
    step = 65535 // (tf.bitwise.left_shift(1, png_bits(encoded)) - 1)
    return tf.cast(tf.io.decode_png(guarded_png(encoded), channels=1, dtype=tf.uint16), tf.int32) // step


def png_values(encoded: tf.Tensor) -> tf.Tensor:
    """Decodes the grey values or palette indices of a PNG of 1 to 16 bits exactly as stored, int32 (h, w, 1)."""
    has_palette = png_color_type(encoded) == PALETTE
    return tf.cond(has_palette, lambda: _palette_indices(encoded), lambda: _grey_levels(encoded))


def png_palette(encoded: tf.Tensor) -> tf.Tensor:
    """Reads the colours of a PNG's palette as 0xRRGGBB, int32 (n,); none without a palette."""
    at = _first_chunk(encoded, b"PLTE")

    def colors():
        length = tf.io.decode_raw(tf.strings.substr(encoded, at, 4), tf.int32, little_endian=False)[0]
        stored = tf.strings.substr(encoded, at + 8, tf.clip_by_value(length, 0, 768))
        channels = tf.cast(tf.io.decode_raw(stored, tf.uint8), tf.int32)
        whole = tf.size(channels) // 3 * 3
        return tf.reduce_sum(tf.reshape(channels[:whole], (-1, 3)) * [65536, 256, 1], -1)  # (3 * n,) -> (n, 3) -> (n,)

    return tf.cond(at + 8 <= tf.strings.length(encoded), colors, lambda: tf.zeros(0, tf.int32))


def png_colors(encoded: tf.Tensor) -> tf.Tensor:
    """Decodes the stored colours of an 8-bit PNG, uint8 (h, w, 3), without the alpha channel."""
    return tf.io.decode_png(guarded_png(encoded), channels=3)


def decode_mask(mask: tf.Tensor) -> tf.Tensor:
    """Decodes a mask, a grey or palette PNG (a scalar string tensor), to its stored values or indices, int32 (h, w, 1).

    Integers stay.

    Raises:
        InvalidArgumentError: at run time, for other files: colours are not class numbers.
    """
    if mask.dtype != tf.string:
        return mask
    fits = is_png(mask) & tf.reduce_any(png_color_type(mask) == [0, 3])
    what = (
        "Expected a mask as a grey or palette PNG, without colour or alpha channels. Save the class numbers as grey"
        " levels, or open the folder as masks:PATH with a table of the colours."
    )
    with tf.control_dependencies([tf.debugging.Assert(fits, [what])]):
        return png_values(tf.identity(mask))


def mask_of_size(mask: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """Returns a mask (h, w, 1) at the image's `size`, (2,) int32.

    Raises:
        InvalidArgumentError: at run time, if the sizes differ, unless the image has more than LARGE pixels and it,
            or the mask, was stored or decoded at a fraction of its sides.
    """
    own = tf.shape(mask)[:2]
    larger, smaller = tf.maximum(own, size), tf.minimum(own, size)
    reduced = tf.reduce_any([tf.reduce_all((larger + ratio - 1) // ratio == smaller) for ratio in (2, 4)])
    fits = tf.reduce_all(own == size) | (reduced & (tf.reduce_prod(tf.cast(larger, tf.int64)) > LARGE))
    hint = tf.where(
        tf.reduce_all(own == size[::-1]),
        "The mask fits the image as stored, before its EXIF data turns it upright: turn the mask, too, or remove the"
        " EXIF data.",
        "Save the mask at the size of its image.",
    )
    message = [
        "The mask and the upright image differ in size (height, width): the mask has",
        own,
        "and the image",
        size,
    ]
    message.append(hint)
    with tf.control_dependencies([tf.debugging.Assert(fits, message)]):
        mask = tf.identity(mask)

    def resized():
        return tf.image.resize(mask, size, method="nearest")

    return tf.cond(tf.reduce_all(own == size), lambda: mask, resized)


def depth_of_size(depth: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """Returns depths (h, w, 1) at the image's `size`, (2,) int32, to the nearest pixel: many are stored smaller.

    Raises:
        InvalidArgumentError: at run time, if the sides differ in proportion by more than a pixel.
    """
    own = tf.shape(depth)[:2]
    apart = tf.abs(own[0] * size[1] - own[1] * size[0]) <= tf.reduce_max(tf.maximum(own, size))
    message = ["The depth map and the image differ in proportions (height, width): the map has", own, "the image", size]
    with tf.control_dependencies([tf.debugging.Assert(apart, message)]):
        return tf.image.resize(depth, size, method="nearest")
