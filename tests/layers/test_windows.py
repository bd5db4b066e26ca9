"""Windows of a map: places, padding, and what shifted windows keep apart."""

import numpy as np
import pytest

from keras_vit.layers.attention.windows import pad, padding, partition, roll, shifted_regions, unpartition


@pytest.fixture
def x():
    return np.arange(2 * 4 * 6 * 3, dtype="float32").reshape(2, 4, 6, 3)


def test_a_window_is_a_rectangle_of_the_map(x):
    windows = np.asarray(partition(x, (2, 3)))
    assert windows.shape == (2 * 2 * 2, 6, 3)
    np.testing.assert_array_equal(windows[4 + 3], x[1, 2:4, 3:6].reshape(6, 3))  # the second image's last window


@pytest.mark.parametrize("shift", [(0, 0), (1, 2), (-3, 0), (5, -7)])
def test_a_map_is_rolled_as_numpy_does(x, shift):
    np.testing.assert_array_equal(roll(x, shift), np.roll(x, shift, (1, 2)))


def test_unpartition_inverts_partition(x):
    np.testing.assert_array_equal(unpartition(partition(x, (2, 3)), (2, 3), (4, 6)), x)


def test_padding_fills_the_last_windows_with_zeros(x):
    assert padding((4, 6), (3, 4)) == (2, 2) and padding((4, 6), (2, 3)) == (0, 0)
    padded = np.asarray(pad(x, (3, 4)))
    np.testing.assert_array_equal(padded[:, :4, :6], x)
    assert padded.shape == (2, 6, 8, 3) and not padded[:, 4:].any() and not padded[:, :, 6:].any()


def test_a_part_of_a_window_is_refused(x):
    with pytest.raises(ValueError, match="4x6 is not a whole number of windows of 3x3: pad it first"):
        partition(x, (3, 3))


def test_only_neighbours_before_the_roll_attend_to_each_other():
    rows, columns = np.indices((4, 4))
    rolled = [np.roll(places, (-1, -1), (0, 1)) for places in (rows, columns)]
    near = np.ones((4, 4, 4), bool)
    for places in rolled:
        tokens = np.asarray(partition(places[None, :, :, None], (2, 2)))[..., 0]  # (4, 4)
        near &= np.abs(tokens[:, :, None] - tokens[:, None]) <= 1
    np.testing.assert_array_equal(shifted_regions((4, 4), (2, 2), (1, 1)), near)
    assert shifted_regions((4, 4), (2, 2), (0, 0)).all()
