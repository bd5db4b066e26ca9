"""Polygons and run lengths to masks, compared with pycocotools and by hand."""

import json
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.data.annotations.rasterise import group_numbers, painted, polygon_spans, run_spans, to_fifths
from keras_vit.data.annotations.run_lengths import decoded

GOLDENS = json.loads((pathlib.Path(__file__).parent / "goldens" / "coco_masks.json").read_text())["cases"]


@tf.function(reduce_retracing=True)
def drawn(points, rings, values, height, width):
    return painted(*polygon_spans(points, rings, height, width), values, 0, height, width)


def mask_of(polygons, values, size):
    points = [np.array(polygon, "float64").reshape(-1, 2) for polygon in polygons]
    rings = np.repeat(np.arange(len(points)), [len(part) for part in points])
    vertices = to_fifths(np.concatenate(points)) if points else np.zeros((0, 2))
    arrays = [tf.constant(vertices, tf.int32), tf.constant(rings, tf.int32), tf.constant(values, tf.uint8)]
    return drawn(*arrays, *map(tf.constant, size)).numpy()[..., 0]


def filled(counts, size):
    return np.repeat(np.arange(len(counts)) % 2, counts).reshape(size[::-1]).T


@pytest.mark.parametrize("number", range(len(GOLDENS)))
def test_polygons_equal_those_of_pycocotools(number):
    case = GOLDENS[number]
    mask = mask_of(case["polygons"], [1] * len(case["polygons"]), case["size"])
    np.testing.assert_array_equal(mask, filled(decoded(case["counts"]), case["size"]))


def test_a_pixel_belongs_to_a_polygon_if_its_centre_is_inside():
    mask = mask_of([[1, 1, 4, 1, 4, 3, 1, 3]], [1], (5, 6))
    expected = np.zeros((5, 6), "uint8")
    expected[1:3, 1:4] = 1
    np.testing.assert_array_equal(mask, expected)
    assert mask_of([[1.6, 1, 4.4, 1, 4.4, 3, 1.6, 3]], [1], (5, 6)).sum() == 2 * 2  # centres 1.5 and 4.5 are outside


def test_later_regions_cover_earlier_ones():
    big, small = [0, 0, 6, 0, 6, 5, 0, 5], [1, 1, 3, 1, 3, 3, 1, 3]
    mask = mask_of([big, small], [7, 9], (5, 6))
    assert (mask[1:3, 1:3] == 9).all() and (mask == 7).sum() == 26
    assert (mask_of([small, big], [9, 7], (5, 6)) == 7).all()


def test_random_overlaps_equal_painting_one_after_the_other():
    rng = np.random.default_rng(0)
    polygons = [rng.uniform(-5, 45, 2 * rng.integers(3, 9)).tolist() for _ in range(12)]
    values = rng.integers(1, 255, 12)
    expected = np.zeros((30, 40), "uint8")
    for polygon, value in zip(polygons, values):
        expected[mask_of([polygon], [1], (30, 40)) == 1] = value
    np.testing.assert_array_equal(mask_of(polygons, values, (30, 40)), expected)


def test_no_polygons_give_the_background():
    assert not mask_of([], [], (3, 4)).any()


def test_run_lengths_of_several_regions_count_down_the_columns():
    counts, regions = tf.constant([2, 3, 0, 1, 4, 1]), tf.constant([0, 0, 1, 1, 1, 1])
    spans = run_spans(counts, regions)
    mask = painted(*spans, tf.constant([5, 300], tf.int32), 1, tf.constant(2), tf.constant(3))[..., 0]
    # Region 0 is pixels 2, 3 and 4; region 1 is pixels 0 and 5.
    assert mask.dtype == tf.int32 and mask.numpy().T.reshape(-1).tolist() == [300, 1, 5, 5, 5, 300]


def test_groups_may_be_empty():
    assert group_numbers(tf.constant([2, 0, 1, 0])).numpy().tolist() == [0, 0, 2]
    assert group_numbers(tf.zeros([0], tf.int32)).shape == (0,)


def test_damaged_compressed_run_lengths_are_refused():
    with pytest.raises(ValueError, match="truncated"):
        decoded("P")
    with pytest.raises(ValueError, match="invalid character"):
        decoded("1 2")
