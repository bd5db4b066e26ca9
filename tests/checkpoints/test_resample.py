"""Resampling: each method gives what its source gives (goldens/resample.json, written by those libraries)."""

import json
import pathlib

import numpy as np
import pytest
from sampled import sample

from keras_vit.checkpoints import resample_patches, resample_positions
from keras_vit.checkpoints.resample import METHODS

GOLDEN = json.loads((pathlib.Path(__file__).parent / "goldens" / "resample.json").read_text())
SOURCES = {
    "google": "scipy_zoom",
    "timm": "timm",
    "bicubic": "torch_bicubic",
    "bilinear": "timm_bilinear",
    "flexivit": "jax_linear",
}
SIZES = [(5, 6), (2, 3)]


def text(size):
    return "x".join(map(str, size))


@pytest.mark.parametrize("size", SIZES, ids=text)
@pytest.mark.parametrize("method", METHODS)
def test_positions_are_resampled_as_at_the_source(method, size):
    table = sample("positions", GOLDEN["positions"]["shape"], 1.0)  # (1, 1 + 3*4, d)
    result = resample_positions(table, (3, 4), size, 1, method)
    np.testing.assert_array_equal(result[:, :1], table[:, :1])
    expected = np.array(GOLDEN["resampled_positions"][SOURCES[method]][text(size)])
    np.testing.assert_allclose(result[0, 1:].reshape(expected.shape), expected, atol=2e-6)


@pytest.mark.parametrize("size", [(4, 4), (12, 12), (5, 7)], ids=text)
def test_patch_kernels_are_resampled_as_flexivit_does(size):
    kernel = sample("kernel", GOLDEN["kernel"]["shape"], 1.0)  # (8, 8, c, d)
    expected = np.array(GOLDEN["resampled_kernel"]["big_vision"][text(size)])
    np.testing.assert_allclose(resample_patches(kernel, size)[:, :, 0, 0], expected, atol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_a_constant_stays_and_a_same_grid_is_untouched(method):
    table = np.full((1, 14, 2), 3.0, "float32")
    np.testing.assert_allclose(resample_positions(table, (3, 4), (7, 5), 2, method), 3.0, atol=1e-6)
    rng = np.random.default_rng(0).normal(size=(1, 14, 2)).astype("float32")
    np.testing.assert_array_equal(resample_positions(rng, (3, 4), (3, 4), 2, method), rng)


def test_a_larger_patch_embeds_a_resized_patch_to_the_same(tmp_path):
    """The aim of FlexiViT: w . x = w' . resize(x) for larger patches."""
    rng = np.random.default_rng(0)
    kernel, patch = rng.normal(size=(4, 4, 3, 2)).astype("float32"), rng.normal(size=(4, 4, 3))
    matrix = METHODS["bilinear"](4, 8)
    larger = np.einsum("yp,xq,pqc->yxc", matrix, matrix, patch)
    embedded = np.einsum("pqcd,pqc->d", resample_patches(kernel, (8, 8)).astype("float64"), larger)
    np.testing.assert_allclose(embedded, np.einsum("pqcd,pqc->d", kernel, patch), atol=1e-5)


def test_a_wrong_table_or_method_is_refused():
    with pytest.raises(ValueError, match=r"5 rows, expected 1 \+ 3 x 3 = 10"):
        resample_positions(np.zeros((1, 5, 2)), (3, 3), (4, 4), prefix=1)
    with pytest.raises(ValueError, match="Valid: google, timm, bicubic, bilinear, flexivit"):
        resample_positions(np.zeros((1, 4, 2)), (2, 2), (4, 4), method="nearest")
