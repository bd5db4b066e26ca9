"""RGB to hue, saturation and value and back, each 0 to 1, as scikit-image's."""

import tensorflow as tf


def hsv_of(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Pixels (h, w, 3) -> hue, saturation, value, each (h, w)."""
    red, green, blue = tf.unstack(x, axis=-1)
    value = tf.reduce_max(x, -1)
    delta = value - tf.reduce_min(x, -1)
    grey = tf.equal(delta, 0)
    whole = tf.where(grey, tf.ones_like(delta), delta)
    hue = tf.where(red == value, (green - blue) / whole, tf.zeros_like(value))
    hue = tf.where(green == value, 2 + (blue - red) / whole, hue)
    hue = tf.where(blue == value, 4 + (red - green) / whole, hue)
    return tf.where(grey, tf.zeros_like(hue), (hue / 6) % 1), tf.math.divide_no_nan(delta, value), value


def rgb_of(hue: tf.Tensor, saturation: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    """The inverse of hsv_of: (h, w, 3)."""
    sector = tf.floor(hue * 6)
    f = hue * 6 - sector
    p, q, t = value * (1 - saturation), value * (1 - f * saturation), value * (1 - (1 - f) * saturation)
    sectors = [(value, t, p), (q, value, p), (p, value, t), (p, q, value), (t, p, value), (value, p, q)]
    every = tf.stack([tf.stack(channels, -1) for channels in sectors], -2)  # (h, w, 6, 3)
    return tf.gather(every, tf.cast(sector, tf.int32) % 6, batch_dims=2)
