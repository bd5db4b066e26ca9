"""Settings before Keras is imported: its backend, and environment variables of TensorFlow and its TPU plugin."""

import glob
import importlib.metadata
import importlib.util
import json
import os
import sys
import warnings

from keras_vit.io.suggest import pip_install

_BACKENDS = {"tensorflow": "TensorFlow", "jax": "JAX"}
_EXTRAS = {"tensorflow": "cpu", "jax": "jax"}

_XLA_FLAGS = (
    "--tf_mlir_enable_mlir_bridge=true --tf_mlir_enable_convert_control_to_data_outputs_pass=true "
    "--tf_mlir_enable_merge_control_flow_pass=true"
)


def _is_tpu_build():
    try:
        importlib.metadata.distribution("tensorflow-tpu")
    except importlib.metadata.PackageNotFoundError:
        return False
    return importlib.util.find_spec("libtpu") is not None


def prepare_tpu() -> None:
    """On a TPU VM with tensorflow-tpu, sets those of the plugin's variables that are not set yet. To be called before
    Keras is imported.
    """
    has_tpu = bool(glob.glob("/dev/accel*") or glob.glob("/dev/vfio/[0-9]*"))
    if not has_tpu or not _is_tpu_build():
        return
    import libtpu

    os.environ.setdefault("PJRT_DEVICE", "TPU")
    os.environ.setdefault("NEXT_PLUGGABLE_DEVICE_USE_C_API", "true")
    os.environ.setdefault("TF_PLUGGABLE_DEVICE_LIBRARY_PATH", libtpu.get_library_path())
    os.environ.setdefault("TF_XLA_FLAGS", _XLA_FLAGS)


def use_onednn() -> None:
    """Lets TensorFlow use oneDNN on every x86 CPU, unless TF_ENABLE_ONEDNN_OPTS is set. Without effect once TensorFlow
    is imported.

    By itself TensorFlow uses it only on CPUs with instructions for neural networks (AVX512 VNNI). With AVX2 alone, a
    training step of Ti/16 takes about two thirds of the time (docs/performance.md).
    """
    if "tensorflow" not in sys.modules:
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")


def _backend():
    """The Keras backend that is in use, or that Keras will choose when it is imported: KERAS_BACKEND, or keras.json."""
    if "keras" in sys.modules:
        return sys.modules["keras"].backend.backend()
    if os.environ.get("KERAS_BACKEND"):
        return os.environ["KERAS_BACKEND"]
    user = os.path.expanduser("~")
    home = os.environ.get("KERAS_HOME") or os.path.join(user if os.access(user, os.W_OK) else "/tmp", ".keras")
    try:
        with open(os.path.join(home, "keras.json")) as file:
            return json.load(file).get("backend", "tensorflow")
    except (OSError, ValueError):
        return "tensorflow"


def warn_of_unread_variables() -> None:
    """Warns of an environment variable of earlier releases that is set, and no longer read."""
    if os.environ.get("KERAS_VIT_TPU_KERNELS"):
        warnings.warn(
            "KERAS_VIT_TPU_KERNELS has no effect: this release has no kernels for TPUs, and XLA compiles all"
            " operations. Unset it.",
            stacklevel=2,
        )


def choose_backend() -> None:
    """Chooses JAX where TensorFlow is not installed, and refuses backends that this package does not run on.

    Raises:
        ImportError: for another backend than TensorFlow and JAX, or one that is not installed.
    """
    installed = {name for name in _BACKENDS if importlib.util.find_spec(name)}
    if not installed:
        raise ImportError(
            f"keras_vit needs TensorFlow or JAX, and neither is installed: {pip_install('cpu')}, or with [gpu], [tpu]"
            ' or [jax] instead of [cpu]; in a checkout: pip install -e ".[cpu]".'
        )
    if "tensorflow" not in installed and not os.environ.get("KERAS_BACKEND"):
        os.environ["KERAS_BACKEND"] = "jax"
    backend = _backend()
    if backend not in _BACKENDS:
        raise ImportError(
            f'keras_vit runs on the TensorFlow and JAX backends of Keras, and this is "{backend}": set'
            " KERAS_BACKEND=tensorflow or KERAS_BACKEND=jax before Keras is imported."
        )
    if backend not in installed:
        raise ImportError(
            f'The backend of Keras is "{backend}", but {_BACKENDS[backend]} is not installed:'
            f" {pip_install(_EXTRAS[backend])}."
        )
