"""Colour: deterministic functions of one image, whose values are PIL's.

Each takes pixels (h, w, c), uint8 or a float on the 0..255 scale, which is rounded first, and returns uint8 of the same shape. `c` is 1 or
3; a grey image has no colour to change, so that `saturation` and `hue` return it as it is. Parameters may be numbers or scalar tensors.

Most are arithmetic in few passes, as the time goes into passes: `tf.where` on uint8 costs six of `choose`'s, `tf.gather` as many.
"""

import tensorflow as tf

# What PIL weighs red, green and blue by for the grey level, in 65536ths.
_LUMA = (19595, 38470, 7471)


def as_uint8(image):
    """`image` rounded to uint8; uint8 passes."""
    if image.dtype == tf.uint8:
        return image
    return tf.cast(tf.clip_by_value(tf.round(tf.cast(image, tf.float32)), 0.0, 255.0), tf.uint8)


def per_channel(values, image):
    """(c,) values -> (w * c,), to meet the rows of `flat_rows`: broadcasting along a last axis of 3 is slow."""
    return tf.tile(values, tf.shape(image)[1:2])


def flat_rows(image):
    """(h, w, c) -> (h, w * c)."""
    shape = tf.shape(image)
    return tf.reshape(image, (shape[0], shape[1] * shape[2]))


def _same_shape(rows, image):
    """What `flat_rows` made flat, in the shape of `image` again."""
    return tf.ensure_shape(tf.reshape(rows, tf.shape(image)), image.shape)


def _float(image):
    return tf.cast(as_uint8(image), tf.float32)


def _truncated(pixels):
    """Floats to uint8 as PIL does: clipped, the fraction cut off."""
    return tf.cast(tf.clip_by_value(pixels, 0.0, 255.0), tf.uint8)


def _blend(degenerate, pixels, factor):
    """degenerate + factor (pixels - degenerate): 0 gives `degenerate`, 1 the pixels, more goes beyond."""
    return _truncated(degenerate + tf.cast(factor, tf.float32) * (pixels - degenerate))


def _gray_levels(pixels):
    """Float pixels (h, w, c) -> their grey levels, whole numbers, the same in each channel: (h, w, c)."""
    channels = pixels.shape[-1]
    if channels == 1:
        return pixels
    if channels != 3:
        raise ValueError(f"Expected an image of 1 or 3 channels, got {channels}: put decode(3) or decode(1) before.")
    weights = tf.constant([[w / 65536] * 3 for w in _LUMA], tf.float32)  # one product fills all three channels
    levels = tf.matmul(tf.reshape(pixels, (-1, 3)), weights)
    return tf.reshape(tf.floor(levels + 0.5), tf.shape(pixels))


def grayscale(image):
    """The grey level in each channel: .299 red + .587 green + .114 blue."""
    return tf.ensure_shape(tf.cast(_gray_levels(_float(image)), tf.uint8), image.shape)


def brightness(image, factor):
    """0 is black, 1 the image."""
    return _truncated(_float(image) * tf.cast(factor, tf.float32))


def contrast(image, factor):
    """0 is the mean grey level everywhere, 1 the image."""
    pixels = _float(image)
    mean = tf.floor(tf.reduce_mean(_gray_levels(pixels)) + 0.5)
    return _blend(mean, pixels, factor)


def saturation(image, factor):
    """0 is the grey image, 1 the image. PIL and AutoAugment call it Color."""
    pixels = _float(image)
    return tf.ensure_shape(_blend(_gray_levels(pixels), pixels, factor), image.shape)


def hue(image, turn):
    """The hue turned by a fraction of the circle, -0.5 to 0.5."""
    if image.shape[-1] == 1:
        return as_uint8(image)
    return as_uint8(tf.image.adjust_hue(_float(image), turn))


