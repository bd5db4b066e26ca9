"""Encoded bytes to pixels: the op `decode` gives what a viewer shows, upright, 8-bit, in one channel or three.

All of it is TensorFlow ops, so that an exported SavedModel does the same. Undecodable bytes are an error of the op,
which training and evaluation catch (data/errors.py).
"""

import zlib

import numpy as np
import tensorflow as tf

from keras_vit.data.ops import orientation
from keras_vit.data.ops.branches import outlined
from keras_vit.data.ops.registry import op

MAX_PIXELS = 2**28  # of a JPEG; half for other formats, which are always decoded whole
LARGE = 2**25  # a JPEG with more pixels is decoded at a half or a quarter of its sides

_BY_PILLOW = "needs Pillow, which the preprocessing of an exported model lacks: save it as PNG."

# GIF89a: a header and the screen, 13 bytes, perhaps a colour table, then blocks: extensions, frames, the end. A block's
# data are chunks: a size byte and as many bytes; size 0 ends them.
_GIF_EXTENSION, _GIF_FRAME = 0x21, 0x2C  # the first bytes of blocks
_GIF_CONTROL = 0xF9  # the second byte of the extension that may name a transparent colour
_GREYS = bytes(level for level in range(256) for _ in range(3))  # the palette of a GIF without one
_GIF_MOST = 10_000  # steps of a walk; chunks have full size, so a frame takes few steps
_GIF_RUN = 4096  # chunks per step at most

_PNG_MOST = 1000  # chunks of metadata before the pixels
_BYTES = [bytes([value]) for value in range(256)]


def _palette_to_grey():
    """What to combine with a PNG's first 33 bytes by exclusive or, so that a palette becomes grey.

    It changes the colour type, and the checksum: of messages of one length, checksums differ by what depends on the
    difference of the messages alone.
    """
    palette, grey = (b"IHDR" + bytes([0] * 9 + [kind] + [0] * 3) for kind in (3, 0))
    checksum = (zlib.crc32(palette) ^ zlib.crc32(grey)).to_bytes(4, "big")
    return np.frombuffer(bytes(25) + b"\3" + bytes(3) + checksum, "uint8")


_PALETTE_TO_GREY = _palette_to_grey()


def _checked(encoded, is_fine, *message):
    """`encoded`, or an error with the message."""
    with tf.control_dependencies([tf.debugging.Assert(is_fine, list(message))]):
        return tf.identity(encoded)


def _within(encoded, pixels, limit):
    """`encoded`, after a check of the pixel count in its header."""
    return _checked(encoded, pixels <= limit, f"The image has too many pixels: {limit} at most. It has", pixels)


def _head(encoded, at, count):
    """`count` bytes from byte `at`, within the first 32; zeros after the end."""
    return tf.strings.substr(tf.strings.substr(encoded, 0, 32) + b"\0" * 32, at, count)


def _product(encoded, at, kind, little):
    """The int64 product of the two integers of dtype `kind` at byte `at`."""
    numbers = tf.io.decode_raw(_head(encoded, at, 2 * kind.size), kind, little_endian=little)
    return tf.reduce_prod(tf.abs(tf.cast(numbers, tf.int64)))


def _webp_pixels(encoded):
    """A WebP's int64 pixel count from its header, which is of one of three kinds."""
    kind = _head(encoded, 12, 4)

    def number(at, shift, bits):
        word = tf.cast(tf.io.decode_raw(_head(encoded, at, 4), tf.int32)[0], tf.int64)
        return tf.bitwise.bitwise_and(tf.bitwise.right_shift(word, tf.constant(shift, tf.int64)), 2**bits - 1)

    extended = (number(24, 0, 24) + 1) * (number(27, 0, 24) + 1)
    lossy = number(26, 0, 14) * number(26, 16, 14)
    lossless = (number(21, 0, 14) + 1) * (number(21, 14, 14) + 1)
    return tf.where(kind == b"VP8X", extended, tf.where(kind == b"VP8 ", lossy, lossless))


