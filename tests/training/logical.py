"""What the tests of strategies share: a small model and its data, and a function run in a fresh process on several devices."""

import inspect
import os
import pathlib
import subprocess
import sys

import keras
import numpy as np

import keras_vit
from trainers.check_strategies import JAX_ON_CPU

ROOT = pathlib.Path(__file__).resolve().parents[2]


def in_process(function, *arguments, backend="tensorflow", devices=1):
    """What `function(*arguments)`, of a module in this folder, prints; it runs with so many devices of the CPU."""
    environment = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3", **JAX_ON_CPU}
    module = pathlib.Path(inspect.getfile(function)).stem
    script = (
        f"import sys; sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r}); sys.path.insert(0, {str(ROOT / 'tests')!r})\n"
        f"from trainers.strategy_cases import prepare_devices; prepare_devices({backend!r}, {devices})\n"
        f"import {module}; {module}.{function.__name__}(*{arguments!r})\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def data(n=48):
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (n, 8, 12, 3), dtype="uint8"), rng.integers(0, 5, n)


def small(layout, optimizer, seed=0, **compiled):
    keras.utils.set_random_seed(seed)
    with layout.scope():
        model = keras_vit.ViT("Ti/4", image_size=(8, 12), depth=1, width=16, heads=2, mlp_dim=16, classes=5)
        compiled = {"jit_compile": False, **compiled}
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer(), loss, weighted_metrics=["accuracy"], **compiled)
    return model
