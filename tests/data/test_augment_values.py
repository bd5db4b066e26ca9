"""color.py and affine.py against pillow's and torchvision's pixels (goldens/make_goldens.py)."""

import pathlib
import re

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.data.ops import affine, color
from keras_vit.data.ops.op_registry import as_uint8

GOLDENS = np.load(pathlib.Path(__file__).parent / "goldens" / "augment.npz")
CALL = re.compile(r"(?P<gray>gray )?(?P<name>\w+)\((?P<arguments>.*)\)")
CALLS = [name for name in GOLDENS.files if CALL.fullmatch(name)]
MOVES = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")


def result_of(name, image):
    """The result of a golden's call."""
    match = CALL.fullmatch(name)
    function = getattr(affine if match["name"] in MOVES else color, match["name"])
    arguments = [float(a) if "." in a else int(a) for a in match["arguments"].split(", ") if a]
    result = np.asarray(function(tf.constant(image), *arguments))
    assert result.dtype == np.uint8
    return result


def test_values_are_those_of_pillow_and_torchvision():
    for name in CALLS:
        result = result_of(name, GOLDENS["gray" if name.startswith("gray ") else "color"])
        difference = np.abs(result.astype(int) - GOLDENS[name])
        if any(move in name for move in MOVES):  # a point on the edge between two pixels may fall to either
            assert (difference > 0).mean() < 0.01, name
        else:  # torchvision turns the hue in numbers from 0 to 1, and rounds down
            assert difference.max() <= (1 if name.startswith("hue") else 0), name
    assert {CALL.fullmatch(name)["name"] for name in CALLS} == {
        *MOVES, "autocontrast", "equalize", "invert", "grayscale", "posterize", "solarize", "saturation", "contrast",
        "brightness", "sharpness", "hue", "gaussian_blur",
    }  # fmt: skip


def test_an_image_of_one_value_stays():
    flat = np.full((5, 7, 3), 90, "uint8")
    for name in "autocontrast(); equalize(); sharpness(2.8); contrast(2.8); gaussian_blur(1.0, 2); hue(0.3)".split(
        "; "
    ):
        np.testing.assert_array_equal(result_of(name, flat), flat)


def test_posterize_keeps_at_least_one_bit_and_at_most_eight():
    np.testing.assert_array_equal(result_of("posterize(0)", GOLDENS["color"]), GOLDENS["posterize(1)"])
    np.testing.assert_array_equal(result_of("posterize(12)", GOLDENS["color"]), GOLDENS["color"])


def test_solarize_add_lightens_what_is_dark():
    image = np.array([0, 17, 127, 128, 255], "uint8").reshape(1, 5, 1)
    assert result_of("solarize_add(50)", image).ravel().tolist() == [50, 67, 177, 128, 255]
    assert result_of("solarize_add(200)", image).ravel().tolist() == [200, 217, 255, 128, 255]
    assert result_of("solarize_add(0)", image).ravel().tolist() == [0, 17, 127, 128, 255]


def test_floats_are_rounded_first():
    image = GOLDENS["color"]

    def turn(x):
        return affine.rotate(x, 30.0)

    for function in (color.equalize, color.autocontrast, color.grayscale, color.invert, turn):
        result = function(tf.constant(image + 0.3, tf.float32))
        assert result.dtype == tf.uint8
        np.testing.assert_array_equal(result, function(tf.constant(image)))
    np.testing.assert_array_equal(as_uint8(tf.constant([-3.0, 0.6, 254.4, 300.0])), [0, 1, 254, 255])


def test_sizes_may_be_unknown():
    """As before a crop: height and width are None in the graph."""
    image = tf.constant(GOLDENS["color"])
    for function in (color.equalize, lambda x: color.sharpness(x, 1.9), lambda x: affine.translate_y(x, 5)):
        unknown = tf.function(function, input_signature=[tf.TensorSpec((None, None, 3), tf.uint8)])
        np.testing.assert_array_equal(unknown(image), function(image))


def test_two_channels_have_no_grey():
    with pytest.raises(ValueError, match="Expected an image of 1 or 3 channels, got 2"):
        color.saturation(tf.zeros((4, 4, 2), tf.uint8), 2.0)
