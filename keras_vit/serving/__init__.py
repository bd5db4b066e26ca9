"""Exports of a model for serving, and other engines for its forward pass."""

from keras_vit.serving.export import export
from keras_vit.serving.openvino_engine import runner

__all__ = ["export", "runner"]
