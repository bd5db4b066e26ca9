"""ImageNet-C's corruptions (arXiv 1903.12261) as one op, computed on the fly: corrupt('fog', 3)."""

import tensorflow as tf

from keras_vit.data.ops.corruption.noise import Draws
from keras_vit.data.ops.corruption.strengths import CORRUPTIONS, STRENGTHS
from keras_vit.data.ops.op_registry import Check, as_uint8, is_integer, one_of, op

_STRENGTH = Check("a strength of 1 to 5", lambda value: is_integer(value) and value in STRENGTHS)


@op("image", random=True, checks={"name": one_of(CORRUPTIONS), "strength": _STRENGTH})
def corrupt(name, strength=3):
    """Applies a corruption from data/ops/corruption/strengths.py at strength 1 to 5.

    The parameters suit sizes near 224, so put it after the crop. Levels are rounded down, as in the authors' code.
    Masks and boxes stay. A grey image becomes the red channel of its corrupted colour version.
    """
    corruption = CORRUPTIONS[name]
    row = corruption.rows[strength - 1]

    def apply(image, seed):
        if not image.shape.is_fully_defined() or image.shape[-1] not in (1, 3):
            raise ValueError(
                f'corrupt: expected grey or RGB images of a fixed size, got {tuple(image.shape)}. Put it after "decode"'
                ' and, for example, "central_crop(224)".'
            )
        x = tf.cast(as_uint8(image), tf.float64) / 255
        x = tf.tile(x, (1, 1, 3)) if image.shape[-1] == 1 else x
        x = tf.clip_by_value(corruption.function(x, Draws(seed), *row), 0.0, 1.0)
        return tf.ensure_shape(tf.cast(x * 255, tf.uint8)[..., : image.shape[-1]], image.shape)

    return apply
