"""The environment variables that TensorFlow's TPU plugin reads when TensorFlow starts."""

import glob
import importlib.metadata
import importlib.util
import os

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
    """On a TPU VM with tensorflow-tpu, sets those of the plugin's variables that are not set yet. To be called before Keras is imported."""
    has_tpu = bool(glob.glob("/dev/accel*") or glob.glob("/dev/vfio/[0-9]*"))
    if not has_tpu or not _is_tpu_build():
        return
    import libtpu

    os.environ.setdefault("PJRT_DEVICE", "TPU")
    os.environ.setdefault("NEXT_PLUGGABLE_DEVICE_USE_C_API", "true")
    os.environ.setdefault("TF_PLUGGABLE_DEVICE_LIBRARY_PATH", libtpu.get_library_path())
    os.environ.setdefault("TF_XLA_FLAGS", _XLA_FLAGS)
