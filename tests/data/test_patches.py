"""Shifts, dropped and shuffled patches, on values."""

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.data.ops.op_registry import parse

RAMP = np.arange(6 * 8 * 3, dtype="uint8").reshape(6, 8, 3)
SEED = tf.constant([1, 2], tf.int64)


def run(text, image=RAMP):
    return np.asarray(parse(text).image(tf.constant(image), SEED))


def parts(image, height, width):
    """The parts of height x width pixels, row by row."""
    rows = [np.split(row, image.shape[1] // width, 1) for row in np.split(image, image.shape[0] // height, 0)]
    return [part for row in rows for part in row]


@pytest.mark.parametrize(("down", "right"), [(2, 0), (-1, 3), (0, -2), (0, 0)])
def test_a_shift_moves_by_whole_pixels_and_mirrors_at_the_border(down, right):
    far = np.pad(RAMP, ((4, 4), (4, 4), (0, 0)), mode="reflect")
    expected = far[4 - down : 10 - down, 4 - right : 12 - right]
    np.testing.assert_array_equal(run(f"shift({down}, {right})"), expected)
    black = np.pad(RAMP, ((4, 4), (4, 4), (0, 0)))[4 - down : 10 - down, 4 - right : 12 - right]
    np.testing.assert_array_equal(run(f"shift({down}, {right}, 'black')"), black)


def test_a_shift_beyond_the_image_is_black():
    assert not run("shift(0, 8, 'black')").any()


@pytest.mark.parametrize(("share", "dropped"), [(0.5, 6), (0.25, 3), (1.0, 12), (0.0, 0)])
def test_a_share_of_the_patches_is_dropped_and_the_others_stay(share, dropped):
    image = RAMP + 1
    pairs = list(zip(parts(run(f"drop_patches(2, {share}, 200)", image), 2, 2), parts(image, 2, 2)))
    filled = [(patch == 200).all() for patch, _ in pairs]
    assert sum(filled) == dropped
    assert all(is_filled or (patch == before).all() for is_filled, (patch, before) in zip(filled, pairs))


def test_patches_may_be_rectangles():
    assert sum((part == 0).all() for part in parts(run("drop_patches((3, 4), 0.5)", RAMP + 1), 3, 4)) == 2


def test_shuffled_parts_are_the_same_parts_in_another_order():
    shuffled = run("shuffle_patches(2)")
    before, after = ([part.tobytes() for part in parts(image, 3, 4)] for image in (RAMP, shuffled))
    assert sorted(before) == sorted(after) and before != after
    np.testing.assert_array_equal(run("shuffle_patches(1)"), RAMP)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("shift(0.5)", "expected an integer, in pixels"),
        ("shift(1, 1, 'white')", "expected one of mirror, black"),
        ("drop_patches(0, 0.5)", "integers of at least 1"),
        ("drop_patches(2, 1.5)", "a number from 0 to 1, got share"),
        ("drop_patches(2, 0.5, 300)", "level from 0 to 255"),
        ("drop_patches(4, 0.5)", "cannot divide an image of 6x8 pixels evenly"),
        ("shuffle_patches(4)", "cannot divide an image of 6x8 pixels evenly"),
    ],
)
def test_mistakes_are_refused(text, message):
    with pytest.raises(ValueError, match=message):
        run(text)


def test_shifts_refuse_what_they_would_leave_behind():
    with pytest.raises(ValueError, match="cannot move boxes"):
        parse("shift(1)")({"image": RAMP, "boxes": np.zeros((1, 4), "float32")})


def test_a_share_that_is_no_patch_is_refused():
    with pytest.raises(ValueError, match="a share of 0.1 of 4 patches is less than one"):
        parse("drop_patches(4, 0.1)").image(np.zeros((8, 8, 3), "uint8"), (0, 0))
