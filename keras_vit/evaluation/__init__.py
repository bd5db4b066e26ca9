"""Measures of a trained model."""

from keras_vit.evaluation.classification import classify, report

__all__ = ["classify", "report"]
