"""Palettes: k-means as scikit-learn computes it, the nearest colours as numpy does."""

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.data import fit_palette, from_arrays, nearest_colors, palette, sample_pixels


def pixels(n=3000):
    rng = np.random.default_rng(0)
    centres = rng.integers(30, 220, (12, 3))
    return np.clip(np.rint(centres[rng.integers(0, 12, n)] + rng.normal(0, 8, (n, 3))), 0, 255).astype("uint8")


def test_it_is_scikit_learns_k_means_from_the_same_start():
    cluster = pytest.importorskip("sklearn.cluster")
    rows, counts = np.unique(pixels(), axis=0, return_counts=True)
    start = palette._spread(rows.astype("float64"), counts.astype("float64"), 20, np.random.default_rng(5))
    theirs = cluster.KMeans(20, init=start, n_init=1, max_iter=100, tol=0, algorithm="lloyd").fit(
        rows.astype("float64"), sample_weight=counts
    )
    ours = fit_palette(pixels(), 20, seed=5, rounds=100)
    expected = np.rint(theirs.cluster_centers_)
    np.testing.assert_array_equal(ours, expected[np.lexsort((*expected.T[::-1], expected.sum(-1)))])


def test_it_is_the_same_for_a_seed_and_sorted_by_brightness():
    one, other = fit_palette(pixels(), 20, seed=1), fit_palette(pixels(), 20, seed=2)
    np.testing.assert_array_equal(one, fit_palette(pixels().reshape(30, 100, 3), 20, seed=1))
    assert (one != other).any() and (np.diff(one.sum(-1)) >= 0).all() and (one == np.rint(one)).all()


def test_more_colours_than_there_are_is_refused():
    grey = np.arange(10)[:, None].repeat(3, axis=0)
    assert fit_palette(grey, 10).tolist() == [[i] for i in range(10)]
    with pytest.raises(ValueError, match="at least 11 colours, the size of the palette, got 10"):
        fit_palette(grey, 11)


def test_the_nearest_colours_are_numpys_also_in_a_pipeline():
    image = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype="uint8")
    colors = np.random.default_rng(1).integers(0, 256, (40, 3)).astype("float32")
    expected = ((image.reshape(-1, 1, 3).astype("float64") - colors) ** 2).sum(-1).argmin(-1)
    [found] = tf.data.Dataset.from_tensors(image).map(lambda x: nearest_colors(x, colors))
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == tf.int32


@pytest.mark.extended
def test_pixels_are_those_of_the_preprocessed_images():
    images = np.random.default_rng(0).integers(0, 256, (10, 4, 4, 3), dtype="uint8")
    source = from_arrays(images, np.arange(10) % 2)
    found = sample_pixels(source, "decode|resize(2, 2, method='area')", 200, seed=3, per_image=8)
    np.testing.assert_array_equal(
        found, sample_pixels(source, "decode|resize(2, 2, method='area')", 200, seed=3, per_image=8)
    )
    means = images.reshape(10, 2, 2, 2, 2, 3).mean(axis=(2, 4)).reshape(-1, 3)
    assert len(found) >= 200 and all(np.abs(means - pixel).max(-1).min() <= 0.51 for pixel in found)
