"""Exports of a model for serving."""

from keras_vit.serving.export import export

__all__ = ["export"]
