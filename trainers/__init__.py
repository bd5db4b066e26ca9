"""Binaries: pretrain, finetune, evaluate, export, benchmark, demo."""

import importlib.util
import os

if any(importlib.util.find_spec(name) is None for name in ("absl", "ml_collections", "keras_vit")):
    raise SystemExit('keras_vit is not installed here. In the checkout: pip install -e ".[cpu,viz]", or run "make install".')

# TensorFlow greets with lines about its build; a person can ask for them.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
