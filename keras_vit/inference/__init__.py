"""Batch inference: `predict` writes a model's answers for every image of a source to files of rows."""

from keras_vit.inference.predict import Report as Report
from keras_vit.inference.predict import predict as predict

__all__ = ["Report", "predict"]
