"""Ops that choose where pixels come from: sizes, windows, flips and shifts; and noise on them."""

import tensorflow as tf

from keras_vit.data.ops import op, random_op


def pair(height, width):
    """The parameters of a size as (height, width): one number or two, positive integers."""
    size = (height, height if width is None else width)
    if not all(isinstance(s, int) and s > 0 for s in size):
        raise ValueError(f"A size is one or two positive integers, got {size}.")
    return size


def _as_float(image):
    return tf.cast(image, tf.float32)


@op
def resize(height, width=None, method="bilinear", antialias=True):
    """resize(256): the shorter side to 256, the longer by the same factor, rounded down (as torchvision). resize(256, 320): to that."""
    size = pair(height, width)

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
    size = pair(height, width)

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
    size = pair(height, width)

    def apply(image, seed):
        image = tf.pad(image, [[padding, padding], [padding, padding], [0, 0]])
        return tf.image.stateless_random_crop(image, (*size, image.shape[-1]), seed)

    return apply


def sampled_window(shape, seed, scale, ratio):
    """(top, left) and (height, width), each (2,) int32, of a random window of an image of `shape` (3,)."""
    begin, extent, _ = tf.image.stateless_sample_distorted_bounding_box(
        shape,
        tf.zeros((1, 0, 4), tf.float32),
        seed,
        aspect_ratio_range=ratio,
        area_range=scale,
        min_object_covered=0,
        use_image_if_no_bounding_boxes=True,
    )
    return begin[:2], extent[:2]


def resized_window(window, size, method):
    """The pixels (h, w, c) of a window at `size`: float32, antialiased; with method "auto" of uint8 pixels uint8, at a third of the time."""
    if method != "auto":
        image = tf.image.resize(window, size, method=method, antialias=True)
    else:
        # Where both sides shrink, the mean over each pixel's area is as smooth as an antialiased filter. Where only one does, it is by the
        # window's aspect at most, too little to smooth.
        shrinks = tf.reduce_all(tf.shape(window)[:2] > size)
        mean, plain = (lambda method=method: tf.image.resize(window, size, method=method) for method in ("area", "bilinear"))
        image = tf.cond(shrinks, mean, plain)
        image = tf.cast(image + 0.5, tf.uint8) if window.dtype == tf.uint8 else image
    return tf.ensure_shape(image, (*size, window.shape[-1]))


@random_op
def random_resized_crop(height, width=None, scale=(0.05, 1.0), ratio=(0.75, 4 / 3), method="auto"):
    """A random window of `scale` of the area and of an aspect within `ratio`, resized to height x width (Inception crop).

    With `method` "auto" a window that shrinks both ways becomes means over areas, another is interpolated bilinearly; "bilinear",
    "bicubic" and the others of tf.image.resize antialias.
    """
    size = pair(height, width)

    def apply(image, seed):
        begin, extent = sampled_window(tf.shape(image), seed, scale, ratio)
        window = tf.slice(image, tf.concat([begin, [0]], 0), tf.concat([extent, [-1]], 0))
        return resized_window(tf.ensure_shape(window, (None, None, image.shape[-1])), size, method)

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
