"""Linear CKA: Kornblith's equation and the unbiased minibatch estimate, against plain NumPy; the properties that define
it.
"""

import numpy as np
import pytest

import keras_vit
from keras_vit.inspection import (
    attention_weights,
    layer_similarity,
    linear_cka,
    minibatch_cka,
    representation_similarity,
    unbiased_hsic,
)


def by_gram_matrices(x, y):
    """CKA as in section 3 of the paper: HSIC(K, L) / sqrt(HSIC(K, K) HSIC(L, L)) with the centring matrix written
    out.
    """
    m = len(x)
    centring = np.eye(m) - np.ones((m, m)) / m

    def hsic(a, b):
        return np.trace(a @ a.T @ centring @ b @ b.T @ centring) / (m - 1) ** 2

    return hsic(x, y) / np.sqrt(hsic(x, x) * hsic(y, y))


@pytest.mark.parametrize("widths", [(3, 5), (40, 7), (30, 60)])
def test_linear_cka_is_kornbliths_equation(widths):
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(20, width)) + 3 for width in widths)
    y[:, :3] += 2 * x[:, :3]
    np.testing.assert_allclose(linear_cka(x, y), by_gram_matrices(x, y), atol=1e-10)
    np.testing.assert_allclose(linear_cka(y, x), linear_cka(x, y), atol=1e-10)


def test_rotations_and_factors_change_nothing():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 6))
    rotation, _ = np.linalg.qr(rng.normal(size=(6, 6)))
    np.testing.assert_allclose(linear_cka(x, 7 * x @ rotation + 2), 1, atol=1e-10)
    assert linear_cka(x, x @ np.diag([9, 1, 1, 1, 1, 1])) < 0.95
    with pytest.raises(ValueError, match=r"of the same examples, got \(30, 6\) and \(29, 6\)"):
        linear_cka(x, x[1:])


def test_hsic_without_bias_is_the_mean_over_all_quadruples_of_examples():
    """Equation 4 of Song et al. 2012, summed over all i, j, q, r that differ."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(6, 3)), rng.normal(size=(6, 2))
    k, g = x @ x.T, y @ y.T
    terms = []
    for i in range(6):
        for j in set(range(6)) - {i}:
            for q in set(range(6)) - {i, j}:
                for r in set(range(6)) - {i, j, q}:
                    terms.append(k[i, j] * g[i, j] + k[i, j] * g[q, r] - 2 * k[i, j] * g[i, q])
    found = unbiased_hsic(np.stack([k, g]))
    np.testing.assert_allclose(found[0, 1], np.mean(terms), atol=1e-10)
    np.testing.assert_allclose(found, found.T, atol=1e-12)
    with pytest.raises(ValueError, match="4 examples or more, got 3"):
        unbiased_hsic(np.zeros((2, 3, 3)))


def test_unrelated_features_have_none_in_common_even_if_they_outnumber_the_examples():
    rng = np.random.default_rng(0)
    batches = [[rng.normal(size=(8, 500)), rng.normal(size=(8, 400))] for _ in range(40)]
    values = minibatch_cka(batches)
    np.testing.assert_allclose(np.diagonal(values), 1)
    assert abs(values[0, 1]) < 0.1 < 0.9 < linear_cka(*batches[0])  # whose bias is the reason


def test_of_many_examples_in_one_batch_it_is_close_to_the_full_one():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 4))
    y = x @ rng.normal(size=(4, 6)) + rng.normal(size=(400, 6))
    np.testing.assert_allclose(minibatch_cka([[x.reshape(400, 2, 2), y]])[0, 1], linear_cka(x, y), atol=0.01)
    assert np.isnan(minibatch_cka([[x, np.ones((400, 2))]])[0, 1])
    with pytest.raises(ValueError, match="at least one batch"):
        minibatch_cka([])


@pytest.mark.parametrize(("count", "bytes_each"), [(4, 1), (7, 2**40), (33, 1), (100, 2**24), (64, 0)])
def test_batches_take_every_image_once_and_are_even(count, bytes_each):
    parts = representation_similarity._even_batches(count, bytes_each)
    sizes = [part.stop - part.start for part in parts]
    assert sum(sizes) == count and max(sizes) - min(sizes) <= 1 and min(sizes) >= 4 and max(sizes) <= 32


@pytest.mark.extended
def test_layers_of_a_model(tiny):
    images = np.random.default_rng(0).integers(0, 256, (9, 8, 12, 3), dtype="uint8")
    model, seen = tiny(registers=1), []
    values = layer_similarity(model, images, seen.append)
    outputs = keras_vit.Model(model.input, [model.get_layer(f"block_0{i}").output for i in (0, 1)])(images)
    features = [np.asarray(x).reshape(9, -1) for x in outputs]
    grams = np.stack([x @ x.T for x in features]).astype("float64")
    hsic = unbiased_hsic(grams)
    np.testing.assert_allclose(values, hsic / np.sqrt(np.outer(np.diagonal(hsic), np.diagonal(hsic))), atol=1e-3)
    assert seen == [9] and sorted(attention_weights(model, images[:1])) == [0, 1]
    bit = keras_vit.BiT("R50x1", image_size=32, classes=2, units=(1, 1), width_factor=0.5)
    assert layer_similarity(bit, np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3))).shape == (2, 2)
    np.testing.assert_allclose(layer_similarity(tiny(depth=1), images), [[1]])
    with pytest.raises(ValueError, match="expected 4 images or more, got 3"):
        layer_similarity(model, images[:3])
