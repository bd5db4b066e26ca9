"""Exports of a model for serving, and other engines for its forward pass."""

from keras_vit.io.missing import tensorflow_missing

if error := tensorflow_missing(
    "Exporting and serving a model", 'Without it, keep the model with model.save("model.keras").'
):
    raise error

from keras_vit.serving.export import export
from keras_vit.serving.openvino_engine import runner

__all__ = ["export", "runner"]
