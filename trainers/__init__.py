"""The binaries, one per file, and command.py, which unites them. They parse flags and call keras_vit."""

import importlib.util
import os

if any(importlib.util.find_spec(name) is None for name in ("absl", "ml_collections", "keras_vit")):
    raise SystemExit(
        'keras_vit is not installed here. In the checkout: pip install -e ".[cpu]", or run "make install".'
    )

# Whether to hide TensorFlow's notes about itself: unless the user sets the level.
QUIET = "TF_CPP_MIN_LOG_LEVEL" not in os.environ
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
