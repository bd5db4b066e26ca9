"""The binaries, one per file, and command.py, which unites them. They parse flags and call keras_vit."""

import importlib.util
import os

if any(importlib.util.find_spec(name) is None for name in ("absl", "ml_collections", "keras_vit")):
    raise SystemExit(
        'keras_vit is not installed here. In the checkout: pip install -e ".[cpu,viz]", or run "make install".'
    )

# Hides TensorFlow's notes about its build, unless the user sets the level.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
