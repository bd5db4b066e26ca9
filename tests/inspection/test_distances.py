"""Mean attention distance and entropy: against loops of plain NumPy and SciPy, and in cases whose answer is known."""

import numpy as np
import pytest
import scipy.stats

import keras_vit
from keras_vit.inspection import (
    attention_entropy,
    attention_weights,
    head_statistics,
    mean_attention_distance,
    patch_distances,
)


def weights_of(shape, seed=0):
    weights = np.random.default_rng(seed).random(shape)
    return weights / weights.sum(-1, keepdims=True)


def test_distances_are_between_the_centres_of_patches_in_pixels():
    distances = patch_distances((2, 3), (10, 4))
    assert distances.shape == (6, 6) and distances[0, 0] == 0
    assert distances[0, 1] == 4 and distances[0, 3] == 10 and distances[0, 2] == 8
    np.testing.assert_allclose(distances[1, 5], np.hypot(10, 4))
    np.testing.assert_array_equal(distances, distances.T)


def test_mean_attention_distance_is_its_definition():
    grid, stride, prefix = (3, 4), (16, 8), 2
    weights = weights_of((2, 3, 14, 14))
    expected = np.zeros((2, 3))
    for b in range(2):
        for k in range(3):
            for i in range(12):
                total = sum(weights[b, k, prefix + i, prefix + j] for j in range(12))
                for j in range(12):
                    dy, dx = 16 * (i // 4 - j // 4), 8 * (i % 4 - j % 4)
                    expected[b, k] += weights[b, k, prefix + i, prefix + j] / total * (dy**2 + dx**2) ** 0.5 / 12
    np.testing.assert_allclose(mean_attention_distance(weights, grid, stride), expected, atol=1e-10)
    np.testing.assert_allclose(mean_attention_distance(weights.astype("float32"), grid, stride), expected, atol=1e-5)


def test_attention_to_oneself_is_0_far_and_even_attention_the_mean_of_all_distances():
    itself = np.eye(6)[None, None]
    np.testing.assert_array_equal(mean_attention_distance(itself, (2, 3), (16, 16)), [[0]])
    even = np.full((1, 1, 7, 7), 1 / 7)
    np.testing.assert_allclose(
        mean_attention_distance(even, (2, 3), (16, 16))[0, 0], patch_distances((2, 3), (16, 16)).mean()
    )


def test_patches_that_attend_to_the_class_token_alone_are_left_out():
    weights = np.zeros((1, 2, 5, 5))
    weights[:, 1, :, 0] = 1  # the second head attends to no patch at all
    weights[:, 0, :, 0] = 1
    weights[:, 0, 1] = [0, 0, 1, 0, 0]  # and the first one once, from the first patch to the one on its right
    distance = mean_attention_distance(weights, (2, 2), (8, 3))
    assert distance[0, 0] == 3 and np.isnan(distance[0, 1])


def test_entropy_is_scipys_in_bits():
    weights = weights_of((2, 3, 5, 9))
    np.testing.assert_allclose(
        attention_entropy(weights), scipy.stats.entropy(weights, base=2, axis=-1).mean(-1), atol=1e-10
    )
    assert attention_entropy(np.eye(4)[None, None])[0, 0] == 0
    np.testing.assert_allclose(attention_entropy(np.full((1, 1, 8, 8), 1 / 8)), 3)


@pytest.mark.parametrize("options", [{}, {"registers": 2, "pool": "gap"}, {"patch_size": (4, 2)}])
def test_statistics_of_a_model_are_means_over_images_whatever_the_batch(tiny, pixels, options):
    model = tiny(**options)
    seen = []
    found = head_statistics(model, pixels, batch_size=3, advance=seen.append)
    stride = model.spec.patch_size
    for block, weights in attention_weights(model, pixels).items():
        np.testing.assert_allclose(
            found.distance[block], mean_attention_distance(weights, model.grid, stride).mean(0), atol=1e-5
        )
        np.testing.assert_allclose(found.entropy[block], attention_entropy(weights).mean(0), atol=1e-5)
    assert found.distance.shape == found.entropy.shape == (2, 2) and seen == [3, 1]
    np.testing.assert_allclose(found.even_distance, patch_distances(model.grid, stride).mean())
    assert found.even_entropy == np.log2(weights.shape[-1])


def test_statistics_need_attention_and_images(tiny):
    with pytest.raises(ValueError, match="needs images"):
        head_statistics(tiny(), np.zeros((0, 8, 12, 3)))
    bit = keras_vit.BiT("R50x1", image_size=32, classes=2, units=(1,), width_factor=0.5)
    with pytest.raises(ValueError, match="has no attention: it is a BiT"):
        head_statistics(bit, np.zeros((1, 32, 32, 3)))
