"""Writes an export with TensorFlow, in this process, or from JAX in one on the TensorFlow backend."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from typing import Any

import keras
import numpy as np

from keras_vit.answers import bind
from keras_vit.checkpoints.load import load
from keras_vit.checkpoints.save import save_model
from keras_vit.serving import single_file

_MODEL, _OPTIONS, _PIXELS, _ERROR = "model.keras", "options.json", "calibration.npy", "error.json"
_KINDS = {kind.__name__: kind for kind in (ValueError, ImportError, FileNotFoundError, OSError)}


def _environment():
    return {
        **os.environ,
        "KERAS_BACKEND": "tensorflow",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "-1",  # JAX has taken the GPU's memory
        "PYTHONPATH": os.pathsep.join(sys.path),
    }


def _write_here(model, path, format, options, verbose, quantization, calibration, ranges, only_outputs, runtime):
    answers = bind(model, **options)
    if format in single_file.FILES:
        return single_file.write(model, path, format, answers, quantization, calibration, only_outputs, ranges)
    if format == "web":
        from keras_vit.serving.web import page_folder

        return page_folder.write(model, path, answers, quantization, calibration, ranges, runtime)
    from keras_vit.serving import saved_model  # imports TensorFlow

    return saved_model.write(model, path, answers, verbose)


def _written(folder, path):
    """Writes the model of `folder`, in the other process; errors go into a file."""

    def place(name):
        return os.path.join(folder, name)

    with open(place(_OPTIONS), encoding="utf-8") as file:
        options = json.load(file)
    calibration = np.load(place(_PIXELS)) if os.path.exists(place(_PIXELS)) else None
    loaded = False
    try:
        model = load(place(_MODEL))
        loaded = True
        _write_here(model, path, **options, calibration=calibration)
    except tuple(_KINDS.values()) as error:
        kind = next(name for name, kind in _KINDS.items() if isinstance(error, kind))
        with open(place(_ERROR), "w", encoding="utf-8") as file:
            json.dump({"kind": kind, "message": str(error), "loaded": loaded}, file)
        sys.exit(1)


def _error(folder, done, name):
    """The other process's error, with its type and message if it was one of ours."""
    if not os.path.exists(os.path.join(folder, _ERROR)):
        ended = (
            f"it was ended by {signal.Signals(-done.returncode).name}"
            if done.returncode < 0
            else f"code {done.returncode}"
        )
        said = done.stderr.strip().splitlines() if done.returncode > 0 else []
        return OSError(
            f'"{name}" was not exported, because the process on the TensorFlow backend failed:'
            f" {said[-1] if said else ended}"
        )
    with open(os.path.join(folder, _ERROR), encoding="utf-8") as file:
        met = json.load(file)
    if met["loaded"]:
        return _KINDS[met["kind"]](met["message"])
    return ValueError(
        f'"{name}" cannot be built again on the TensorFlow backend, which writes exports: {met["message"]} Save it, and'
        " export it by a script of your own with KERAS_BACKEND=tensorflow, which imports its classes first."
    )


def write(model: keras.Model, path: str, options: dict[str, Any]) -> None:
    """Writes a checked export; `options` are the other arguments of `keras_vit.export`, with "options" of the answers.

    Raises:
        ValueError, ImportError, OSError: if writing fails; from JAX also if the model cannot be built on TensorFlow, or
            the process dies.
    """
    if keras.backend.backend() == "tensorflow":
        return _write_here(model, path, **options)
    with tempfile.TemporaryDirectory() as folder:
        save_model(model, os.path.join(folder, _MODEL))
        options = dict(options)
        calibration = options.pop("calibration")
        if calibration is not None:
            np.save(os.path.join(folder, _PIXELS), single_file.calibration_pixels(model, calibration))
        with open(os.path.join(folder, _OPTIONS), "w", encoding="utf-8") as file:
            json.dump(options, file, default=float)  # ranges may be NumPy's
        command = [sys.executable, "-P", "-m", __name__, folder, os.path.abspath(path)]
        done = subprocess.run(command, env=_environment(), capture_output=True, text=True, check=False)
        if done.returncode:
            raise _error(folder, done, model.name)
    print(done.stdout, end="")  # from verbose


if __name__ == "__main__":
    _written(*sys.argv[1:])
