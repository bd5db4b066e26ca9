"""Exports of a model for serving, and other engines for its forward pass."""

import importlib.util

from keras_vit.io.missing import tensorflow_missing

if importlib.util.find_spec("tensorflow") is None:
    raise tensorflow_missing(
        "Exporting and serving a model",
        'Without it, keep the model with model.save("model.keras").',
    )

from keras_vit.serving.export import export
from keras_vit.serving.openvino_engine import runner

__all__ = ["export", "runner"]
