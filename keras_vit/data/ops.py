"""The preprocessing vocabulary: one factory an op, whose parameters are what stands in the brackets.

A factory returns a function of one image (h, w, c), or for a random op of (image, seed) with seed (2,) integers. Values stay on the
0..255 scale. Register with @op or @random_op: the function's name is the op's.
"""

import tensorflow as tf

OPS = {}
RANDOM = set()


def op(factory):
    OPS[factory.__name__] = factory
    return factory


def random_op(factory):
    RANDOM.add(factory.__name__)
    return op(factory)


def _size(height, width):
    """(height, width) integers, from one number or two; both positive."""
    size = (height, height if width is None else width)
    if not all(isinstance(s, int) and s > 0 for s in size):
        raise ValueError(f"A size is one or two positive integers, got {size}.")
    return size


def _as_float(image):
    return tf.cast(image, tf.float32)


@op
def decode(channels=3):
    """Encoded JPEG, PNG, BMP, GIF (first frame) or still WebP bytes to uint8 (h, w, channels); arrays pass, with channels matched."""

    def apply(image):
        if image.dtype == tf.string:
            return decode_bytes(image, channels)
        if image.shape[-1] == channels:
            return image
        if (image.shape[-1], channels) == (1, 3):
            return tf.image.grayscale_to_rgb(image)
        if (image.shape[-1], channels) == (3, 1):
            return tf.image.rgb_to_grayscale(image)
        raise ValueError(f"decode(channels={channels}) got an array of {image.shape[-1]} channels.")

    return apply


def decode_bytes(encoded, channels):
    """A scalar string tensor of an encoded image -> uint8 (h, w, channels)."""
    image = tf.cond(
        tf.io.is_jpeg(encoded),
        # The exact transform, as PIL has it: with the fast one a DeiT's logits correlate .998 with those on PIL's pixels.
        lambda: tf.io.decode_jpeg(encoded, channels=channels, dct_method="INTEGER_ACCURATE"),
        lambda: tf.io.decode_image(encoded, channels=channels, expand_animations=False),
    )
    return tf.ensure_shape(image, (None, None, channels))


@op
def resize(height, width=None, method="bilinear", antialias=True):
    """resize(256): the shorter side to 256, the longer by the same factor, rounded down (as torchvision). resize(256, 320): to that."""
    size = _size(height, width)

    def apply(image):
        target = size
        if width is None:
            h, w = tf.shape(image)[0], tf.shape(image)[1]
            shorter = tf.cast(tf.minimum(h, w), tf.int64)
            target = [tf.cast(height * tf.cast(s, tf.int64) // shorter, tf.int32) for s in (h, w)]
        return tf.image.resize(image, target, method=method, antialias=antialias)

    return apply


@op
def central_crop(height, width=None):
    """The middle height x width pixels, of two middles the one at the even offset (as torchvision); a smaller image is padded with black."""
    size = _size(height, width)

    def apply(image):
        shape = tf.shape(image)[:2]
        kept = tf.minimum(shape, size)
        offset = tf.cast(tf.round(tf.cast(shape - kept, tf.float32) / 2), tf.int32)  # tf.round takes halves to the even number
        window = tf.slice(image, [offset[0], offset[1], 0], [kept[0], kept[1], -1])
        return tf.ensure_shape(tf.image.resize_with_crop_or_pad(window, *size), (*size, image.shape[-1]))

    return apply


@random_op
def random_crop(height, width=None, padding=0):
    """A random height x width window of the image, padded first by `padding` black pixels on each side."""
    size = _size(height, width)

    def apply(image, seed):
        image = tf.pad(image, [[padding, padding], [padding, padding], [0, 0]])
        return tf.image.stateless_random_crop(image, (*size, image.shape[-1]), seed)

    return apply


@random_op
def random_resized_crop(height, width=None, scale=(0.05, 1.0), ratio=(0.75, 4 / 3), method="bilinear"):
    """A random window of `scale` of the area and of an aspect within `ratio`, resized to height x width (Inception crop)."""
    size = _size(height, width)

    def apply(image, seed):
        begin, extent, _ = tf.image.stateless_sample_distorted_bounding_box(
            tf.shape(image),
            tf.zeros((1, 0, 4), tf.float32),
            seed,
            aspect_ratio_range=ratio,
            area_range=scale,
            min_object_covered=0,
            use_image_if_no_bounding_boxes=True,
        )
        channels = image.shape[-1]
        crop = tf.slice(image, begin, extent)
        return tf.ensure_shape(tf.image.resize(crop, size, method=method, antialias=True), (*size, channels))

    return apply


@random_op
def random_flip():
    """Left and right exchanged in half of the images."""
    return lambda image, seed: tf.image.stateless_random_flip_left_right(image, seed)


@random_op
def random_shift(pixels):
    """A shift by up to `pixels` in each direction; what comes in at the border is black."""

    def apply(image, seed):
        padded = tf.pad(image, [[pixels, pixels], [pixels, pixels], [0, 0]])
        offset = tf.random.stateless_uniform((2,), seed, 0, 2 * pixels + 1, tf.int32)
        window = tf.slice(padded, [offset[0], offset[1], 0], tf.shape(image))
        return tf.ensure_shape(window, image.shape)

    return apply


@random_op
def noise(std):
    """Gaussian noise of that standard deviation, on the 0..255 scale."""
    return lambda image, seed: _as_float(image) + tf.random.stateless_normal(tf.shape(image), seed, stddev=std)
