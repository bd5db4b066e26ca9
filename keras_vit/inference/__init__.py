"""A model over much data: `predict` writes its answers about every image of a source as files of rows."""

from keras_vit.inference.predict import Report as Report
from keras_vit.inference.predict import predict as predict

__all__ = ["Report", "predict"]
