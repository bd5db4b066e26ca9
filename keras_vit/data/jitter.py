"""Random colour and blur: colour jitter, and the ops of DeiT III's 3-Augment."""

import math

import tensorflow as tf

from keras_vit.data import color
from keras_vit.data.choosing import one_of
from keras_vit.data.color import as_uint8
from keras_vit.data.ops import random_op


def _probability(value, name):
    if not 0 <= value <= 1:
        raise ValueError(f"{name}: a probability lies within 0 and 1, got {value}.")
    return value


def _maybe(function, probability):
    """(image, draw) -> function(image) where the draw from [0, 1) is below the probability, else the image; uint8 either way."""

    def apply(image, draw):
        image = as_uint8(image)
        return tf.cond(draw < probability, lambda: function(image), lambda: image)

    return apply


def _range(value, name, middle, lowest, highest):
    """(low, high) of what color_jitter takes: a number for middle +- it, not below `lowest`, or the two; None for no jitter.

    Raises:
        ValueError: for bounds outside `lowest` and `highest`, or the wrong way round.
    """
    low, high = value if isinstance(value, (tuple, list)) else (max(middle - value, lowest), middle + value)
    if not lowest <= low <= high <= highest:
        allowed = "numbers from 0 on" if highest == math.inf else f"numbers from {lowest} to {highest}"
        raise ValueError(f"color_jitter: {name}={value}: expected a number, not negative, or (low, high), {allowed}.")
    return None if low == high == middle else (float(low), float(high))


@random_op
def color_jitter(brightness=0.0, contrast=0.0, saturation=0.0, hue=0.0, probability=1.0):
    """Changes brightness, contrast, saturation and hue, in an order drawn anew for each image, as torchvision's ColorJitter.

    A number x means a factor drawn evenly from [max(0, 1 - x), 1 + x], for `hue` a turn from [-x, x] of the circle, x at most 0.5; a pair
    is the range itself. With 1 - `probability` the image stays.
    """
    ranges = {
        color.brightness: _range(brightness, "brightness", 1, 0, math.inf),
        color.contrast: _range(contrast, "contrast", 1, 0, math.inf),
        color.saturation: _range(saturation, "saturation", 1, 0, math.inf),
        color.hue: _range(hue, "hue", 0, -0.5, 0.5),
    }
    used = [(function, *bounds) for function, bounds in ranges.items() if bounds]
    _probability(probability, "color_jitter")
    n = len(used)
    changed = one_of([lambda image, x, f=f, low=low, high=high: f(image, low + (high - low) * x) for f, low, high in used])

    def apply(image, seed):
        draws = tf.random.stateless_uniform((2 * n + 1,), seed)
        order = tf.argsort(draws[n : 2 * n])

        def jittered(image):
            for k in range(n):
                image = changed(order[k], image, draws[k])
            return image

        return _maybe(jittered, probability)(image, draws[2 * n])

    return apply


@random_op
def random_grayscale(probability=0.1):
    """The grey image, in as many channels, with `probability`."""
    apply = _maybe(color.grayscale, _probability(probability, "random_grayscale"))
    return lambda image, seed: apply(image, tf.random.stateless_uniform((), seed))


@random_op
def solarize(probability=0.2, threshold=128):
    """Pixels of at least `threshold` inverted, with `probability`."""
    apply = _maybe(lambda image: color.solarize(image, threshold), _probability(probability, "solarize"))
    return lambda image, seed: apply(image, tf.random.stateless_uniform((), seed))


def _radius(sigma):
    """Pixels to three deviations of the widest blur.

    Raises:
        ValueError: unless sigma is (low, high), both positive.
    """
    if not 0 < sigma[0] <= sigma[1]:
        raise ValueError(f"gaussian_blur: expected sigma as 0 < low <= high, in pixels, got {sigma}.")
    return max(1, round(3 * sigma[1]))


@random_op
def gaussian_blur(probability=0.5, sigma=(0.1, 2.0)):
    """With `probability`, blurred by a Gaussian whose deviation, in pixels, is drawn evenly from `sigma`; borders reflect."""
    radius = _radius(sigma)
    _probability(probability, "gaussian_blur")

    def apply(image, seed):
        draws = tf.random.stateless_uniform((2,), seed)
        deviation = sigma[0] + (sigma[1] - sigma[0]) * draws[1]
        return _maybe(lambda image: color.gaussian_blur(image, deviation, radius), probability)(image, draws[0])

    return apply


@random_op
def three_augment(sigma=(0.1, 2.0)):
    """DeiT III's 3-Augment (arXiv 2204.07118, Sec. 4): one of grey, solarized, blurred. Its colour jitter is color_jitter(.3, .3, .3)."""
    radius = _radius(sigma)

    def apply(image, seed):
        image = as_uint8(image)
        draws = tf.random.stateless_uniform((2,), seed)
        deviation = sigma[0] + (sigma[1] - sigma[0]) * draws[1]
        # In the graph itself, unlike choosing.one_of: within a function TensorFlow's blur takes seven times as long.
        choices = (
            lambda: color.grayscale(image),
            lambda: color.solarize(image),
            lambda: color.gaussian_blur(image, deviation, radius),
        )
        return tf.ensure_shape(tf.switch_case(tf.cast(draws[0] * 3, tf.int32), choices), image.shape)

    return apply
