"""What released versions saved still loads, and gives what it gave then (released/VERSION, written by release.py)."""

import json
import pathlib

import keras
import numpy as np
import pytest
from drawn import pixels

import keras_vit

RELEASED = pathlib.Path(__file__).parent / "released"
NOT_FILES = ("expected.json", "runs")
FILES = [path for version in sorted(RELEASED.iterdir()) for path in sorted(version.iterdir()) if path.name not in NOT_FILES]


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_files_of_released_versions_load(path):
    expected = json.loads((path.parent / "expected.json").read_text())[path.name]
    model = keras_vit.load(path)
    assert model.class_names == ("a", "b", "c")
    tolerance = 1e-5 if model.compute_dtype == "float32" else 2e-2
    np.testing.assert_allclose(model(pixels(*model.image_size)), expected, atol=tolerance)
    if path.suffix == ".keras":
        np.testing.assert_allclose(keras.saving.load_model(path)(pixels(*model.image_size)), expected, atol=tolerance)


def test_this_version_or_the_one_before_is_among_them():
    """A released version has its files; one in the making is newer than all of them."""
    versions = [tuple(map(int, path.name.split("."))) for path in RELEASED.iterdir()]
    assert max(versions) <= tuple(map(int, keras_vit.__version__.split(".")))
    assert (0, 1, 0) in versions
