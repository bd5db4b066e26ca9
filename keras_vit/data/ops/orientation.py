"""Reads the orientation of a JPEG, PNG or WebP from its EXIF or else its XMP data, in TensorFlow ops.

EXIF data (Exif 2.32, 4.5.4 and 4.6.4) is a TIFF file with the tag 0x0112 in its first directory. It is stored in a
JPEG's segment APP1 after "Exif" and two zeros, in a PNG's chunk eXIf, and in a WebP's chunk EXIF. XMP data is text.
"""

import tensorflow as tf

from keras_vit.data.ops.branches import outlined

_TAG = 0x0112
_ENTRY = 12  # bytes: the tag (2), the value's type (2), the number of values (4), the value (4)
_METADATA = 2**16  # bytes to search at the start of a JPEG, and at the start and end of a PNG
# Patterns that precede the TIFF file; \C matches any byte.
_BEFORE = {"JPEG": r"Exif\x00\x00", "PNG": "eXIf", "WebP": r"EXIF\C{4}(?:Exif\x00\x00)?"}
_XMP = r'tiff:Orientation(?:="|>)'
_JFIF = b"\xff\xe0\0\x10"  # the start of a segment of 16 bytes
_TABLES = [b"\xff\xdb", b"\xff\xc0", b"\xff\xc2", b"\xff\xc4"]


def _first_bytes(text, size):
    """Returns the first `size` bytes, (n,) int32, of a scalar string tensor."""
    return tf.cast(tf.io.decode_raw(tf.strings.substr(text, 0, size), tf.uint8), tf.int32)


def contains(text: tf.Tensor, literal: str) -> tf.Tensor:
    """Whether `text`, a scalar string tensor, contains `literal`, a pattern without special characters.

    Replacing searches at 2 GB/s or more; matching takes ten times as long.
    """
    rest = tf.strings.regex_replace(text, literal, "", replace_global=False)
    return tf.strings.length(rest) < tf.strings.length(text)


def _after(text, pattern):
    """Returns the part of `text` after the first match of `pattern`, or all of `text` without a match."""
    return tf.strings.regex_replace(text, rf"^\C*?{pattern}", "", replace_global=False)


