"""Colour: deterministic functions of one image, with PIL's values.

Pixels (h, w, c), uint8 or floats on the 0..255 scale (rounded first), become uint8 of the same shape. `c` is 1 or 3;
`saturation` and `hue` leave grey images unchanged. Parameters may be numbers or scalar tensors.

Passes over the pixels dominate the run time, so most functions make few. On uint8, `tf.where` and `tf.gather` take six
times as long as `choose`.
"""

import tensorflow as tf

from keras_vit.data.ops.op_registry import as_uint8

# PIL's weights of red, green and blue in the grey level, in 65536ths.
_LUMA = (19595, 38470, 7471)


def per_channel(values, image) -> tf.Tensor:
    """(c,) values -> (w * c,), as in `flat_rows`: broadcasting along a last axis of 3 is slow."""
    return tf.tile(values, tf.shape(image)[1:2])


def flat_rows(image: tf.Tensor) -> tf.Tensor:
    """(h, w, c) -> (h, w * c)."""
    shape = tf.shape(image)
    return tf.reshape(image, (shape[0], shape[1] * shape[2]))


def _same_shape(rows, image):
    """The inverse of `flat_rows`: (h, w * c) to the shape of `image`."""
    return tf.ensure_shape(tf.reshape(rows, tf.shape(image)), image.shape)


def _float(image):
    return tf.cast(as_uint8(image), tf.float32)


def _truncated(pixels):
    """Clips, then truncates floats to uint8, as PIL does."""
    return tf.cast(tf.clip_by_value(pixels, 0.0, 255.0), tf.uint8)


def _blend(degenerate, pixels, factor):
    """degenerate + factor * (pixels - degenerate): 0 gives `degenerate`, 1 the pixels; above 1 extrapolates."""
    return _truncated(degenerate + tf.cast(factor, tf.float32) * (pixels - degenerate))


def _gray_levels(pixels):
    """Float pixels -> integral grey levels, repeated in each channel: (h, w, c)."""
    channels = pixels.shape[-1]
    if channels == 1:
        return pixels
    if channels != 3:
        raise ValueError(f"Expected an image of 1 or 3 channels, got {channels}: add decode(3) or decode(1) before.")
    weights = tf.constant([[w / 65536] * 3 for w in _LUMA], tf.float32)  # one product for all three channels
    levels = tf.matmul(tf.reshape(pixels, (-1, 3)), weights)
    return tf.reshape(tf.floor(levels + 0.5), tf.shape(pixels))


def grayscale(image: tf.Tensor) -> tf.Tensor:
    """Sets each channel to the grey level, .299 red + .587 green + .114 blue."""
    return tf.ensure_shape(tf.cast(_gray_levels(_float(image)), tf.uint8), image.shape)


def brightness(image: tf.Tensor, factor) -> tf.Tensor:
    """Scales brightness: factor 0 gives black, 1 the image."""
    return _truncated(_float(image) * tf.cast(factor, tf.float32))


def contrast(image: tf.Tensor, factor) -> tf.Tensor:
    """Scales contrast: factor 0 gives the mean grey level everywhere, 1 the image."""
    pixels = _float(image)
    mean = tf.floor(tf.reduce_mean(_gray_levels(pixels)) + 0.5)
    return _blend(mean, pixels, factor)


def saturation(image: tf.Tensor, factor) -> tf.Tensor:
    """Scales saturation: factor 0 gives the grey image, 1 the image. PIL and AutoAugment call this Color."""
    pixels = _float(image)
    return tf.ensure_shape(_blend(_gray_levels(pixels), pixels, factor), image.shape)


def hue(image: tf.Tensor, turn) -> tf.Tensor:
    """Rotates the hue by `turn` of the colour circle, -0.5 to 0.5."""
    if image.shape[-1] == 1:
        return as_uint8(image)
    return as_uint8(tf.image.adjust_hue(_float(image), turn))


def sharpness(image: tf.Tensor, factor) -> tf.Tensor:
    """Factor 0 smooths by (1 1 1, 1 5 1, 1 1 1) / 13, 1 gives the image. Border pixels stay, as in PIL."""
    image, channels = as_uint8(image), image.shape[-1]
    pixels = _float(image)
    weights = tf.constant([[1, 1, 1], [1, 5, 1], [1, 1, 1]], tf.float32)[:, :, None, None]
    sums = tf.nn.depthwise_conv2d(pixels[None], tf.tile(weights, (1, 1, channels, 1)), (1, 1, 1, 1), "VALID")[0]
    sharp = _blend(tf.round(sums / 13.0), pixels[1:-1, 1:-1], factor)
    rows = tf.concat([image[1:-1, :1], sharp, image[1:-1, -1:]], 1)
    return tf.ensure_shape(tf.concat([image[:1], rows, image[-1:]], 0), image.shape)


