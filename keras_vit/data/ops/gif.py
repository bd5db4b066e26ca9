"""The first frame of a GIF, found by its blocks: TensorFlow would decode all frames."""

import tensorflow as tf

from keras_vit.data.ops.branches import outlined
from keras_vit.data.ops.headers import checked

# GIF89a: header and screen (13 bytes), an optional colour table, then blocks: extensions, frames, the end. A block's
# data are chunks: a size byte, then that many bytes; size 0 ends them.
_GIF_EXTENSION, _GIF_FRAME = 0x21, 0x2C  # the first bytes of blocks
_GIF_CONTROL = 0xF9  # the second byte of the extension that may define a transparent colour
_GREYS = bytes(level for level in range(256) for _ in range(3))  # the palette of a GIF without one
_GIF_MOST = 10_000  # steps, at most; chunks are usually full, so a frame takes few
_GIF_RUN = 4096  # chunks per step, at most


def _gif_table(flags):
    """Returns the size in bytes of the colour table that `flags` announces."""
    return tf.where(flags >= 128, tf.bitwise.left_shift(6, tf.bitwise.bitwise_and(flags, 7)), 0)


def _gif_frame(data, size):
    """Returns (start, end, found, control) of the first frame of a GIF: `size` bytes of the zero-padded `data`.

    `control` is the start of the last graphic control extension before the frame, or 0.
    """

    def byte(at):
        return tf.cast(data[at], tf.int32)

    def chunks(at, frame, control):
        """Skips consecutive chunks of one size."""
        step = byte(at) + 1
        alike = data[at : at + _GIF_RUN * step : step] == data[at]
        passed = tf.reduce_sum(tf.math.cumprod(tf.cast(alike, tf.int32)))
        return tf.where(step > 1, at + passed * step, at + 1), frame, control, step > 1

    def block(at, frame, control):
        """Skips the head of a block; blocks other than extensions and frames end the walk."""
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
    """Extracts the first frame of a GIF, a scalar string tensor.

    Returns:
        (a GIF of that frame alone, its (top, left) int32 on the canvas, the canvas's (height, width) int32, the colour
        (3,) uint8 around it: the transparent colour, as Pillow shows it, or else the palette's first).

    Raises:
        InvalidArgumentError: at run time, without a complete frame.
    """
    padded = encoded + b"\0" * 1024
    data = tf.io.decode_raw(padded, tf.uint8)
    frame, end, found, control = _gif_frame(data, tf.strings.length(encoded))
    frame = checked(frame, found, "The GIF is damaged or truncated: it has no complete frame.")

    def byte(at):
        return tf.cast(data[at], tf.int32)

    def numbers(at, size):
        return tf.cast(tf.io.decode_raw(tf.strings.substr(padded, at, size), tf.uint16), tf.int32)

    box, screen = numbers(frame + 1, 8), numbers(6, 4)  # (left, top, width, height), (width, height)
    picture = tf.maximum(screen, box[:2] + box[2:])
    shared, local = _gif_table(byte(10)), _gif_table(byte(frame + 9))
    grey = tf.strings.substr(_GREYS, 0, tf.where(shared + local > 0, 0, len(_GREYS)))  # without a palette
    # Without extensions: TensorFlow would show a transparent colour as black. At 0, 0: TensorFlow sizes the canvas by
    # the frame, and would cut off pixels further right or below.
    alone = [
        tf.strings.substr(padded, 0, 10),
        tf.where(shared + local > 0, tf.strings.substr(padded, 10, 1), b"\xf7"),
        tf.strings.substr(padded, 11, 2 + shared),
        grey,
        b"\x2c" + b"\0" * 4,
        tf.strings.substr(encoded, frame + 5, end - frame - 5),
        b";",
    ]
    transparent = tf.where((control > 0) & (byte(control + 3) % 2 == 1), byte(control + 6), 0)
    table = tf.where(local > 0, tf.strings.substr(padded, frame + 10, local), tf.strings.substr(padded, 13, shared))
    around = tf.strings.substr(table + grey + b"\0" * len(_GREYS), 3 * transparent, 3)
    return tf.strings.join(alone), box[1::-1], picture[::-1], tf.io.decode_raw(around, tf.uint8)[:3]