def _by_exif(tiff):
    """Returns the tag's value in a TIFF file, or 0."""
    raw = _first_bytes(tiff + b"\0" * 16, 2**16)
    little = raw[0] == ord("I")

    def number(digits):
        """(..., n) bytes -> (...) integers."""
        digits = tf.cond(little, lambda: tf.reverse(digits, [-1]), lambda: digits)
        return tf.reduce_sum(digits * [256**i for i in reversed(range(digits.shape[-1]))], -1)

    directory = tf.minimum(tf.maximum(number(tf.ensure_shape(raw[4:8], (4,))), 0), tf.size(raw) - 2)
    first = directory + 2
    count = tf.minimum(number(tf.ensure_shape(raw[directory:first], (2,))), (tf.size(raw) - first) // _ENTRY)
    entries = tf.reshape(raw[first : first + count * _ENTRY], (-1, _ENTRY))
    values = tf.boolean_mask(number(entries[:, 8:10]), number(entries[:, :2]) == _TAG)
    return tf.concat([values, [0]], 0)[0]


def _by_xmp(text):
    """Returns the digit after the tag's name in XMP data, or 0."""
    digit = tf.io.decode_raw(tf.strings.substr(_after(text, _XMP) + b"0", 0, 1), tf.uint8)[0]
    return tf.cast(digit, tf.int32) - ord("0")


@outlined
def _by_metadata(text, kind):
    """Reads the orientation, 1 to 8, from the bytes of an image of format `kind`."""
    tiff = _after(text, _BEFORE[kind])
    start = tf.strings.substr(tiff, 0, 4)
    value = tf.cond((start == b"II*\0") | (start == b"MM\0*"), lambda: _by_exif(tiff), lambda: tf.constant(0))
    value = tf.cond((value == 0) & contains(text, "tiff:Orientation"), lambda: _by_xmp(text), lambda: value)
    return tf.where((value >= 1) & (value <= 8), value, 1)


def _if_any(text, kind):
    """Like `_by_metadata`, but first searches `text` for metadata, which is faster."""
    found = contains(text, {"JPEG": r"Exif\x00\x00", "PNG": "eXIf"}[kind]) | contains(text, "tiff:Orientation")
    return tf.cond(found, lambda: _by_metadata(text, kind), lambda: tf.constant(1))


def of_jpeg(encoded: tf.Tensor) -> tf.Tensor:
    """Reads the orientation, 1 (upright) to 8, of a JPEG, a scalar string tensor; 1 without a valid one.

    Most files have at most JFIF's 16-byte segment before their first table.
    """
    head = tf.strings.substr(encoded, 0, 22) + b"\0" * 22
    first, second = tf.strings.substr(head, 2, 4), tf.strings.substr(head, 20, 2)
    plain = (first == _JFIF) & tf.reduce_any(second == _TABLES)

    def metadata():
        return _if_any(tf.strings.substr(encoded, 0, _METADATA), "JPEG")

    return tf.cond(plain, lambda: tf.constant(1), metadata)


def begins_with_pixels(encoded: tf.Tensor) -> tf.Tensor:
    """Whether a PNG, a scalar string tensor, has its pixels right after its header."""
    return tf.strings.substr(tf.strings.substr(encoded, 0, 41) + b"\0" * 41, 37, 4) == b"IDAT"


def is_bare_png(encoded: tf.Tensor) -> tf.Tensor:
    """Whether a PNG, a scalar string tensor, consists of its header, one pixel chunk and its end."""
    length = tf.io.decode_raw(
        tf.strings.substr(tf.strings.substr(encoded, 0, 37) + b"\0" * 37, 33, 4), tf.int32, False
    )[0]
    return begins_with_pixels(encoded) & (tf.strings.length(encoded) - 57 == length)


def png_metadata(encoded: tf.Tensor) -> tf.Tensor:
    """Returns the parts of a PNG, a scalar string tensor, that may contain metadata: before or after its pixels."""
    size = tf.strings.length(encoded)
    bare = begins_with_pixels(encoded)
    before = tf.where(bare, 0, tf.minimum(size, _METADATA))
    after = tf.maximum(before, size - tf.where(bare, _METADATA // 4, _METADATA))
    return tf.strings.substr(encoded, 0, before) + tf.strings.substr(encoded, after, size - after)


def of_png(encoded: tf.Tensor) -> tf.Tensor:
    """Reads the orientation, 1 (upright) to 8, of a PNG, a scalar string tensor; 1 without a valid one."""
    return _if_any(png_metadata(encoded), "PNG")


def of_webp(encoded: tf.Tensor) -> tf.Tensor:
    """Reads the orientation, 1 (upright) to 8, of a WebP, a scalar string tensor; 1 without a valid one."""
    head = tf.io.decode_raw(tf.strings.substr(encoded, 0, 21) + b"\0" * 21, tf.uint8)
    plain = (tf.strings.substr(encoded, 12, 4) != b"VP8X") | (tf.bitwise.bitwise_and(head[20], 12) == 0)
    return tf.cond(plain, lambda: tf.constant(1), lambda: _by_metadata(encoded, "WebP"))


def upright(image: tf.Tensor, orientation: tf.Tensor) -> tf.Tensor:
    """Turns and mirrors stored pixels (h, w, c) upright; orientations 5 to 8 swap h and w."""

    def turned():
        transposed = tf.cond(orientation >= 5, lambda: tf.transpose(image, (1, 0, 2)), lambda: image)
        upside_down = tf.reduce_any(orientation == [3, 4, 7, 8])
        mirrored = tf.reduce_any(orientation == [2, 3, 6, 7])
        return tf.reverse(transposed, tf.boolean_mask([0, 1], tf.stack([upside_down, mirrored])))

    return tf.cond(orientation == 1, lambda: image, turned)
