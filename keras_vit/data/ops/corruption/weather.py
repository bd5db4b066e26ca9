"""Snow, frost, fog and light on pixels (h, w, 3), float64 from 0 to 1; see the package's docstring."""

import tensorflow as tf

from keras_vit.data.ops.corruption.blur import along
from keras_vit.data.ops.corruption.digital import hsv_to_rgb, rgb_to_hsv
from keras_vit.data.ops.corruption.filters import zoomed

_GREY = (0.299, 0.587, 0.114)


def snow(
    x: tf.Tensor,
    draws,
    mean: float,
    deviation: float,
    zoom: float,
    least: float,
    radius: int,
    sigma: float,
    kept: float,
) -> tf.Tensor:
    """Adds flakes, noise above `least` that is enlarged and smeared downwards, to a paler image."""
    height, width = x.shape[:2]
    layer = zoomed(mean + deviation * draws.normal((height, width)), zoom)
    layer = tf.clip_by_value(tf.where(layer < least, tf.zeros_like(layer), layer), 0.0, 1.0)
    layer = tf.round(along(layer, radius, sigma, draws.uniform((), -135, -45)) * 255) / 255
    grey = tf.tensordot(x, tf.constant(_GREY, x.dtype), 1)[..., None]
    pale = kept * x + (1 - kept) * tf.maximum(x, grey * 1.5 + 0.5)
    return pale + (layer + layer[::-1, ::-1])[..., None]


def plasma(draws, height: int, width: int, decay: float) -> tf.Tensor:
    """Returns diamond-square clouds (height, width) from 0 to 1; each scale divides the noise by `decay`."""
    grid, wobble = tf.zeros((1, 1), tf.float64), 100.0  # a torus; each round doubles its sides
    while grid.shape[0] < max(height, width):

        def varied(total, wobble=wobble):
            return total / 4 + wobble * draws.uniform(total.shape, -wobble, wobble)

        above = grid + tf.roll(grid, -1, 0)
        centre = varied(above + tf.roll(above, -1, 1))
        beside = varied((centre + tf.roll(centre, 1, 0)) + (grid + tf.roll(grid, -1, 1)))
        below = varied((centre + tf.roll(centre, 1, 1)) + above)
        rows = tf.stack([tf.stack([grid, beside], -1), tf.stack([below, centre], -1)], 1)  # (n, 2, n, 2)
        grid, wobble = tf.reshape(rows, (2 * grid.shape[0], 2 * grid.shape[0])), wobble / decay
    grid -= tf.reduce_min(grid)
    return (grid / tf.reduce_max(grid))[:height, :width]


def fog(x: tf.Tensor, draws, amount: float, decay: float) -> tf.Tensor:
    """Adds clouds, then scales down to the original maximum."""
    brightest = tf.reduce_max(x)
    clouds = plasma(draws, x.shape[0], x.shape[1], decay)[..., None]
    return (x + amount * clouds) * brightest / (brightest + amount)


def _needles(draws, height, width):
    """Returns crystals (height, width) from 0 to 1: streaks in six directions from random points, denser in clouds."""
    clouds = plasma(draws, height, width, 1.7)
    layers = []
    for direction in range(6):
        points = tf.cast(draws.normal((height, width)) > 2.2 - clouds, clouds.dtype)
        degrees = draws.uniform((), 60 * direction - 20, 60 * direction + 20)
        layers.append(along(points, 12, 8.0, degrees) * 4)
    return tf.minimum(tf.reduce_max(tf.stack(layers), 0), 1.0)


def frost(x: tf.Tensor, draws, kept: float, amount: float) -> tf.Tensor:
    """Adds bluish white crystals. The authors use photographs of frost, so errors are not comparable with theirs."""
    layer = 0.2 + 0.8 * _needles(draws, *x.shape[:2])
    return kept * x + amount * layer[..., None] * tf.constant((0.86, 0.94, 1.0), x.dtype)


def brightness(x: tf.Tensor, draws, addition: float) -> tf.Tensor:
    """Adds to HSV's value."""
    hue, saturation, value = rgb_to_hsv(x)
    return hsv_to_rgb(hue, saturation, tf.clip_by_value(value + addition, 0.0, 1.0))
