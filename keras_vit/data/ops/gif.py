"""The first frame of a GIF, found among its blocks: TensorFlow would decode all frames of an animation, of whatever
size, and return the first one.

Source: the specification of GIF89a. A header and the screen, 13 bytes, and perhaps a table of colours; then blocks:
extensions, frames, the end. The data of a block are chunks: a byte with the size, and as many bytes as it says; the
size 0 ends them.
"""

import tensorflow as tf

from keras_vit.data.ops.branches import outlined

_EXTENSION, _FRAME = 0x21, 0x2C  # the first bytes of blocks
_MOST = 10_000  # steps of a walk; chunks are written at full size, and a frame is a few steps
_RUN = 4096  # chunks that one step passes at most


def _table(flags):
    """How many bytes the table of colours has that `flags` announce."""
    return tf.where(flags >= 128, tf.bitwise.left_shift(6, tf.bitwise.bitwise_and(flags, 7)), 0)


def _first(data, size):
    """Where the first frame of a GIF of `size` bytes begins and ends in `data`, which has zeros after it, and whether
    it was found.
    """
    byte = lambda at: tf.cast(data[at], tf.int32)  # noqa: E731

    def chunks(at, frame):
        """Passes chunks of one size, as far as they follow each other."""
        step = byte(at) + 1
        alike = data[at : at + _RUN * step : step] == data[at]
        passed = tf.reduce_sum(tf.math.cumprod(tf.cast(alike, tf.int32)))
        return tf.where(step > 1, at + passed * step, at + 1), frame, step > 1

    def block(at, frame):
        """Passes the head of a block; behind any that is no extension and no frame there is nothing to read."""
        kind = byte(at)
        head = tf.where(kind == _FRAME, 11 + _table(byte(at + 9)), tf.where(kind == _EXTENSION, 2, size))
        return at + head, tf.where(kind == _FRAME, at, frame), tf.constant(True)

    at, frame, inside = tf.while_loop(
        lambda at, frame, inside: (at < size) & (inside | (frame < 0)),
        lambda at, frame, inside: tf.cond(inside, lambda: chunks(at, frame), lambda: block(at, frame)),
        (13 + _table(byte(10)), tf.constant(-1), tf.constant(False)),
        maximum_iterations=_MOST,
    )
    return frame, at, (frame >= 0) & ~inside & (at <= size)


@outlined
def first_frame(encoded: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The first frame of a GIF, a scalar string tensor.

    Returns:
        (a GIF of that frame alone, its (top, left) int32 in the picture that viewers show, the (height, width) int32 of
        that picture).

    Raises:
        InvalidArgumentError: at run time, if there is no whole frame.
    """
    padded = encoded + b"\0" * 32
    frame, end, found = _first(tf.io.decode_raw(padded, tf.uint8), tf.strings.length(encoded))
    with tf.control_dependencies(
        [tf.debugging.Assert(found, ["The GIF is damaged or cut short: it has no whole frame."])]
    ):
        frame = tf.identity(frame)
    numbers = lambda at, size: tf.cast(tf.io.decode_raw(tf.strings.substr(padded, at, size), tf.uint16), tf.int32)  # noqa: E731
    box, screen = numbers(frame + 1, 8), numbers(6, 4)  # (left, top, width, height), (width, height)
    picture = tf.maximum(screen, box[:2] + box[2:])
    # At 0, 0: TensorFlow takes the frame for the whole picture, and would cut off what is further right and below.
    alone = [
        tf.strings.substr(encoded, 0, frame + 1),
        b"\0" * 4,
        tf.strings.substr(encoded, frame + 5, end - frame - 5),
        b";",
    ]
    return tf.strings.join(alone), box[1::-1], picture[::-1]
