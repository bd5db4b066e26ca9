"""An export of real weights in a process without this package and without Keras."""

import os
import subprocess
import sys

import numpy as np
import pytest

import keras_vit

# Of the picture, by the authors' code (deit_tiny/cats_expected.npz): tabby, tiger cat, Egyptian cat, sleeping bag,
# space heater.
CLASSES = ["281", "282", "285", "797", "811"]

# Argument 1 is the export, argument 2 the folder of the picture, argument 3 that of pixels.npy and answers.npz.
SCRIPT = """
import pathlib, sys
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder


class Finder(PathFinder):
    @classmethod
    def find_spec(cls, name, *arguments):
        missing = name.partition(".")[0] in ("keras", "keras_vit", "PIL", "scipy", "etils", "tensorflow_datasets")
        return None if missing else super().find_spec(name, *arguments)


sys.meta_path[:] = [BuiltinImporter, FrozenImporter, Finder]
import numpy as np, tensorflow as tf

export, pictures, folder = map(pathlib.Path, sys.argv[1:])
signatures = tf.saved_model.load(str(export)).signatures
cats = (pictures / "cats.png").read_bytes()
answer = signatures["serving_default"](tf.constant([cats, cats[:5000], b"", cats]))
pixels = np.load(folder / "pixels.npy")
inputs = {"pixels": pixels, "pixels_uint8": pixels.astype("uint8")}
logits = {name: signatures[name](tf.constant(x))["logits"] for name, x in inputs.items()}
texts = {name: answer[name].numpy().astype("U") for name in ("classes", "status")}
np.savez(folder / "answers.npz", **texts, **logits)
"""


@pytest.mark.processes
def test_it_knows_the_cats_and_a_broken_image_of_a_batch_fails_alone(shared_data, tmp_path):
    model = keras_vit.load(shared_data / "deit_tiny")
    keras_vit.export(model, tmp_path / "deit")
    with np.load(shared_data / "deit_tiny" / "cats_expected.npz") as expected:
        reference, normalised = expected["logits"], expected["pixels"].astype("float64")
    pixels = (normalised * model.spec.std + model.spec.mean).round().astype("float32")  # the picture's own bytes
    np.save(tmp_path / "pixels.npy", pixels)
    command = [sys.executable, "-I", "-c", SCRIPT, tmp_path / "deit", shared_data / "deit_tiny", tmp_path]
    done = subprocess.run(
        command,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    with np.load(tmp_path / "answers.npz") as answers:
        for name in ("pixels", "pixels_uint8"):
            np.testing.assert_allclose(answers[name], model(pixels), atol=1e-5)
            np.testing.assert_allclose(answers[name], reference, atol=1e-5)
        assert answers["classes"].tolist() == [CLASSES, [""] * 5, [""] * 5, CLASSES]
        damaged, empty = answers["status"][1:3]
    assert damaged.startswith("The PNG cannot be decoded") and empty.startswith("It is empty")
