"""Measures of a trained model, and of its frozen features."""

from keras_vit.evaluation.classification import classify, report
from keras_vit.evaluation.features import extract
from keras_vit.evaluation.few_shot import few_shot
from keras_vit.evaluation.linear import logistic_head, ridge, ridge_head, scores
from keras_vit.evaluation.neighbours import knn_scores

__all__ = ["classify", "extract", "few_shot", "knn_scores", "logistic_head", "report", "ridge", "ridge_head", "scores"]
