"""decode|random_resized_crop in one: of a JPEG only the window is decoded.

The pixels are those of the two ops one after the other, but for one or two columns at the window's border, where colour is not
interpolated beyond it. A window of twice the target or more is decoded at a half, a quarter or an eighth of its size, which JPEG's blocks
allow: its borders lie on a coarser grid then.
"""

import tensorflow as tf

from keras_vit.data.apart import apart
from keras_vit.data.decode import decode, header
from keras_vit.data.geometry import pair, random_resized_crop, resized_window, sampled_window


def _read_window(encoded, begin, extent, channels, fraction=1):
    """The pixels of a window of a JPEG, whose sides are divided by `fraction`: 1, 2, 4 or 8."""
    window = tf.concat([begin // fraction, extent // fraction], 0)
    # Exact, as in decode.py; the faster transforms gain nothing measurable here.
    return tf.image.decode_and_crop_jpeg(encoded, window, channels=channels, ratio=fraction, dct_method="INTEGER_ACCURATE")


@apart
def _read_smaller(encoded, begin, extent, channels, times):
    """A window that is `times` the target or more, 2 at least, at the smallest size that is no less than the target."""
    read = lambda fraction: lambda: _read_window(encoded, begin, extent, channels, fraction)  # noqa: E731
    return tf.case([(times >= fraction, read(fraction)) for fraction in (8, 4)], default=read(2))


def decode_and_crop(decode_arguments, crop_arguments):
    """(encoded bytes or an array, seed) -> the crop (height, width, channels).

    Args:
        decode_arguments, crop_arguments: dicts of the parameters of the two ops, with defaults filled in.
    """
    channels = decode_arguments["channels"]
    size = pair(crop_arguments["height"], crop_arguments["width"])
    scale, ratio, method = (crop_arguments[name] for name in ("scale", "ratio", "method"))
    whole, crop = decode(**decode_arguments), random_resized_crop(**crop_arguments)

    def from_jpeg(encoded, shape, seed):
        begin, extent = sampled_window(shape, seed, scale, ratio)
        times = tf.reduce_min(extent // size)
        smaller = lambda: _read_smaller(encoded, begin, extent, channels, times)  # noqa: E731
        window = tf.cond(times >= 2, smaller, lambda: _read_window(encoded, begin, extent, channels))
        return resized_window(tf.ensure_shape(window, (None, None, channels)), size, method)

    def apply(image, seed):
        separately = lambda: crop(whole(image), seed)  # noqa: E731
        if image.dtype != tf.string:
            return separately()
        none = lambda: (tf.zeros((3,), tf.int32), tf.constant(0), tf.constant(False))  # noqa: E731
        shape, _, plain = tf.cond(tf.io.is_jpeg(image), lambda: header(image), none)
        return tf.cond(plain, lambda: from_jpeg(image, shape, seed), separately)

    return apply
