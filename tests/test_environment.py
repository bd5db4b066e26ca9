"""What is settled before Keras is imported: which backend this package runs on."""

import json
import os
import subprocess
import sys
import types

import pytest

from keras_vit import environment


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """Makes it look as if only the given libraries were installed, Keras were not imported yet, and its folder were
    empty.
    """
    monkeypatch.delitem(sys.modules, "keras")
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))

    def only(*names):
        monkeypatch.setattr(environment.importlib.util, "find_spec", lambda name: name in names or None)

    only("tensorflow", "jax")
    return only


@pytest.mark.parametrize("backend", ["torch", "numpy", "openvino", "tensorflo"])
def test_other_backends_are_refused_in_one_sentence(backend, installed, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", backend)
    with pytest.raises(
        ImportError, match=f'this is "{backend}": set KERAS_BACKEND=tensorflow or KERAS_BACKEND=jax before'
    ):
        environment.choose_backend()


def test_the_backend_of_keras_json_counts_too(installed, monkeypatch, tmp_path):
    (tmp_path / "keras.json").write_text(json.dumps({"backend": "torch"}))
    with pytest.raises(ImportError, match='this is "torch"'):
        environment.choose_backend()
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    environment.choose_backend()


def test_a_keras_that_is_imported_already_has_its_backend(installed, monkeypatch):
    keras = types.SimpleNamespace(backend=types.SimpleNamespace(backend=lambda: "torch"))
    monkeypatch.setitem(sys.modules, "keras", keras)
    with pytest.raises(ImportError, match='this is "torch"'):
        environment.choose_backend()


def test_a_backend_that_is_not_installed_says_how_to_install_it(installed, monkeypatch):
    installed("tensorflow")
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    with pytest.raises(
        ImportError, match=r'"jax", but JAX is not installed: pip install "keras-vision-transformers\[jax\]"'
    ):
        environment.choose_backend()
    installed("jax")
    monkeypatch.setenv("KERAS_BACKEND", "tensorflow")
    with pytest.raises(
        ImportError, match=r'TensorFlow is not installed: pip install "keras-vision-transformers\[cpu\]"'
    ):
        environment.choose_backend()


def test_jax_alone_is_chosen(installed, monkeypatch):
    installed("jax")
    monkeypatch.setenv("KERAS_BACKEND", "")
    environment.choose_backend()
    assert os.environ["KERAS_BACKEND"] == "jax"


@pytest.mark.processes
def test_a_script_under_another_backend_ends_with_the_sentence():
    environ = {**os.environ, "KERAS_BACKEND": "numpy"}
    done = subprocess.run(
        [sys.executable, "-c", "import keras_vit"], capture_output=True, text=True, check=False, env=environ
    )
    assert done.stderr.splitlines()[-1].startswith(
        "ImportError: keras_vit runs on the TensorFlow and JAX backends of Keras"
    )


def test_onednn_is_on_unless_the_user_says_otherwise_or_tensorflow_is_there(monkeypatch):
    def found(modules, given=None):
        monkeypatch.setattr(environment.sys, "modules", modules)
        monkeypatch.setattr(environment.os, "environ", {} if given is None else {"TF_ENABLE_ONEDNN_OPTS": given})
        environment.use_onednn()
        return environment.os.environ.get("TF_ENABLE_ONEDNN_OPTS")

    assert found({}) == "1" and found({}, "0") == "0" and found({"tensorflow": None}) is None
