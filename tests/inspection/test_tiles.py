"""Small images from arrays: filters around grey, sheets whose tiles keep their places, PNG files."""

import io

import numpy as np
import pytest

from keras_vit.inspection import tiles

pytest.importorskip("matplotlib")


def test_filters_are_stretched_each_for_itself_around_grey():
    filters = np.zeros((3, 2, 2, 3))
    filters[0, 0, 0], filters[1, 1, 1, 0] = (1, 0, -1), -0.001
    shown = tiles.signed(filters)
    assert shown[0, 0, 0].tolist() == [255, 128, 0] and shown[1, 1, 1].tolist() == [0, 128, 128]
    assert (shown[2] == 128).all()
    assert (tiles.signed(np.ones((1, 2, 2, 1))) == 255).all() and tiles.signed(np.ones((1, 2, 2, 2))).shape == (
        1,
        2,
        2,
        3,
    )
    assert tiles.signed(np.ones((1, 2, 2, 5))).shape == (1, 2, 2, 3)


def test_a_sheet_keeps_places_and_is_transparent_between():
    numbered = np.arange(5, dtype="uint8")[:, None, None, None] * np.ones((1, 2, 3, 3), "uint8")
    whole = tiles.sheet(numbered, columns=2, gap=1)
    assert whole.shape == (3 * 2 + 2, 2 * 3 + 1, 4)
    for i in range(5):
        top, left = 3 * (i // 2), 4 * (i % 2)
        assert (whole[top : top + 2, left : left + 3, :3] == i).all() and (
            whole[top : top + 2, left : left + 3, 3] == 255
        ).all()
    assert (whole[2, :, 3] == 0).all() and (whole[:, 3, 3] == 0).all() and (whole[6:, 4:, 3] == 0).all()
    assert tiles.sheet(numbered[:1], columns=7, gap=2).shape == (2, 3, 4)
    assert tiles.sheet(numbered, columns=5, gap=0).shape == (2, 15, 4)
    assert tiles.stacked([whole, whole[:, :3]], gap=4).shape == (20, 7, 4)


def test_colours_run_from_low_to_high_and_pixels_become_squares():
    import matplotlib

    ends = [np.round(255 * np.array(matplotlib.colormaps["viridis"](x)[:3])).tolist() for x in (0.0, 1.0)]
    assert tiles.coloured(np.array([-5.0, -1, 1, 9]), -1, 1).tolist() == [ends[0], ends[0], ends[1], ends[1]]
    assert tiles.coloured(np.zeros((2, 3)), 0, 0).shape == (2, 3, 3)
    image = np.arange(12, dtype="uint8").reshape(2, 2, 3)
    large = tiles.enlarged(image, 3)
    assert large.shape == (6, 6, 3) and (large[3:, :3] == image[1, 0]).all()
    np.testing.assert_array_equal(tiles.resized(image, (6, 6), smooth=False), large)


def test_png_files_are_read_back():
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 4), dtype="uint8")
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(tiles.png(pixels)))), pixels)
