"""Augmentation policies: RandAugment, AutoAugment and TrivialAugment.

Their ops are functions of (image, value, samples, fill): uint8 pixels (h, w, c); the strength, a float scalar computed
from the level; three samples from [0, 1) for signs and positions; the grey level of pixels outside the image. Only the
sampled op runs.

Policies rotate, shear and shift only the image, so they refuse examples with a mask or boxes.
"""

import tensorflow as tf

from keras_vit.data.ops import affine, color
from keras_vit.data.ops.branches import switch
from keras_vit.data.ops.erasing import cutout
from keras_vit.data.ops.op_registry import Check, as_uint8, integer, one_of, op

# AutoAugment's policy for ImageNet (arXiv 1805.09501, appendix, Table 9), as in the authors' code ("v0"): one of 25
# pairs of (op, probability, level) is sampled, and its two ops run in turn.
_V0 = (
    (("equalize", 0.8, 1), ("shear_y", 0.8, 4)),
    (("color", 0.4, 9), ("equalize", 0.6, 3)),
    (("color", 0.4, 1), ("rotate", 0.6, 8)),
    (("solarize", 0.8, 3), ("equalize", 0.4, 7)),
    (("solarize", 0.4, 2), ("solarize", 0.6, 2)),
    (("color", 0.2, 0), ("equalize", 0.8, 8)),
    (("equalize", 0.4, 8), ("solarize_add", 0.8, 3)),
    (("shear_x", 0.2, 9), ("rotate", 0.6, 8)),
    (("color", 0.6, 1), ("equalize", 1.0, 2)),
    (("invert", 0.4, 9), ("rotate", 0.6, 0)),
    (("equalize", 1.0, 9), ("shear_y", 0.6, 3)),
    (("color", 0.4, 7), ("equalize", 0.6, 0)),
    (("posterize", 0.4, 6), ("autocontrast", 0.4, 7)),
    (("solarize", 0.6, 8), ("color", 0.6, 9)),
    (("solarize", 0.2, 4), ("rotate", 0.8, 9)),
    (("rotate", 1.0, 7), ("translate_y", 0.8, 9)),
    (("shear_x", 0.0, 0), ("solarize", 0.8, 4)),
    (("shear_y", 0.8, 0), ("color", 0.6, 4)),
    (("color", 1.0, 0), ("rotate", 0.6, 2)),
    (("equalize", 0.8, 4), ("equalize", 0.0, 8)),
    (("equalize", 1.0, 4), ("autocontrast", 0.6, 2)),
    (("shear_y", 0.4, 7), ("solarize_add", 0.6, 7)),
    (("posterize", 0.8, 2), ("solarize", 0.6, 10)),
    (("solarize", 0.6, 8), ("equalize", 0.6, 1)),
    (("color", 0.8, 6), ("rotate", 0.4, 5)),
)
POLICIES = {"v0": _V0}


def _signed(value, samples):
    """`value` or its negative, with equal probability."""
    return tf.where(samples[0] < 0.5, -value, value)


def _fixed(function):
    return lambda image, value, samples, fill: function(image)


def _valued(function):
    return lambda image, value, samples, fill: function(image, value)


def _moved(function):
    return lambda image, value, samples, fill: function(image, _signed(value, samples), fill)


def _about_one(function):
    return lambda image, value, samples, fill: function(image, 1.0 + _signed(value, samples))


def _cutout(image, value, samples, fill):
    size = tf.cast(tf.shape(image), tf.float32)
    row, column = (tf.cast(samples[i + 1] * size[i], tf.int32) for i in (0, 1))
    return cutout(image, value, row, column, fill)


# RandAugment's 16 ops, in its order, which include AutoAugment's.
AUTO_OPS = {
    "autocontrast": _fixed(color.autocontrast),
    "equalize": _fixed(color.equalize),
    "invert": _fixed(color.invert),
    "rotate": _moved(affine.rotate),
    "posterize": _valued(color.posterize),
    "solarize": _valued(color.solarize),
    "color": _valued(color.saturation),
    "contrast": _valued(color.contrast),
    "brightness": _valued(color.brightness),
    "sharpness": _valued(color.sharpness),
    "shear_x": _moved(affine.shear_x),
    "shear_y": _moved(affine.shear_y),
    "translate_x": _moved(affine.translate_x),
    "translate_y": _moved(affine.translate_y),
    "cutout": _cutout,
    "solarize_add": _valued(color.solarize_add),
}


def auto_value(name: str, level: float, translate: float, cut: float) -> float:
    """Returns an op's strength at a level, as in the authors' code; AutoAugment's levels end at 10.

    `translate` and `cut` are the shift and half the side of Cutout's square, in pixels at level 10.
    """
    part = level / 10
    if name in ("color", "contrast", "brightness", "sharpness"):
        return 1.8 * part + 0.1
    return {
        "rotate": 30 * part,
        "posterize": int(4 * part),
        # The authors' uint8 wraps around: 256 becomes 0, and RandAugment's level 15 means 128.
        "solarize": int(256 * part) % 256,
        "shear_x": 0.3 * part,
        "shear_y": 0.3 * part,
        "translate_x": translate * part,
        "translate_y": translate * part,
        "cutout": int(cut * part),
        "solarize_add": int(110 * part),
    }.get(name, 0.0)


