"""Binaries, one a file, and command.py, which is all of them in one. They parse flags and call keras_vit."""

import importlib.util
import os

if any(importlib.util.find_spec(name) is None for name in ("absl", "ml_collections", "keras_vit")):
    raise SystemExit(
        'keras_vit is not installed here. In the checkout: pip install -e ".[cpu,viz]", or run "make install".'
    )

# TensorFlow greets with lines about its build; a person can ask for them.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