def invert(image: tf.Tensor) -> tf.Tensor:
    """Returns 255 - image."""
    return 255 - as_uint8(image)


def posterize(image: tf.Tensor, bits) -> tf.Tensor:
    """Keeps the highest `bits` of each pixel (at least one) and zeroes the rest."""
    shift = tf.cast(8 - tf.clip_by_value(tf.cast(bits, tf.int32), 1, 8), tf.uint8)
    mask = tf.bitwise.left_shift(tf.constant(255, tf.uint8), shift)
    return tf.bitwise.bitwise_and(as_uint8(image), mask)


def _reaches(image, threshold):
    """Whether each uint8 pixel is at least `threshold`, any integer."""
    return tf.cast(image, tf.int16) >= tf.cast(threshold, tf.int16)


def choose(mask, chosen, image) -> tf.Tensor:
    """Selects `chosen` where `mask` is true, else `image`, all of one shape. Unlike tf.where, it does not broadcast."""
    return tf.raw_ops.Select(condition=mask, x=chosen, y=image)


def solarize(image: tf.Tensor, threshold=128) -> tf.Tensor:
    """Inverts pixels at or above `threshold`."""
    image = as_uint8(image)
    return choose(_reaches(image, threshold), 255 - image, image)


def solarize_add(image: tf.Tensor, addition, threshold=128) -> tf.Tensor:
    """Adds `addition`, 0 to 255, to pixels below `threshold`, saturating at white."""
    image = as_uint8(image)
    addition = tf.cast(tf.clip_by_value(tf.cast(addition, tf.int32), 0, 255), tf.uint8)
    return choose(_reaches(image, threshold), image, tf.minimum(image, 255 - addition) + addition)


def autocontrast(image: tf.Tensor) -> tf.Tensor:
    """Stretches each channel to 0..255; constant channels stay."""
    image = as_uint8(image)
    low, high = (tf.cast(extreme(image, axis=(0, 1)), tf.float32) for extreme in (tf.reduce_min, tf.reduce_max))
    flat = high <= low
    scale = tf.where(flat, 1.0, 255.0 / tf.where(flat, 1.0, high - low))
    offset = tf.where(flat, 0.0, -low * scale)
    stretched = tf.cast(flat_rows(image), tf.float32) * per_channel(scale, image) + per_channel(offset, image)
    return _same_shape(_truncated(stretched), image)


def equalize(image: tf.Tensor) -> tf.Tensor:
    """Equalizes each channel's histogram (PIL's ImageOps.equalize)."""
    image, channels = as_uint8(image), image.shape[-1]
    start = 256 * tf.range(channels)
    place = tf.cast(flat_rows(image), tf.int32) + per_channel(start, image)
    counts = tf.math.bincount(tf.reshape(place, [-1]), minlength=256 * channels, maxlength=256 * channels)
    counts = tf.reshape(counts, (channels, 256))
    highest = tf.cast(tf.reduce_max(image, axis=(0, 1)), tf.int32)
    others = tf.reduce_sum(counts, axis=1) - tf.gather(counts, highest, batch_dims=1)
    step = (others // 255)[:, None]
    spread = (step // 2 + tf.cumsum(counts, axis=1, exclusive=True)) // tf.maximum(step, 1)
    table = tf.where(step == 0, tf.range(256)[None], tf.minimum(spread, 255))
    return _same_shape(tf.gather(tf.cast(tf.reshape(table, [-1]), tf.uint8), place), image)


def gaussian_blur(image: tf.Tensor, sigma, radius) -> tf.Tensor:
    """Applies a Gaussian blur of standard deviation `sigma`, truncated at `radius` pixels (an int); borders reflect."""
    pixels, channels = _float(image)[None], image.shape[-1]
    distance = tf.range(-radius, radius + 1, dtype=tf.float32)
    taps = tf.exp(-0.5 * tf.square(distance / tf.cast(sigma, tf.float32)))
    taps = tf.tile((taps / tf.reduce_sum(taps))[:, None], (1, channels))
    pixels = tf.pad(pixels, [[0, 0], [radius, radius], [radius, radius], [0, 0]], "REFLECT")
    for shape in ((2 * radius + 1, 1, channels, 1), (1, 2 * radius + 1, channels, 1)):
        pixels = tf.nn.depthwise_conv2d(pixels, tf.reshape(taps, shape), (1, 1, 1, 1), "VALID")
    return tf.ensure_shape(as_uint8(pixels[0]), image.shape)
