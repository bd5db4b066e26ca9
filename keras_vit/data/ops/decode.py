"""Encoded bytes to pixels: the op `decode` returns the image as a viewer shows it: upright, 8-bit, 1 or 3 channels.

Everything is TensorFlow ops, so an exported SavedModel decodes identically. Undecodable bytes raise an op error, which
training and evaluation catch (data/errors.py).
"""

import tensorflow as tf

from keras_vit.data.ops import orientation
from keras_vit.data.ops.branches import outlined
from keras_vit.data.ops.decode_mask import decode_mask, depth_of_size, guarded_png, mask_of_size
from keras_vit.data.ops.gif import first_frame
from keras_vit.data.ops.headers import LARGE, MAX_PIXELS, checked, head, product, within
from keras_vit.data.ops.op_registry import op

_BY_PILLOW = "needs Pillow, which exported models cannot use: save it as PNG."


def _webp_pixels(encoded):
    """Reads the int64 pixel count from a WebP header of any of the three kinds."""
    kind = head(encoded, 12, 4)

    def number(at, shift, bits):
        word = tf.cast(tf.io.decode_raw(head(encoded, at, 4), tf.int32)[0], tf.int64)
        return tf.bitwise.bitwise_and(tf.bitwise.right_shift(word, tf.constant(shift, tf.int64)), 2**bits - 1)

    extended = (number(24, 0, 24) + 1) * (number(27, 0, 24) + 1)
    lossy = number(26, 0, 14) * number(26, 16, 14)
    lossless = (number(21, 0, 14) + 1) * (number(21, 14, 14) + 1)
    return tf.where(kind == b"VP8X", extended, tf.where(kind == b"VP8 ", lossy, lossless))


@outlined
def _with_an_end(encoded):
    """Checks that a JPEG has an end marker anywhere: cameras append videos to photographs."""
    data = tf.io.decode_raw(encoded, tf.uint8)
    ends = tf.reduce_any((data[:-1] == 0xFF) & (data[1:] == 0xD9))  # in compressed data a zero follows each 0xFF
    return checked(encoded, ends, "The JPEG is truncated: its end marker is missing.")


def not_cut_short(encoded: tf.Tensor) -> tf.Tensor:
    """Checks a JPEG for its end marker: without one, libjpeg prints a line and then fails."""
    is_whole = tf.strings.substr(encoded, tf.strings.length(encoded) - 2, 2) == b"\xff\xd9"
    return tf.cond(is_whole, lambda: encoded, lambda: _with_an_end(encoded))


def read_jpeg(encoded: tf.Tensor, channels: int, ratio: int = 1) -> tf.Tensor:
    """Decodes a JPEG's pixels as stored, uint8; `ratio` 2, 4 or 8 divides the sides."""
    # The exact transform, as in PIL: with the fast one, a DeiT's logits correlate only .998 with those on PIL's pixels.
    return tf.io.decode_jpeg(encoded, channels=channels, ratio=ratio, dct_method="INTEGER_ACCURATE")


@outlined
def _odd_jpeg(encoded, channels, pixels, turned, cmyk, whole):
    """Decodes a rotated, a grey CMYK, or a large JPEG (at a half or a quarter of its sides, unless `whole`)."""
    encoded = within(encoded, pixels, MAX_PIXELS)

    def stored(channels):
        if whole:
            return read_jpeg(encoded, channels)
        fractions = {1: LARGE, 2: 4 * LARGE}
        cases = [
            (pixels <= most, lambda ratio=ratio: read_jpeg(encoded, channels, ratio))
            for ratio, most in fractions.items()
        ]
        return tf.case(cases, default=lambda: read_jpeg(encoded, channels, 4))

    if channels == 1:  # libjpeg does not convert CMYK to grey
        image = tf.cond(cmyk, lambda: tf.image.rgb_to_grayscale(stored(3)), lambda: stored(1))
    else:
        image = stored(channels)
    return orientation.upright(image, turned)


