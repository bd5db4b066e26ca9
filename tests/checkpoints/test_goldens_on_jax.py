"""Other libraries' outputs on the JAX backend, in processes of their own."""

import os
import pathlib
import subprocess
import sys

import pytest

pytestmark = pytest.mark.processes

GOLDENS = """
import pathlib, sys
import keras
from golden_files import difference

assert keras.backend.backend() == "jax"
for name in ("hybrid_root_only", "timm_dinov2"):
    folder = pathlib.Path(sys.argv[1], name)
    folder.mkdir()
    assert difference(name, folder) <= 1e-4, name
"""
DEIT = """
import sys
import keras, numpy as np
import keras_vit

assert keras.backend.backend() == "jax"
folder = sys.argv[1]
expected = np.load(f"{folder}/cats_expected.npz")
pixels = (expected["pixels"] * np.array([0.229, 0.224, 0.225]) + np.array([0.485, 0.456, 0.406])) * 255
logits = np.asarray(keras_vit.load(f"{folder}/model.safetensors")(pixels.astype("float32")))
assert np.abs(logits - expected["logits"]).max() <= 1e-4
"""


def run_on_jax(script, folder):
    path = os.pathsep.join([str(pathlib.Path(__file__).parent), *sys.path])
    environment = {
        **os.environ,
        "KERAS_BACKEND": "jax",
        "JAX_PLATFORMS": "cpu",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "PYTHONPATH": path,
    }
    command = [sys.executable, "-c", script, str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_goldens_on_jax(tmp_path):
    run_on_jax(GOLDENS, tmp_path)


def test_deit_gives_the_reference_logits_on_jax(shared_data):
    run_on_jax(DEIT, shared_data / "deit_tiny")