@outlined
def _with_an_end(encoded):
    """A JPEG after a check that it has an end marker, though not at the end: cameras append videos to photographs."""
    data = tf.io.decode_raw(encoded, tf.uint8)
    ends = tf.reduce_any((data[:-1] == 0xFF) & (data[1:] == 0xD9))  # in compressed data a zero follows each 0xFF
    return _checked(encoded, ends, "The JPEG is cut short: its end is missing.")


def not_cut_short(encoded: tf.Tensor) -> tf.Tensor:
    """A JPEG after a check for its end marker: libjpeg would print a line for each one without, then refuse it."""
    is_whole = tf.strings.substr(encoded, tf.strings.length(encoded) - 2, 2) == b"\xff\xd9"
    return tf.cond(is_whole, lambda: encoded, lambda: _with_an_end(encoded))


def read_jpeg(encoded: tf.Tensor, channels: int, ratio: int = 1) -> tf.Tensor:
    """A JPEG's pixels as stored, uint8; `ratio` 2, 4 or 8 divides the sides."""
    # The exact transform, as in PIL: with the fast one, a DeiT's logits correlate only .998 with those on PIL's pixels.
    return tf.io.decode_jpeg(encoded, channels=channels, ratio=ratio, dct_method="INTEGER_ACCURATE")


@outlined
def _odd_jpeg(encoded, channels, pixels, turned, cmyk):
    """A JPEG that is turned, grey from CMYK, or large (read at a half or a quarter of its sides, within LARGE)."""
    encoded = _within(encoded, pixels, MAX_PIXELS)

    def stored(channels):
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
    """(a JPEG's shape (3,) int32 by its header, 4 channels for CMYK; EXIF orientation; can it be decoded directly)"""
    shape, turned = tf.image.extract_jpeg_shape(encoded), orientation.of_jpeg(encoded)
    simple = (turned == 1) & (shape[2] < 4) & (tf.reduce_prod(tf.cast(shape[:2], tf.int64)) <= LARGE)
    return shape, turned, simple


def _jpeg(encoded, channels):
    encoded = not_cut_short(encoded)
    shape, turned, simple = header(encoded)
    pixels = tf.reduce_prod(tf.cast(shape[:2], tf.int64))
    odd = lambda: _odd_jpeg(encoded, channels, pixels, turned, shape[2] == 4)  # noqa: E731
    return tf.cond(simple, lambda: read_jpeg(encoded, channels), odd)