def header(encoded: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns a JPEG's shape (3,) int32 (4 channels for CMYK), EXIF orientation, and whether it decodes directly."""
    shape, turned = tf.image.extract_jpeg_shape(encoded), orientation.of_jpeg(encoded)
    simple = (turned == 1) & (shape[2] < 4) & (tf.reduce_prod(tf.cast(shape[:2], tf.int64)) <= LARGE)
    return shape, turned, simple


def _jpeg(encoded, channels, whole):
    encoded = not_cut_short(encoded)
    shape, turned, simple = header(encoded)
    pixels = tf.reduce_prod(tf.cast(shape[:2], tf.int64))

    def odd():
        return _odd_jpeg(encoded, channels, pixels, turned, shape[2] == 4, whole)

    return tf.cond(simple, lambda: read_jpeg(encoded, channels), odd)


def _with_hidden_exif(encoded):
    """Whether a PNG has ImageMagick's EXIF data from before 2018: hexadecimal digits, perhaps compressed."""
    return orientation.contains(orientation.png_metadata(encoded), "Raw profile type exif")


@outlined
def _png_with_chunks(encoded, channels):
    """Decodes a PNG that may have metadata."""
    plain = orientation.begins_with_pixels(encoded) | ~_with_hidden_exif(encoded)
    encoded = checked(encoded, plain, f"A PNG with EXIF data from an old ImageMagick {_BY_PILLOW}")
    return orientation.upright(tf.io.decode_png(encoded, channels=channels), orientation.of_png(encoded))


def _png(encoded, channels):
    encoded = guarded_png(encoded)

    def bare():
        return tf.io.decode_png(encoded, channels=channels)

    return tf.cond(orientation.is_bare_png(encoded), bare, lambda: _png_with_chunks(encoded, channels))


def _matched(image, channels):
    """Converts pixels of 1, 3 or 4 channels, known only at run time, to `channels`; drops an alpha channel."""
    if channels == 1:

        def grey():
            return tf.image.rgb_to_grayscale(image[..., :3])

        return tf.cond(tf.shape(image)[-1] == 1, lambda: image, grey)
    return tf.cond(tf.shape(image)[-1] == 1, lambda: tf.repeat(image, 3, -1), lambda: image[..., :3])


def _is_plain_bmp(encoded):
    """Whether a BMP has a 40-byte header and 8, 24 or 32 bits per pixel, without compression or bit fields."""
    header, bits, compression = head(encoded, 14, 4), head(encoded, 28, 2), head(encoded, 30, 2)
    is_plain = (header == b"\x28\0\0\0") & (compression == b"\0\0")
    return is_plain & tf.reduce_any(bits == [b"\x08\0", b"\x18\0", b"\x20\0"])


def _has_length(encoded):
    """Whether a plain BMP's length matches its header, as TensorFlow requires."""
    numbers = (tf.io.decode_raw(head(encoded, at, 4), tf.int32)[0] for at in (10, 18, 22))
    start, width, height = (tf.cast(number, tf.int64) for number in numbers)
    bits = tf.cast(tf.io.decode_raw(head(encoded, 28, 2), tf.int16)[0], tf.int64)
    row = (width * bits // 8 + 3) // 4 * 4
    return tf.cast(tf.strings.length(encoded), tf.int64) == start + row * tf.abs(height)


def _bmp(encoded):
    """Looks up 8-bit pixels in the file's palette: TensorFlow reads palette indices as shades of grey."""
    encoded = checked(
        encoded,
        _is_plain_bmp(encoded),
        f"A BMP with bit fields, RLE, 1, 4 or 16 bits per pixel, or an OS/2 header {_BY_PILLOW}",
    )
    encoded = within(encoded, product(encoded, 18, tf.int32, True), MAX_PIXELS // 2)
    image = tf.io.decode_bmp(encoded)

    def coloured():
        start, end = 14 + 40, tf.io.decode_raw(head(encoded, 10, 4), tf.int32)[0]  # end of headers, start of pixels
        size = tf.clip_by_value(end - start, 0, 4 * 256)
        palette = tf.strings.substr(encoded + b"\0" * (start + 4 * 256), start, size) + b"\0" * (4 * 256)
        colours = tf.reshape(tf.io.decode_raw(palette, tf.uint8)[: 4 * 256], (-1, 4))[:, 2::-1]  # blue, green, red, 0
        return tf.gather(colours, tf.cast(image[..., 0], tf.int32))

    return tf.cond(tf.shape(image)[-1] == 1, coloured, lambda: image)


def _gif(encoded):
    alone, start, shape, around = first_frame(encoded)
    alone = within(alone, tf.reduce_prod(tf.cast(shape, tf.int64)), MAX_PIXELS // 2)
    image = tf.ensure_shape(tf.io.decode_image(alone, expand_animations=False), (None, None, 3))
    after = shape - start - tf.shape(image)[:2]
    margins = [[start[0], after[0]], [start[1], after[1]], [0, 0]]
    inside = tf.pad(tf.ones_like(image, tf.bool), margins)
    return tf.where(inside, tf.pad(image, margins), around)


def _is_animated(encoded):
    """Whether a WebP is animated: TensorFlow 2.21 writes out of bounds when it decodes the first frame."""
    flags = tf.cast(tf.io.decode_raw(head(encoded, 20, 1), tf.uint8), tf.int32)[0]
    return (head(encoded, 12, 4) == b"VP8X") & (tf.bitwise.bitwise_and(flags, 2) > 0)


def _webp(encoded):
    encoded = checked(encoded, ~_is_animated(encoded), f"An animated WebP {_BY_PILLOW}")
    encoded = within(encoded, _webp_pixels(encoded), MAX_PIXELS // 2)
    return orientation.upright(tf.io.decode_image(encoded, expand_animations=False), orientation.of_webp(encoded))


@outlined
def decode_other(encoded: tf.Tensor, channels: int) -> tf.Tensor:
    """Like `decode_bytes`, for formats other than JPEG and PNG."""
    kinds = {b"BM": _bmp, b"GI": _gif, b"RI": _webp}
    start = tf.strings.substr(encoded, 0, 2)
    cases = [(start == magic, lambda kind=kind: kind(encoded)) for magic, kind in kinds.items()]
    image = tf.case(cases, default=lambda: tf.io.decode_image(encoded, expand_animations=False))
    return _matched(image, channels)


# First bytes -> (test for files that Pillow reads but `decode` does not, their description).
ODD = {
    b"\x89P": (_with_hidden_exif, "A PNG with EXIF data from an old ImageMagick"),
    b"BM": (
        lambda encoded: ~(_is_plain_bmp(encoded) & _has_length(encoded)),
        "A BMP with bit fields, RLE, 1, 4 or 16 bits per pixel, an OS/2 header, or a length unlike its header's",
    ),
    b"RI": (_is_animated, "An animated WebP"),
}


@outlined
def _is_odd(encoded):
    """Whether a file is in ODD, or in a format that TensorFlow does not read."""
    start = tf.strings.substr(encoded, 0, 2)
    cases = [(start == magic, lambda is_odd=is_odd: is_odd(encoded)) for magic, (is_odd, _) in ODD.items()]
    return tf.case(cases, default=lambda: tf.constant(True))


def needs_pillow(encoded: tf.Tensor) -> tf.Tensor:
    """Whether only Pillow may read an image, a scalar string tensor. True for other files, too."""
    no, start = (lambda: tf.constant(False)), tf.strings.substr(encoded, 0, 2)

    def unless_png():
        plain = (start == b"\x89P") & orientation.begins_with_pixels(encoded)
        return tf.cond(plain, no, lambda: _is_odd(encoded))

    return tf.cond(tf.reduce_any(start == [b"\xff\xd8", b"GI"]), no, unless_png)


def decode_bytes(encoded: tf.Tensor, channels: int, whole: bool = False) -> tf.Tensor:
    """Decodes an image, a scalar string tensor, to uint8 (h, w, channels), upright; `whole` as for `decode`.

    Raises:
        InvalidArgumentError: at run time, for an unknown format, damaged or truncated data, or more than MAX_PIXELS
            pixels (half as many for formats other than JPEG).
    """
    start = tf.strings.substr(encoded, 0, 2)
    cases = [
        (start == b"\xff\xd8", lambda: _jpeg(encoded, channels, whole)),
        (start == b"\x89P", lambda: _png(encoded, channels)),
    ]
    return tf.ensure_shape(tf.case(cases, default=lambda: decode_other(encoded, channels)), (None, None, channels))


def decode_image(image: tf.Tensor, channels: int = 3, whole: bool = False) -> tf.Tensor:
    """Converts an image, encoded bytes (a scalar string tensor) or pixels (h, w, c), to pixels (h, w, channels)."""
    if image.dtype == tf.string:
        return decode_bytes(image, channels, whole)
    if image.shape[-1] == channels:
        return image
    if (image.shape[-1], channels) == (1, 3):
        return tf.image.grayscale_to_rgb(image)
    if (image.shape[-1], channels) == (3, 1):
        return tf.image.rgb_to_grayscale(image)
    raise ValueError(f"decode(channels={channels}) got an array of {image.shape[-1]} channels.")


@op("image", "mask")
def decode(channels=3, whole=False):
    """Decodes JPEG, PNG, BMP, GIF (first frame) or WebP to uint8 (h, w, channels), and a mask to integers.

    A JPEG of more than 2^25 pixels is decoded at a half or a quarter of its sides, unless `whole`. Of pixels it
    converts only the channels. A mask belongs to the upright image, as viewers and annotation tools show it.
    """

    def apply(example):
        image = decode_image(example["image"], channels, whole)
        result, size = {"image": image}, tf.shape(image)[:2]
        if "mask" in example:
            result["mask"] = mask_of_size(decode_mask(example["mask"]), size)
        if "depth" in example:
            result["depth"] = depth_of_size(example["depth"], size)
        if "segments" in example:
            result["segments"] = mask_of_size(example["segments"], size)
        return result

    return apply