# TrivialAugment's 14 ops.
TRIVIAL_OPS = {
    "identity": _fixed(as_uint8),
    "shear_x": _moved(affine.shear_x),
    "shear_y": _moved(affine.shear_y),
    "translate_x": _moved(affine.translate_x),
    "translate_y": _moved(affine.translate_y),
    "rotate": _moved(affine.rotate),
    "brightness": _about_one(color.brightness),
    "color": _about_one(color.saturation),
    "contrast": _about_one(color.contrast),
    "sharpness": _about_one(color.sharpness),
    "posterize": _valued(color.posterize),
    "solarize": _valued(color.solarize),
    "autocontrast": _fixed(color.autocontrast),
    "equalize": _fixed(color.equalize),
}


def trivial_value(name: str, level: float) -> float:
    """Returns an op's strength at level 0 to 30 in the "wide" ranges (arXiv 2103.10158, Table 7)."""
    part = level / 30
    if name in ("brightness", "color", "contrast", "sharpness", "shear_x", "shear_y"):
        return 0.99 * part
    return {
        "translate_x": int(32 * part),
        "translate_y": int(32 * part),
        "rotate": 135 * part,
        "posterize": 8 - round(6 * part),
        "solarize": 256 - round(256 * part),
    }.get(name, 0.0)


def _make_switch(ops, fill):
    """Returns a function of (number, image, value, samples) that applies op `number` of a dict of ops."""
    return switch([lambda image, value, samples, op=op: op(image, value, samples, fill) for op in ops.values()])


def _index(sample, count):
    """Converts a sample in [0, 1) to an index below `count`."""
    return tf.minimum(tf.cast(sample * count, tf.int32), count - 1)


_RAND = {"layers": integer(1), "magnitude": Check("a number from 0 to 30", lambda value: 0 <= value <= 30)}


@op("image", random=True, refuses=("mask", "boxes"), checks=_RAND)
def rand_augment(layers=2, magnitude=10, translate=100, cut=40, fill=128):
    """Applies one of 16 ops, `layers` times, at strength `magnitude`, 0 to 30 (arXiv 1909.13719, as in AugReg).

    `translate` and `cut` are the shift and half the side of Cutout's square, in pixels at magnitude 10. The defaults
    suit images of 224 pixels; for 32 pixels use about 14 and 6.
    """
    values = [float(auto_value(name, magnitude, translate, cut)) for name in AUTO_OPS]
    applied = _make_switch(AUTO_OPS, fill)

    def apply(image, seed):
        image = as_uint8(image)
        samples = tf.random.stateless_uniform((layers, 4), seed)
        for layer in range(layers):
            index = _index(samples[layer, 3], len(AUTO_OPS))
            image = applied(index, image, tf.constant(values)[index], samples[layer])
        return image

    return apply


@op("image", random=True, refuses=("mask", "boxes"), checks={"policy": one_of(POLICIES)})
def auto_augment(policy="v0", translate=250, fill=128):
    """Applies a random pair of ops from a learned policy (arXiv 1805.09501); "v0" is ImageNet's.

    `translate` is the shift in pixels at level 10.
    """
    ops = {**AUTO_OPS, "identity": _fixed(as_uint8)}
    applied, places = _make_switch(ops, fill), {name: float(i) for i, name in enumerate(ops)}
    table = [
        [(places[name], chance, float(auto_value(name, level, translate, 100))) for name, chance, level in pair]
        for pair in POLICIES[policy]
    ]

    def apply(image, seed):
        image = as_uint8(image)
        samples = tf.random.stateless_uniform((9,), seed)
        pair = tf.constant(table)[_index(samples[8], len(table))]
        for i in (0, 1):
            of_op = samples[4 * i : 4 * i + 4]
            index = tf.where(of_op[3] < pair[i, 1], tf.cast(pair[i, 0], tf.int32), len(AUTO_OPS))
            image = applied(index, image, pair[i, 2], of_op)
        return image

    return apply


@op("image", random=True, refuses=("mask", "boxes"))
def trivial_augment(fill=0):
    """Applies one of 14 ops at a strength sampled per image (arXiv 2103.10158, "wide" ranges)."""
    table = [[float(trivial_value(name, level)) for level in range(31)] for name in TRIVIAL_OPS]
    applied = _make_switch(TRIVIAL_OPS, fill)

    def apply(image, seed):
        samples = tf.random.stateless_uniform((5,), seed)
        index = _index(samples[3], len(TRIVIAL_OPS))
        value = tf.constant(table)[index, _index(samples[4], 31)]
        return applied(index, as_uint8(image), value, samples)

    return apply
