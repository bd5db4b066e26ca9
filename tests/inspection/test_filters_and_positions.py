"""Filters and position embeddings: principal components and similarities against NumPy and scikit-learn, of every kind
of model.
"""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.inspection import (
    first_filters,
    nearest_is_neighbour,
    patch_positions,
    position_similarity,
    principal_components,
    principal_filters,
)
from keras_vit.layers.positions.embeddings import sincos_2d


@pytest.mark.parametrize("shape", [(40, 12), (12, 40), (3, 7)], ids=["tall", "wide", "few"])
def test_principal_components_are_those_of_a_singular_value_decomposition(shape):
    rng = np.random.default_rng(0)
    x = rng.normal(size=shape) * np.geomspace(1, 20, shape[1]) + 5
    axes, scores, shares = principal_components(x, 5)
    u, s, vt = np.linalg.svd(x - x.mean(0), full_matrices=False)
    count = min(5, *shape)
    signs = np.sign(vt[np.arange(count), np.abs(vt[:count]).argmax(1)])[:, None]
    rank = min(count, shape[0] - 1)  # centred: of m vectors m - 1 directions
    np.testing.assert_allclose(axes[:rank], (signs * vt[:count])[:rank], atol=1e-8)
    np.testing.assert_allclose(scores[:, :rank], (u[:, :count] * s[:count] * signs.T)[:, :rank], atol=1e-6)
    np.testing.assert_allclose(shares, (s**2 / (s**2).sum())[:count], atol=1e-10)


def test_principal_filters_are_scikit_learns():
    from sklearn.decomposition import PCA

    kernel = np.random.default_rng(0).normal(size=(4, 2, 3, 60)).astype("float32")
    kernel += np.linspace(0, 3, 60, dtype="float32") * kernel[..., :1]  # one direction that stands out
    filters, shares = principal_filters(kernel, 7)
    expected = PCA(7, svd_solver="full").fit(kernel.reshape(24, 60).T.astype("float64"))
    assert filters.shape == (7, 4, 2, 3)
    flat = filters.reshape(7, 24)
    np.testing.assert_allclose(np.abs((flat * expected.components_).sum(1)), 1, atol=1e-5)  # the same but for the sign
    np.testing.assert_allclose(shares, expected.explained_variance_ratio_, atol=1e-5)
    assert (flat[np.arange(7), np.abs(flat).argmax(1)] > 0).all()


@pytest.mark.extended
def test_the_first_filters_of_every_kind_of_model(tiny):
    vit = first_filters(tiny(patch_size=(4, 2)))
    assert vit.kernel.shape == (4, 2, 3, 16) and vit.layer == "patch_encoder" and vit.embeds_patches
    with pytest.raises(ValueError, match="has no filters on pixels: it embeds each pixel as its nearest colour"):
        first_filters(tiny("Ti/1", palette=8, pool="gap"))
    stem = first_filters(tiny(image_size=(16, 16), conv_stem=(8,)))
    assert stem.kernel.shape == (3, 3, 3, 8) and stem.layer == "stem_conv1" and not stem.embeds_patches
    hybrid = tiny("R50+B/16", image_size=(32, 32), stem=(1,), stem_width=32, patch_size=1)
    bit = keras_vit.BiT("R50x1", image_size=32, classes=2, units=(1,), width_factor=0.5)
    for model in (hybrid, bit, bit.with_head(keras.layers.Dense(3))):
        kernel = first_filters(model).kernel
        assert kernel.shape == (7, 7, 3, 32)
        np.testing.assert_allclose(kernel.mean((0, 1, 2)), 0, atol=1e-5)  # standardised, as the convolution uses it
        np.testing.assert_allclose(kernel.std((0, 1, 2)), 1, atol=1e-3)


def test_position_similarity_is_the_cosine_and_keeps_places():
    table, grid = np.random.default_rng(0).normal(size=(6, 5)), (2, 3)
    similarity = position_similarity(table, grid)
    for i in range(6):
        for j in range(6):
            expected = table[i] @ table[j] / np.sqrt((table[i] @ table[i]) * (table[j] @ table[j]))
            np.testing.assert_allclose(similarity[i // 3, i % 3, j // 3, j % 3], expected, atol=1e-12)


def test_sines_and_cosines_are_nearest_to_their_neighbours_and_noise_is_not():
    positions = sincos_2d((5, 8), 64)
    assert nearest_is_neighbour(position_similarity(positions, (5, 8))) == 1
    shuffled = np.random.default_rng(0).permutation(positions)
    assert nearest_is_neighbour(position_similarity(shuffled, (5, 8))) < 0.6
    assert nearest_is_neighbour(np.ones((1, 1, 1, 1))) == 1
    assert nearest_is_neighbour(position_similarity(np.zeros((4, 3)), (2, 2))) == 1  # no NaN


@pytest.mark.extended
def test_patch_positions_leave_out_the_other_tokens(tiny):
    model = tiny(distillation_token=True, registers=3)
    found = patch_positions(model)
    assert found.table.shape == (6, 16) and found.grid == (2, 3) and found.kind == "learned"
    np.testing.assert_array_equal(found.table, np.asarray(model.get_layer("position_embedding").embedding)[0, 2:])
    assert patch_positions(tiny(positions="sincos2d")).kind == "sincos2d"
    halves = patch_positions(tiny(positions="learned2d"))
    np.testing.assert_array_equal(halves.table[1::3, :8], halves.table[[1, 1], :8])  # a column's half
    np.testing.assert_array_equal(halves.table[3:, 8:], halves.table[[3] * 3, 8:])  # a row's
    each = tiny(positions="learned", positions_at="every")
    np.testing.assert_array_equal(
        patch_positions(each, block=-1).table, np.asarray(each.get_layer("position_embedding_01").embedding)[0, 1:]
    )
    assert patch_positions(tiny(positions_at="shared"), block=7).table.shape == (6, 16)
    with pytest.raises(ValueError, match="block=2: the model has blocks 0 to 1"):
        patch_positions(each, block=2)
    with pytest.raises(ValueError, match='adds no position embeddings.*attention has positions="rope2d"'):
        patch_positions(tiny(positions="rope2d"))
    with pytest.raises(ValueError, match='it has positions="none"'):
        patch_positions(tiny(positions="none"))
    with pytest.raises(ValueError, match="has no position embeddings: it is a BiT"):
        patch_positions(keras_vit.BiT("R50x1", image_size=32, classes=2, units=(1,), width_factor=0.5))