@outlined
def _not_too_large_png(encoded):
    starts = _head(encoded, 12, 4) == b"IHDR"  # libpng accepts a PNG with another chunk before its header
    encoded = _checked(encoded, starts, "The PNG does not begin with its header.")
    return _within(encoded, _product(encoded, 16, tf.int32, False), MAX_PIXELS // 2)


def _guarded_png(encoded):
    """`encoded`, after a check of its size if needed."""
    # Deflate packs at most 1032 to one, and a byte holds at most 8 pixels, so smaller files pass.
    small = tf.strings.length(encoded) < MAX_PIXELS // 2 // 1032 // 8
    return tf.cond(small, lambda: encoded, lambda: _not_too_large_png(encoded))


def _with_hidden_exif(encoded):
    """Whether a PNG has EXIF data as ImageMagick wrote it before 2018: in hexadecimal digits, perhaps compressed."""
    return orientation.contains(orientation.png_metadata(encoded), "Raw profile type exif")


@outlined
def _png_with_chunks(encoded, channels):
    """A PNG that may have metadata."""
    plain = orientation.begins_with_pixels(encoded) | ~_with_hidden_exif(encoded)
    encoded = _checked(encoded, plain, f"A PNG with EXIF data of an old ImageMagick {_BY_PILLOW}")
    return orientation.upright(tf.io.decode_png(encoded, channels=channels), orientation.of_png(encoded))


def _png(encoded, channels):
    encoded = _guarded_png(encoded)
    bare = lambda: tf.io.decode_png(encoded, channels=channels)  # noqa: E731
    return tf.cond(orientation.is_bare_png(encoded), bare, lambda: _png_with_chunks(encoded, channels))


def _matched(image, channels):
    """Converts pixels of 1, 3 or 4 channels, known only at run time, to `channels`; drops an alpha channel."""
    if channels == 1:
        grey = lambda: tf.image.rgb_to_grayscale(image[..., :3])  # noqa: E731
        return tf.cond(tf.shape(image)[-1] == 1, lambda: image, grey)
    return tf.cond(tf.shape(image)[-1] == 1, lambda: tf.repeat(image, 3, -1), lambda: image[..., :3])


def _is_plain_bmp(encoded):
    """Whether a BMP has a header of 40 bytes, and 8, 24 or 32 bits per pixel, neither compressed nor in bit fields."""
    header, bits, compression = _head(encoded, 14, 4), _head(encoded, 28, 2), _head(encoded, 30, 2)
    is_plain = (header == b"\x28\0\0\0") & (compression == b"\0\0")
    return is_plain & tf.reduce_any(bits == [b"\x08\0", b"\x18\0", b"\x20\0"])


def _has_length(encoded):
    """Whether a plain BMP has as many bytes as its header says: TensorFlow refuses others."""
    numbers = (tf.io.decode_raw(_head(encoded, at, 4), tf.int32)[0] for at in (10, 18, 22))
    start, width, height = (tf.cast(number, tf.int64) for number in numbers)
    bits = tf.cast(tf.io.decode_raw(_head(encoded, 28, 2), tf.int16)[0], tf.int64)
    row = (width * bits // 8 + 3) // 4 * 4
    return tf.cast(tf.strings.length(encoded), tf.int64) == start + row * tf.abs(height)


def _bmp(encoded):
    """Looks up 8-bit pixels in the file's palette: TensorFlow reads palette indices as shades of grey."""
    encoded = _checked(
        encoded,
        _is_plain_bmp(encoded),
        f"A BMP with bit fields, RLE, 1, 4 or 16 bits per pixel, or a header of OS/2 {_BY_PILLOW}",
    )
    encoded = _within(encoded, _product(encoded, 18, tf.int32, True), MAX_PIXELS // 2)
    image = tf.io.decode_bmp(encoded)

    def coloured():
        start, end = 14 + 40, tf.io.decode_raw(_head(encoded, 10, 4), tf.int32)[0]  # after both headers, of the pixels
        size = tf.clip_by_value(end - start, 0, 4 * 256)
        palette = tf.strings.substr(encoded + b"\0" * (start + 4 * 256), start, size) + b"\0" * (4 * 256)
        colours = tf.reshape(tf.io.decode_raw(palette, tf.uint8)[: 4 * 256], (-1, 4))[:, 2::-1]  # blue, green, red, 0
        return tf.gather(colours, tf.cast(image[..., 0], tf.int32))

    return tf.cond(tf.shape(image)[-1] == 1, coloured, lambda: image)


def _gif_table(flags):
    """Bytes of the colour table that `flags` announce."""
    return tf.where(flags >= 128, tf.bitwise.left_shift(6, tf.bitwise.bitwise_and(flags, 7)), 0)


def _gif_frame(data, size):
    """(start, end, found, control) of the first frame of a GIF of `size` bytes in `data`, which is padded with zeros.

    `control` is where the last graphic control extension before the frame starts, 0 if there is none.
    """
    byte = lambda at: tf.cast(data[at], tf.int32)  # noqa: E731

    def chunks(at, frame, control):
        """Passes consecutive chunks of one size."""
        step = byte(at) + 1
        alike = data[at : at + _GIF_RUN * step : step] == data[at]
        passed = tf.reduce_sum(tf.math.cumprod(tf.cast(alike, tf.int32)))
        return tf.where(step > 1, at + passed * step, at + 1), frame, control, step > 1

    def block(at, frame, control):
        """Passes the head of a block; after any but an extension or a frame there is nothing to read."""
        kind = byte(at)
        head = tf.where(kind == _GIF_FRAME, 11 + _gif_table(byte(at + 9)), tf.where(kind == _GIF_EXTENSION, 2, size))
        controls = (kind == _GIF_EXTENSION) & (byte(at + 1) == _GIF_CONTROL)
        return at + head, tf.where(kind == _GIF_FRAME, at, frame), tf.where(controls, at, control), tf.constant(True)

    at, frame, control, inside = tf.while_loop(
        lambda at, frame, control, inside: (at < size) & (inside | (frame < 0)),
        lambda at, frame, control, inside: tf.cond(
            inside, lambda: chunks(at, frame, control), lambda: block(at, frame, control)
        ),
        (13 + _gif_table(byte(10)), tf.constant(-1), tf.constant(0), tf.constant(False)),
        maximum_iterations=_GIF_MOST,
    )
    return frame, at, (frame >= 0) & ~inside & (at <= size), control


@outlined
def first_frame(encoded: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """The first frame of a GIF, a scalar string tensor.

    Returns:
        (a GIF of that frame alone, its (top, left) int32 on the canvas, the canvas's (height, width) int32, the colour
        (3,) uint8 around it: the transparent one, which also Pillow shows, or else the palette's first).

    Raises:
        InvalidArgumentError: at run time, if there is no whole frame.
    """
    padded = encoded + b"\0" * 1024
    data = tf.io.decode_raw(padded, tf.uint8)
    frame, end, found, control = _gif_frame(data, tf.strings.length(encoded))
    frame = _checked(frame, found, "The GIF is damaged or cut short: it has no whole frame.")
    byte = lambda at: tf.cast(data[at], tf.int32)  # noqa: E731
    numbers = lambda at, size: tf.cast(tf.io.decode_raw(tf.strings.substr(padded, at, size), tf.uint16), tf.int32)  # noqa: E731
    box, screen = numbers(frame + 1, 8), numbers(6, 4)  # (left, top, width, height), (width, height)
    picture = tf.maximum(screen, box[:2] + box[2:])
    shared, own = _gif_table(byte(10)), _gif_table(byte(frame + 9))
    grey = tf.strings.substr(_GREYS, 0, tf.where(shared + own > 0, 0, len(_GREYS)))  # without a palette
    # Without extensions: TensorFlow would show a transparent colour as black. At 0, 0: it takes the frame for the
    # canvas and would cut off what lies further right and below.
    alone = [
        tf.strings.substr(padded, 0, 10),
        tf.where(shared + own > 0, tf.strings.substr(padded, 10, 1), b"\xf7"),
        tf.strings.substr(padded, 11, 2 + shared),
        grey,
        b"\x2c" + b"\0" * 4,
        tf.strings.substr(encoded, frame + 5, end - frame - 5),
        b";",
    ]
    transparent = tf.where((control > 0) & (byte(control + 3) % 2 == 1), byte(control + 6), 0)
    table = tf.where(own > 0, tf.strings.substr(padded, frame + 10, own), tf.strings.substr(padded, 13, shared))
    around = tf.strings.substr(table + grey + b"\0" * len(_GREYS), 3 * transparent, 3)
    return tf.strings.join(alone), box[1::-1], picture[::-1], tf.io.decode_raw(around, tf.uint8)[:3]


def _gif(encoded):
    alone, start, shape, around = first_frame(encoded)
    alone = _within(alone, tf.reduce_prod(tf.cast(shape, tf.int64)), MAX_PIXELS // 2)
    image = tf.ensure_shape(tf.io.decode_image(alone, expand_animations=False), (None, None, 3))
    after = shape - start - tf.shape(image)[:2]
    padded = tf.pad(tf.bitwise.bitwise_xor(image, around), [[start[0], after[0]], [start[1], after[1]], [0, 0]])
    return tf.bitwise.bitwise_xor(padded, around)


def _is_animated(encoded):
    """Whether a WebP is animated: TensorFlow 2.21 writes out of bounds when decoding the first frame of one."""
    flags = tf.cast(tf.io.decode_raw(_head(encoded, 20, 1), tf.uint8), tf.int32)[0]
    return (_head(encoded, 12, 4) == b"VP8X") & (tf.bitwise.bitwise_and(flags, 2) > 0)


def _webp(encoded):
    encoded = _checked(encoded, ~_is_animated(encoded), f"An animated WebP {_BY_PILLOW}")
    encoded = _within(encoded, _webp_pixels(encoded), MAX_PIXELS // 2)
    return orientation.upright(tf.io.decode_image(encoded, expand_animations=False), orientation.of_webp(encoded))


@outlined
def _other(encoded, channels):
    kinds = {b"BM": _bmp, b"GI": _gif, b"RI": _webp}
    start = tf.strings.substr(encoded, 0, 2)
    cases = [(start == magic, lambda kind=kind: kind(encoded)) for magic, kind in kinds.items()]
    image = tf.case(cases, default=lambda: tf.io.decode_image(encoded, expand_animations=False))
    return _matched(image, channels)


# First bytes -> (a test for files that `decode` refuses and Pillow reads, their name).
ODD = {
    b"\x89P": (_with_hidden_exif, "A PNG with EXIF data of an old ImageMagick"),
    b"BM": (
        lambda encoded: ~(_is_plain_bmp(encoded) & _has_length(encoded)),
        "A BMP with bit fields, RLE, 1, 4 or 16 bits per pixel, a header of OS/2, or another length than its header's",
    ),
    b"RI": (_is_animated, "An animated WebP"),
}


@outlined
def _is_odd(encoded):
    """Whether a file is an ODD one, or of a format that TensorFlow does not read."""
    start = tf.strings.substr(encoded, 0, 2)
    cases = [(start == magic, lambda is_odd=is_odd: is_odd(encoded)) for magic, (is_odd, _) in ODD.items()]
    return tf.case(cases, default=lambda: tf.constant(True))


def needs_pillow(encoded: tf.Tensor) -> tf.Tensor:
    """Whether TensorFlow cannot read an image, a scalar string tensor, that Pillow may read. True for other files."""
    no, start = (lambda: tf.constant(False)), tf.strings.substr(encoded, 0, 2)

    def unless_png():
        plain = (start == b"\x89P") & orientation.begins_with_pixels(encoded)
        return tf.cond(plain, no, lambda: _is_odd(encoded))

    return tf.cond(tf.reduce_any(start == [b"\xff\xd8", b"GI"]), no, unless_png)


def decode_bytes(encoded: tf.Tensor, channels: int) -> tf.Tensor:
    """A scalar string tensor of an encoded image -> uint8 (h, w, channels), upright.

    Raises:
        InvalidArgumentError: at run time, for an unknown format, damaged or truncated data, or more than MAX_PIXELS
            pixels (half of that unless a JPEG).
    """
    start = tf.strings.substr(encoded, 0, 2)
    kinds = {b"\xff\xd8": _jpeg, b"\x89P": _png}
    cases = [(start == magic, lambda kind=kind: kind(encoded, channels)) for magic, kind in kinds.items()]
    return tf.ensure_shape(tf.case(cases, default=lambda: _other(encoded, channels)), (None, None, channels))


def decode_image(image: tf.Tensor, channels: int = 3) -> tf.Tensor:
    """An image, encoded bytes (a scalar string tensor) or pixels (h, w, c), as pixels (h, w, channels)."""
    if image.dtype == tf.string:
        return decode_bytes(image, channels)
    if image.shape[-1] == channels:
        return image
    if (image.shape[-1], channels) == (1, 3):
        return tf.image.grayscale_to_rgb(image)
    if (image.shape[-1], channels) == (3, 1):
        return tf.image.rgb_to_grayscale(image)
    raise ValueError(f"decode(channels={channels}) got an array of {image.shape[-1]} channels.")


def _first_pixels(encoded):
    """Where a PNG's first chunk of pixels begins; its end without one."""
    size = tf.strings.length(encoded)

    def after(at):
        length = tf.io.decode_raw(tf.strings.substr(encoded, at, 4), tf.int32, little_endian=False)[0]
        return tf.minimum(at + tf.clip_by_value(length, 0, size) + 12, size)

    return tf.while_loop(
        lambda at: (at + 8 <= size) & (tf.strings.substr(encoded, at + 4, 4) != b"IDAT"),
        lambda at: [after(at)],
        [tf.minimum(33, size)],
        maximum_iterations=_PNG_MOST,
    )[0]


@outlined
def _without_palette(encoded):
    """A PNG with a palette as one whose grey values are the indices: TensorFlow would look up the colours."""
    head = tf.bitwise.bitwise_xor(
        tf.io.decode_raw(tf.strings.substr(tf.strings.substr(encoded, 0, 33) + b"\0" * 33, 0, 33), tf.uint8),
        _PALETTE_TO_GREY,
    )
    text = tf.strings.reduce_join(tf.gather(_BYTES, tf.cast(head, tf.int32)))
    return tf.strings.join([text, tf.strings.substr(encoded, _first_pixels(encoded), -1)])


def is_png(encoded: tf.Tensor) -> tf.Tensor:
    """Whether a scalar string tensor is a PNG, by its first bytes."""
    return _head(encoded, 0, 4) == b"\x89PNG"


def png_color_type(encoded: tf.Tensor) -> tf.Tensor:
    """The colour type in a PNG's header, int32: 0 grey, 2 RGB, 3 palette, 4 grey and alpha, 6 RGBA."""
    return tf.cast(tf.io.decode_raw(_head(encoded, 25, 1), tf.uint8), tf.int32)[0]


def png_bits(encoded: tf.Tensor) -> tf.Tensor:
    """The bits of a value in a PNG's header, int32."""
    return tf.cast(tf.io.decode_raw(_head(encoded, 24, 1), tf.uint8), tf.int32)[0]


def png_values(encoded: tf.Tensor) -> tf.Tensor:
    """The grey values or palette indices of a PNG of 1 to 16 bits exactly as stored, int32 (h, w, 1)."""
    encoded = tf.cond(png_color_type(encoded) == 3, lambda: _without_palette(encoded), lambda: encoded)
    # TensorFlow spreads values of fewer bits evenly over 0..65535.
    step = 65535 // (tf.bitwise.left_shift(1, png_bits(encoded)) - 1)
    return tf.cast(tf.io.decode_png(_guarded_png(encoded), channels=1, dtype=tf.uint16), tf.int32) // step


def png_colors(encoded: tf.Tensor) -> tf.Tensor:
    """The colours of an 8-bit PNG as stored, uint8 (h, w, 3), without its alpha channel."""
    return tf.io.decode_png(_guarded_png(encoded), channels=3)


def decode_mask(mask: tf.Tensor) -> tf.Tensor:
    """A mask, a PNG of grey values or with a palette (a scalar string tensor), as its stored values or indices, int32
    (h, w, 1); integers stay.

    Raises:
        InvalidArgumentError: at run time, for anything else: colours are not class numbers.
    """
    if mask.dtype != tf.string:
        return mask
    fits = is_png(mask) & tf.reduce_any(png_color_type(mask) == [0, 3])
    what = (
        "Expected a mask as a PNG of grey values or with a palette, without colour or alpha channel: save the class"
        " numbers as grey levels, or open the folder as masks:PATH with a table of the colours."
    )
    with tf.control_dependencies([tf.debugging.Assert(fits, [what])]):
        return png_values(tf.identity(mask))


def mask_of_size(mask: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """Fits the mask (h, w, 1) of an image of `size`, (2,) int32, to that size.

    Raises:
        InvalidArgumentError: at run time, if sizes differ, unless the image has more than LARGE pixels and was decoded
            at a fraction of its sides.
    """
    own = tf.shape(mask)[:2]
    reduced = tf.reduce_any([tf.reduce_all((own + ratio - 1) // ratio == size) for ratio in (2, 4)])
    fits = tf.reduce_all(own == size) | (reduced & (tf.reduce_prod(tf.cast(own, tf.int64)) > LARGE))
    hint = tf.where(
        tf.reduce_all(own == size[::-1]),
        "The mask fits the image as stored, before it is turned upright by its EXIF data: turn the mask, too, or remove"
        " that from the image.",
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
    smaller = lambda: tf.image.resize(mask, size, method="nearest")  # noqa: E731
    return tf.cond(tf.reduce_all(own == size), lambda: mask, smaller)


@op("image", "mask")
def decode(channels=3):
    """JPEG, PNG, BMP, GIF (the first frame) or WebP bytes to uint8 (h, w, channels), and mask bytes to integers.

    Pixels only have their channels converted. A mask belongs to the upright image, as viewers and annotation tools show
    it.
    """

    def apply(example):
        image = decode_image(example["image"], channels)
        if "mask" not in example:
            return {"image": image}
        return {"image": image, "mask": mask_of_size(decode_mask(example["mask"]), tf.shape(image)[:2])}

    return apply
