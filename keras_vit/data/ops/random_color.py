"""Random colour, blur and noise, such as colour jitter, DeiT III's 3-Augment and Gaussian noise."""

import math

import tensorflow as tf

from keras_vit.data.ops import color
from keras_vit.data.ops.branches import switch
from keras_vit.data.ops.op_registry import INTERVAL, PROBABILITY, as_uint8, op

_BLUR = {"probability": PROBABILITY, "sigma": INTERVAL}


def _maybe(function, probability):
    """Returns a function of (image, sample) -> uint8: function(image) if sample < probability, else the image."""

    def apply(image, sample):
        image = as_uint8(image)
        return tf.cond(sample < probability, lambda: function(image), lambda: image)

    return apply


def _range(value, name, middle, lowest, highest):
    """Returns a color_jitter parameter, a number around `middle` or a pair, as (low, high); None for no jitter.

    Raises:
        ValueError: if the bounds are outside `lowest` to `highest` or in the wrong order.
    """
    low, high = value if isinstance(value, (tuple, list)) else (max(middle - value, lowest), middle + value)
    if not lowest <= low <= high <= highest:
        allowed = "numbers of at least 0" if highest == math.inf else f"numbers from {lowest} to {highest}"
        raise ValueError(f"color_jitter: {name}={value}: expected a number of at least 0, or (low, high), {allowed}.")
    return None if low == high == middle else (float(low), float(high))


@op("image", random=True, checks={"probability": PROBABILITY})
def color_jitter(brightness=0.0, contrast=0.0, saturation=0.0, hue=0.0, probability=1.0):
    """Changes brightness, contrast, saturation and hue, in a random order per image, like torchvision's ColorJitter.

    A number x samples the factor uniformly from [max(0, 1 - x), 1 + x], or the hue's shift from [-x, x] of the colour
    circle, with x at most 0.5. A pair is the range itself. With probability 1 - `probability` the image stays.
    """
    ranges = {
        color.brightness: _range(brightness, "brightness", 1, 0, math.inf),
        color.contrast: _range(contrast, "contrast", 1, 0, math.inf),
        color.saturation: _range(saturation, "saturation", 1, 0, math.inf),
        color.hue: _range(hue, "hue", 0, -0.5, 0.5),
    }
    used = [(function, *bounds) for function, bounds in ranges.items() if bounds]
    n = len(used)
    changed = switch(
        [lambda image, x, f=f, low=low, high=high: f(image, low + (high - low) * x) for f, low, high in used]
    )

    def apply(image, seed):
        samples = tf.random.stateless_uniform((2 * n + 1,), seed)
        order = tf.argsort(samples[n : 2 * n])

        def jittered(image):
            for k in range(n):
                image = changed(order[k], image, samples[k])
            return image

        return _maybe(jittered, probability)(image, samples[2 * n])

    return apply


@op("image", random=True, checks={"probability": PROBABILITY})
def random_grayscale(probability=0.1):
    """With `probability`, converts the image to grey but keeps its channels."""
    apply = _maybe(color.grayscale, probability)
    return lambda image, seed: apply(image, tf.random.stateless_uniform((), seed))


@op("image", random=True, checks={"probability": PROBABILITY})
def solarize(probability=0.2, threshold=128):
    """With `probability`, inverts pixels at or above `threshold`."""
    apply = _maybe(lambda image: color.solarize(image, threshold), probability)
    return lambda image, seed: apply(image, tf.random.stateless_uniform((), seed))


def _radius(sigma):
    """Returns three deviations of the widest blur, in pixels."""
    return max(1, round(3 * sigma[1]))


@op("image", random=True, checks=_BLUR)
def gaussian_blur(probability=0.5, sigma=(0.1, 2.0)):
    """With `probability`, applies a Gaussian blur with deviation uniform in `sigma`, in pixels; borders reflect."""
    radius = _radius(sigma)

    def apply(image, seed):
        samples = tf.random.stateless_uniform((2,), seed)
        deviation = sigma[0] + (sigma[1] - sigma[0]) * samples[1]
        return _maybe(lambda image: color.gaussian_blur(image, deviation, radius), probability)(image, samples[0])

    return apply


@op("image", random=True, checks={"sigma": INTERVAL})
def three_augment(sigma=(0.1, 2.0)):
    """Applies grey, solarize or blur, DeiT III's 3-Augment (arXiv 2204.07118, Sec. 4).

    The paper adds color_jitter(.3, .3, .3).
    """
    radius = _radius(sigma)

    def apply(image, seed):
        image = as_uint8(image)
        samples = tf.random.stateless_uniform((2,), seed)
        deviation = sigma[0] + (sigma[1] - sigma[0]) * samples[1]
        # Inlined, unlike branches.switch: inside a function TensorFlow's blur takes seven times as long.
        choices = (
            lambda: color.grayscale(image),
            lambda: color.solarize(image),
            lambda: color.gaussian_blur(image, deviation, radius),
        )
        return tf.ensure_shape(tf.switch_case(tf.cast(samples[0] * 3, tf.int32), choices), image.shape)

    return apply


@op("image", random=True)
def noise(std):
    """Adds Gaussian noise of standard deviation `std` on the 0..255 scale."""
    return lambda image, seed: (
        tf.cast(image, tf.float32) + tf.random.stateless_normal(tf.shape(image), seed, stddev=std)
    )