def sharpness(image, factor):
    """0 is smoothed by (1 1 1, 1 5 1, 1 1 1) / 13, 1 the image. The outermost pixels stay, as in PIL."""
    image, channels = as_uint8(image), image.shape[-1]
    pixels = _float(image)
    weights = tf.constant([[1, 1, 1], [1, 5, 1], [1, 1, 1]], tf.float32)[:, :, None, None]
    sums = tf.nn.depthwise_conv2d(pixels[None], tf.tile(weights, (1, 1, channels, 1)), (1, 1, 1, 1), "VALID")[0]
    sharp = _blend(tf.round(sums / 13.0), pixels[1:-1, 1:-1], factor)
    rows = tf.concat([image[1:-1, :1], sharp, image[1:-1, -1:]], 1)
    return tf.ensure_shape(tf.concat([image[:1], rows, image[-1:]], 0), image.shape)


def invert(image):
    """255 - image."""
    return 255 - as_uint8(image)


def posterize(image, bits):
    """Only the highest `bits` of each pixel's 8, at least one."""
    shift = tf.cast(8 - tf.clip_by_value(tf.cast(bits, tf.int32), 1, 8), tf.uint8)
    mask = tf.bitwise.left_shift(tf.constant(255, tf.uint8), shift)
    return tf.bitwise.bitwise_and(as_uint8(image), mask)


def _reaches(image, threshold):
    """Where a uint8 pixel is at least `threshold`, an integer of any size."""
    return tf.cast(image, tf.int16) >= tf.cast(threshold, tf.int16)


def choose(mask, chosen, image):
    """`chosen` where `mask` is true, `image` elsewhere; all of one shape. tf.where, which may broadcast, takes six times as long."""
    return tf.raw_ops.Select(condition=mask, x=chosen, y=image)


def solarize(image, threshold=128):
    """Pixels of at least `threshold` inverted."""
    image = as_uint8(image)
    return choose(_reaches(image, threshold), 255 - image, image)


def solarize_add(image, addition, threshold=128):
    """Pixels below `threshold` made lighter by `addition`, 0 to 255, up to white."""
    image = as_uint8(image)
    addition = tf.cast(tf.clip_by_value(tf.cast(addition, tf.int32), 0, 255), tf.uint8)
    return choose(_reaches(image, threshold), image, tf.minimum(image, 255 - addition) + addition)


def autocontrast(image):
    """Each channel stretched, so that its darkest pixel is 0 and its lightest 255; a channel of one value stays."""
    image = as_uint8(image)
    low, high = (tf.cast(extreme(image, axis=(0, 1)), tf.float32) for extreme in (tf.reduce_min, tf.reduce_max))
    flat = high <= low
    scale = tf.where(flat, 1.0, 255.0 / tf.where(flat, 1.0, high - low))
    offset = tf.where(flat, 0.0, -low * scale)
    stretched = tf.cast(flat_rows(image), tf.float32) * per_channel(scale, image) + per_channel(offset, image)
    return _same_shape(_truncated(stretched), image)


def equalize(image):
    """Each channel's values spread so that its histogram is as even as a table of values makes it (PIL's ImageOps.equalize)."""
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


def gaussian_blur(image, sigma, radius):
    """Blurred by a Gaussian of deviation `sigma`, cut off `radius` (a Python integer) pixels from its middle; borders reflect."""
    pixels, channels = _float(image)[None], image.shape[-1]
    distance = tf.range(-radius, radius + 1, dtype=tf.float32)
    taps = tf.exp(-0.5 * tf.square(distance / tf.cast(sigma, tf.float32)))
    taps = tf.tile((taps / tf.reduce_sum(taps))[:, None], (1, channels))
    pixels = tf.pad(pixels, [[0, 0], [radius, radius], [radius, radius], [0, 0]], "REFLECT")
    for shape in ((2 * radius + 1, 1, channels, 1), (1, 2 * radius + 1, channels, 1)):
        pixels = tf.nn.depthwise_conv2d(pixels, tf.reshape(taps, shape), (1, 1, 1, 1), "VALID")
    return tf.ensure_shape(as_uint8(pixels[0]), image.shape)
