"""Pictures of masks."""

import io

import numpy as np
import pytest
from PIL import Image

from keras_vit.inspection import mask_comparison as pictures
from keras_vit.io.mask_pictures import drawable

MASK = np.array([[0, 1, 255], [2, 2, 0]], "uint8")
COLORS = ((10, 20, 30), (200, 0, 0), (0, 0, 200))


def test_the_palette_starts_with_published_colours_and_never_repeats():
    # Okabe and Ito, Color Universal Design (2008), without black.
    okabe_ito = "#E69F00 #56B4E9 #009E73 #F0E442 #0072B2 #D55E00 #CC79A7".split()
    assert ["#{:02X}{:02X}{:02X}".format(*color) for color in pictures.palette(7)] == okabe_ito
    many = pictures.palette(300)
    assert len({*many, (0, 0, 0), (255, 255, 255)}) == 302
    assert pictures.palette(19) == many[:19]


def test_a_mask_in_its_colours_shows_void_in_black():
    expected = [[(10, 20, 30), (200, 0, 0), (0, 0, 0)], [(0, 0, 200), (0, 0, 200), (10, 20, 30)]]
    np.testing.assert_array_equal(pictures.colored(MASK, COLORS), expected)


def test_void_differs_from_a_black_class():
    assert pictures.void_color([(0, 0, 0), (1, 1, 1)]) == (224, 224, 192)  # as in Pascal VOC


def test_an_overlay_mixes_colours_and_leaves_void_as_it_is():
    image = np.full((2, 3, 1), 100)
    found = pictures.overlay(image, MASK, COLORS, alpha=0.25)
    np.testing.assert_array_equal(found[0], [[78, 80, 82], [125, 75, 75], [100, 100, 100]])


def test_an_overlay_refuses_a_mask_of_another_size():
    with pytest.raises(ValueError, match=r"The image has \(2, 2\) pixels, and its mask \(2, 3\)"):
        pictures.overlay(np.zeros((2, 2, 3)), MASK, COLORS)


def test_a_mask_file_holds_class_numbers_and_colours():
    image = Image.open(io.BytesIO(pictures.mask_png(MASK, COLORS)))
    np.testing.assert_array_equal(np.asarray(image), MASK)
    np.testing.assert_array_equal(np.asarray(image.convert("RGB")), pictures.colored(MASK, COLORS))


def test_a_mask_of_many_classes_has_16_bits():
    mask = np.array([[0, 299], [65535, 256]])
    np.testing.assert_array_equal(
        np.asarray(Image.open(io.BytesIO(pictures.mask_png(mask, pictures.palette(300))))), mask
    )


def test_the_error_is_red_where_wrong_and_black_without_a_true_class():
    image, prediction = np.full((2, 3, 3), 51), np.array([[0, 2, 1], [2, 2, 1]])
    found = pictures.error(image, MASK, prediction, classes=3)
    pale, red, black = (153, 153, 153), (255, 0, 255), (0, 0, 0)
    np.testing.assert_array_equal(found, [[pale, red, black], [pale, pale, red]])


def test_side_by_side_puts_titles_above_pictures():
    parts = pictures.comparison(np.zeros((40, 60, 3)), np.zeros((40, 60)), np.ones((40, 60)), COLORS)
    found = pictures.side_by_side(*parts, titles=("image", "truth", "prediction", "error"), gap=8)
    assert found.shape[1] == 4 * 60 + 3 * 8
    np.testing.assert_array_equal(found[-40:, 68:128], parts[1])


def test_a_legend_shows_the_classes_of_the_mask():
    found = pictures.with_legend(np.zeros((50, 300, 3), "uint8"), ["sky", "road", "car"], COLORS, MASK[1:])
    below = {tuple(color) for color in found[50:].reshape(-1, 3).tolist()}
    assert {COLORS[0], COLORS[2]} <= below
    assert COLORS[1] not in below


def test_a_name_that_the_font_lacks_is_a_number():
    assert drawable("猫", 4) == "class 4"
    assert drawable("road", 4) == "road"
    assert len(drawable("a very long name of a class in the data", 4)) <= 28
