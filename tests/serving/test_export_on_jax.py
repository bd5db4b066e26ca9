"""A model trained on the JAX backend as SavedModel and ONNX file; errors of the process that writes them."""

import json
import os
import re
import subprocess
import sys

import keras
import numpy as np
import pytest
from interpreters import Interpreter
from small_models import NAMED, every_weight, pixels

import keras_vit
from keras_vit.serving.onnx_format import runner as onnx_runner

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def jax():
    """A process on the JAX backend."""
    with Interpreter("jax") as interpreter:
        yield interpreter


def exported(folder):
    """Exports a model that was trained with sigmoids, as a SavedModel and as an ONNX file in bytes; returns its logits
    of five images. Runs on JAX.
    """
    assert keras.backend.backend() == "jax"
    model = every_weight()
    model.compile(keras_vit.training.AdamW(1e-2), keras_vit.training.SigmoidCrossEntropy())
    model.fit(pixels(4), np.eye(3, dtype="float32")[[0, 1, 2, 0]], batch_size=4, verbose=0)
    keras_vit.export(model, f"{folder}/m", top_k=2)
    keras_vit.export(model, f"{folder}/m.onnx", format="onnx", quantization="int8_static", calibration=pixels(16))
    return np.asarray(model(pixels(5))).tolist()


def test_exports_compute_what_the_model_did_on_jax(jax, tmp_path):
    import tensorflow as tf

    pytest.importorskip("tf2onnx")
    logits = np.array(jax.run(exported, str(tmp_path)))
    signatures = tf.saved_model.load(tmp_path / "m").signatures
    found = signatures["pixels"](tf.constant(pixels(5)))
    np.testing.assert_allclose(found["logits"], logits, atol=1e-5)
    np.testing.assert_allclose(found["probabilities"], tf.sigmoid(logits), atol=1e-5)
    png = tf.io.encode_png(pixels(1)[0].astype("uint8"))
    assert set(signatures["serving_default"](png[None])["classes"].numpy()[0].astype(str)) <= set(NAMED)
    found = onnx_runner(str(tmp_path / "m.onnx"))(pixels(5))
    assert np.linalg.norm(found["logits"] - logits) <= 0.05 * np.linalg.norm(logits)
    beside = json.loads((tmp_path / "m.onnx.json").read_text())
    assert beside["activation"] == "sigmoid" and beside["quantization"] == "int8_static"
    assert (tmp_path / "m" / "README.md").is_file() and sorted(os.listdir(tmp_path)) == ["m", "m.onnx", "m.onnx.json"]


@keras.saving.register_keras_serializable("test_export_on_jax")
class Doubled(keras.layers.Layer):
    def call(self, x):
        return x * 2


def refused(path, what):
    """[the kind of error, its message] of an export that fails. Runs on JAX."""
    options = {}
    if what == "an operation":
        model, options = every_weight(token_merging=1), {"format": "onnx"}
    else:
        model = every_weight(classes=None).with_head(Doubled())
    command = [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]
    try:
        with pytest.MonkeyPatch.context() as patch:
            if what == "a killed process":
                run = subprocess.run
                patch.setattr(subprocess, "run", lambda _, **how: run(command, **how))
            keras_vit.export(model, path, **options)
    except Exception as error:
        return [type(error).__name__, str(error)]


@pytest.mark.parametrize(
    ("what", "kind", "words"),
    [
        ("an operation", "ValueError", "^ONNX lacks operations of this model: .* Token merging"),
        (
            "a class",
            "ValueError",
            '"vit" cannot be built again .*Doubled.* Save it, and export it by a script of your own',
        ),
        ("a killed process", "OSError", '^"vit" was not exported, .*: it was ended by SIGKILL$'),
    ],
)
def test_errors_of_the_other_process_are_one_line_and_what_was_there_stays(jax, tmp_path, what, kind, words):
    pytest.importorskip("tf2onnx")
    path = tmp_path / ("m.onnx" if what == "an operation" else "m")
    if what == "an operation":
        path.write_text("old")
    else:  # an earlier export
        (path / "variables").mkdir(parents=True)
        (path / "saved_model.pb").write_text("old")
        (path / "metadata.json").write_text('{"keras_vit": "old"}')
    found, message = jax.run(refused, str(path), what)
    assert found == kind and re.search(words, message) and "\n" not in message, message
    assert os.listdir(tmp_path) == [path.name]
    assert (path if path.is_file() else path / "saved_model.pb").read_text() == "old"
