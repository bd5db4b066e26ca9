"""Runs a function of a test module in a fresh process: on several logical devices of the CPU, or on JAX."""

import inspect
import os
import pathlib
import subprocess
import sys

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
