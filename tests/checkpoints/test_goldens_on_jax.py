"""Other libraries' outputs on the JAX backend."""

import pathlib

import keras
import numpy as np
import pytest
from golden_files import difference
from interpreters import Interpreter

import keras_vit

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def jax():
    with Interpreter("jax") as interpreter:
        yield interpreter


def differences(folder):
    """{golden: largest difference from the original's outputs}."""
    assert keras.backend.backend() == "jax"
    return {name: float(difference(name, pathlib.Path(folder))) for name in ("hybrid_root_only", "timm_dinov2")}


def test_goldens_on_jax(jax, tmp_path):
    found = jax.run(differences, str(tmp_path))
    assert len(found) == 2 and all(value <= 1e-4 for value in found.values()), found


def difference_of_deit(folder, told):
    expected = np.load(f"{folder}/cats_expected.npz")
    pixels = (expected["pixels"] * np.array([0.229, 0.224, 0.225]) + np.array([0.485, 0.456, 0.406])) * 255
    logits = np.asarray(keras_vit.load(f"{folder}/model.safetensors", **told)(pixels.astype("float32")))
    return float(np.abs(logits - expected["logits"]).max())


def test_deit_gives_the_reference_logits_on_jax(jax, shared_data, of_deit):
    assert jax.run(difference_of_deit, str(shared_data / "deit_tiny"), of_deit) <= 1e-4
