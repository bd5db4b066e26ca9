"""Models trained on the JAX backend as SavedModel, ONNX and LiteRT files; errors of the process that writes them."""

import importlib
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
from keras_vit.serving.single_file import FILES

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def jax():
    """A process on the JAX backend."""
    with Interpreter("jax") as interpreter:
        yield interpreter


def trained(**options):
    """`every_weight` after a step of training, which makes its probabilities sigmoids."""
    model = every_weight(**options)
    model.compile(keras_vit.training.AdamW(1e-2), keras_vit.training.SigmoidCrossEntropy())
    model.fit(pixels(4), np.eye(3, dtype="float32")[[0, 1, 2, 0]], batch_size=4, verbose=0)
    return model


def export(path, options, kind=None):
    """Exports a trained model; returns its logits of five images. Runs on JAX."""
    assert keras.backend.backend() == "jax"
    if options.get("quantization") == "int8_static":
        options = {**options, "calibration": pixels(16)}
    model = trained(**(kind or {}))
    keras_vit.export(model, path, **options)
    return np.asarray(model(pixels(5))).tolist()


def test_a_savedmodel_computes_what_the_model_did_on_jax(jax, tmp_path):
    import tensorflow as tf

    logits = jax.run(export, str(tmp_path / "m"), {"top_k": 2})
    signatures = tf.saved_model.load(tmp_path / "m").signatures
    found = signatures["pixels"](tf.constant(pixels(5)))
    np.testing.assert_allclose(found["logits"], logits, atol=1e-5)
    np.testing.assert_allclose(found["probabilities"], tf.sigmoid(logits), atol=1e-5)
    png = tf.io.encode_png(pixels(1)[0].astype("uint8"))
    assert set(signatures["serving_default"](png[None])["classes"].numpy()[0].astype(str)) <= set(NAMED)
    assert (tmp_path / "m" / "README.md").is_file() and os.listdir(tmp_path) == ["m"]


@pytest.mark.parametrize(("format", "quantization"), [("onnx", None), ("litert", "int8_static")])
def test_files_compute_what_the_model_did_on_jax(jax, tmp_path, format, quantization):
    kind = FILES[format]
    for library in kind.libraries:
        pytest.importorskip(library)
    path = tmp_path / f"m{kind.suffix}"
    logits = np.array(jax.run(export, str(path), {"format": format, "quantization": quantization}))
    found = importlib.import_module(kind.module).runner(str(path))(pixels(5))
    assert np.linalg.norm(found["logits"] - logits) <= (0.05 if quantization else 1e-5) * np.linalg.norm(logits)
    beside = json.loads((tmp_path / f"{path.name}.json").read_text())
    assert beside["activation"] == "sigmoid" and beside["quantization"] == quantization
    assert sorted(os.listdir(tmp_path)) == [path.name, f"{path.name}.json"]


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
    path = tmp_path / "m.onnx"
    if what == "an operation":
        path.write_text("old")
    else:  # an earlier export
        (path / "variables").mkdir(parents=True)
        (path / "saved_model.pb").write_text("old")
        (path / "metadata.json").write_text('{"keras_vit": "old"}')
    found, message = jax.run(refused, str(path), what)
    assert found == kind and re.search(words, message) and "\n" not in message, message
    assert os.listdir(tmp_path) == ["m.onnx"]
    assert (path if path.is_file() else path / "saved_model.pb").read_text() == "old"
