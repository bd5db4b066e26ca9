"""The orientation that a camera writes into a JPEG's EXIF data, and turning the image upright by it. In a graph, on
encoded bytes.

Source: Exif 2.32, 4.5.4 and 4.6.4: segment APP1 holds "Exif", two zeros and a TIFF file, whose first directory has the
tag 0x0112.
"""

import tensorflow as tf

from keras_vit.data.ops.branches import outlined

_MARK = b"Exif\0\0"
_TAG = 0x0112
_OFFSETS = (6, 24)  # of the mark, where the segment is the first or the second
_ENTRY = 12  # bytes: the tag (2), the value's type (2), the number of values (4), the value (4)


def _bytes(text, size):
    """The first `size` bytes (n,) int32 of a scalar string tensor."""
    return tf.cast(tf.io.decode_raw(tf.strings.substr(text, 0, size), tf.uint8), tf.int32)


@outlined
def _of_tiff(tiff):
    """The value of the orientation tag of a TIFF file, 1 if there is none."""
    raw = _bytes(tiff + b"\0" * 16, 2**16)
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
    value = tf.concat([values, [1]], 0)[0]
    return tf.where((value >= 1) & (value <= 8), value, 1)


def orientation(encoded: tf.Tensor) -> tf.Tensor:
    """The orientation, 1 (upright) to 8, of a scalar string tensor that holds a JPEG; 1 without a legible one.

    The segment is looked for where the standard and cameras put it: first, or after JFIF's segment of 16 bytes.
    """
    head = tf.strings.substr(encoded, 0, _OFFSETS[1] + len(_MARK)) + b"\0" * (_OFFSETS[1] + len(_MARK))
    matches = tf.strings.substr(head, _OFFSETS, [len(_MARK)] * 2) == _MARK
    start = tf.where(matches[0], *_OFFSETS) + len(_MARK)
    none = lambda: tf.constant(1)  # noqa: E731
    return tf.cond(tf.reduce_any(matches), lambda: _of_tiff(tf.strings.substr(encoded, start, 2**16)), none)


def upright(image: tf.Tensor, orientation: tf.Tensor) -> tf.Tensor:
    """Stored pixels (h, w, c), turned and mirrored as they are meant to be seen; orientations 5 to 8 exchange h and
    w.
    """
    image = tf.cond(orientation >= 5, lambda: tf.transpose(image, (1, 0, 2)), lambda: image)
    upside_down = tf.reduce_any(orientation == [3, 4, 7, 8])
    mirrored = tf.reduce_any(orientation == [2, 3, 6, 7])
    return tf.reverse(image, tf.boolean_mask([0, 1], tf.stack([upside_down, mirrored])))
