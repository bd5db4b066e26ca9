"""The orientation of a JPEG, PNG or WebP, from its EXIF or else its XMP data, in TensorFlow ops.

EXIF data (Exif 2.32, 4.5.4 and 4.6.4) is a TIFF file, whose first directory has the tag 0x0112. It lies in a JPEG's
segment APP1 after "Exif" and two zeros, in a PNG's chunk eXIf, and in a WebP's chunk EXIF. XMP data is text.
"""

import tensorflow as tf

from keras_vit.data.ops.branches import outlined

_TAG = 0x0112
_ENTRY = 12  # bytes: the tag (2), the value's type (2), the number of values (4), the value (4)
_METADATA = 2**16  # first bytes of a JPEG, and first and last ones of a PNG, that are searched
# What comes before the TIFF file; in the text of a pattern \C is any byte.
_BEFORE = {"JPEG": r"Exif\x00\x00", "PNG": "eXIf", "WebP": r"EXIF\C{4}(?:Exif\x00\x00)?"}
_XMP = r'tiff:Orientation(?:="|>)'
_JFIF = b"\xff\xe0\0\x10"  # the start of a segment of 16 bytes
_TABLES = [b"\xff\xdb", b"\xff\xc0", b"\xff\xc2", b"\xff\xc4"]


def _first_bytes(text, size):
    """The first `size` bytes, (n,) int32, of a scalar string tensor."""
    return tf.cast(tf.io.decode_raw(tf.strings.substr(text, 0, size), tf.uint8), tf.int32)


def contains(text: tf.Tensor, literal: str) -> tf.Tensor:
    """Whether `text`, a scalar string tensor, contains `literal`, which has no special characters of patterns.

    Replacing finds a literal at 2 GB/s or more; matching a pattern takes ten times as long.
    """
    rest = tf.strings.regex_replace(text, literal, "", replace_global=False)
    return tf.strings.length(rest) < tf.strings.length(text)


def _after(text, pattern):
    """What follows the first match of `pattern` in `text`, all of it without a match."""
    return tf.strings.regex_replace(text, rf"^\C*?{pattern}", "", replace_global=False)


def _by_exif(tiff):
    """The value of the tag in a TIFF file, 0 if there is none."""
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
    """The digit that follows the tag's name in XMP data, 0 if there is none."""
    digit = tf.io.decode_raw(tf.strings.substr(_after(text, _XMP) + b"0", 0, 1), tf.uint8)[0]
    return tf.cast(digit, tf.int32) - ord("0")


@outlined
def _by_metadata(text, kind):
    """The orientation, 1 to 8, in the bytes of an image of format `kind`."""
    tiff = _after(text, _BEFORE[kind])
    start = tf.strings.substr(tiff, 0, 4)
    value = tf.cond((start == b"II*\0") | (start == b"MM\0*"), lambda: _by_exif(tiff), lambda: tf.constant(0))
    value = tf.cond((value == 0) & contains(text, "tiff:Orientation"), lambda: _by_xmp(text), lambda: value)
    return tf.where((value >= 1) & (value <= 8), value, 1)


def _if_any(text, kind):
    """`_by_metadata`, after a quick look for metadata in `text`."""
    found = contains(text, {"JPEG": r"Exif\x00\x00", "PNG": "eXIf"}[kind]) | contains(text, "tiff:Orientation")
    return tf.cond(found, lambda: _by_metadata(text, kind), lambda: tf.constant(1))


def of_jpeg(encoded: tf.Tensor) -> tf.Tensor:
    """The orientation, 1 (upright) to 8, of a JPEG, a scalar string tensor; 1 if it has no legible one.

    Most files have no metadata but JFIF's 16-byte segment: a table comes first, or second after that.
    """
    head = tf.strings.substr(encoded, 0, 22) + b"\0" * 22
    first, second = tf.strings.substr(head, 2, 4), tf.strings.substr(head, 20, 2)
    plain = (first == _JFIF) & tf.reduce_any(second == _TABLES)
    metadata = lambda: _if_any(tf.strings.substr(encoded, 0, _METADATA), "JPEG")  # noqa: E731
    return tf.cond(plain, lambda: tf.constant(1), metadata)


def begins_with_pixels(encoded: tf.Tensor) -> tf.Tensor:
    """Whether a PNG, a scalar string tensor, has its pixels right after its header."""
    return tf.strings.substr(tf.strings.substr(encoded, 0, 41) + b"\0" * 41, 37, 4) == b"IDAT"


def is_bare_png(encoded: tf.Tensor) -> tf.Tensor:
    """Whether a PNG, a scalar string tensor, has nothing but its header, one chunk of pixels, and its end."""
    length = tf.io.decode_raw(
        tf.strings.substr(tf.strings.substr(encoded, 0, 37) + b"\0" * 37, 33, 4), tf.int32, False
    )[0]
    return begins_with_pixels(encoded) & (tf.strings.length(encoded) - 57 == length)


def png_metadata(encoded: tf.Tensor) -> tf.Tensor:
    """The parts of a PNG, a scalar string tensor, that may hold metadata: it comes before the pixels or after them."""
    size = tf.strings.length(encoded)
    bare = begins_with_pixels(encoded)
    before = tf.where(bare, 0, tf.minimum(size, _METADATA))
    after = tf.maximum(before, size - tf.where(bare, _METADATA // 4, _METADATA))
    return tf.strings.substr(encoded, 0, before) + tf.strings.substr(encoded, after, size - after)


def of_png(encoded: tf.Tensor) -> tf.Tensor:
    """The orientation, 1 (upright) to 8, of a PNG, a scalar string tensor; 1 if it has no legible one."""
    return _if_any(png_metadata(encoded), "PNG")


def of_webp(encoded: tf.Tensor) -> tf.Tensor:
    """The orientation, 1 (upright) to 8, of a WebP, a scalar string tensor; 1 if it has no legible one."""
    head = tf.io.decode_raw(tf.strings.substr(encoded, 0, 21) + b"\0" * 21, tf.uint8)
    plain = (tf.strings.substr(encoded, 12, 4) != b"VP8X") | (tf.bitwise.bitwise_and(head[20], 12) == 0)
    return tf.cond(plain, lambda: tf.constant(1), lambda: _by_metadata(encoded, "WebP"))


def upright(image: tf.Tensor, orientation: tf.Tensor) -> tf.Tensor:
    """Stored pixels (h, w, c) turned and mirrored upright; orientations 5 to 8 exchange h and w."""

    def turned():
        transposed = tf.cond(orientation >= 5, lambda: tf.transpose(image, (1, 0, 2)), lambda: image)
        upside_down = tf.reduce_any(orientation == [3, 4, 7, 8])
        mirrored = tf.reduce_any(orientation == [2, 3, 6, 7])
        return tf.reverse(transposed, tf.boolean_mask([0, 1], tf.stack([upside_down, mirrored])))

    return tf.cond(orientation == 1, lambda: image, turned)
