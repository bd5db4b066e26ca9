"""Evaluators of trained models and of frozen features, by name, and the functions that they use."""

from keras_vit.evaluation.classification import Classification
from keras_vit.evaluation.features import Embedder, FeatureEvaluator, FeatureSplits
from keras_vit.evaluation.few_shot import FewShot, few_shot
from keras_vit.evaluation.knn import NearestNeighbours, knn_scores
from keras_vit.evaluation.linear import Logistic, Ridge, logistic_head, ridge, ridge_head, scores
from keras_vit.evaluation.registry import (
    EVALUATORS,
    Chart,
    Evaluation,
    Evaluator,
    Setting,
    make_evaluator,
    parse_evaluators,
    register,
)
from keras_vit.evaluation.robustness.corruptions import Corruptions
from keras_vit.evaluation.robustness.patches import Occlusion, Shifts, ShuffledPatches

__all__ = [
    "EVALUATORS",
    "Chart",
    "Classification",
    "Corruptions",
    "Embedder",
    "Evaluation",
    "Evaluator",
    "FeatureEvaluator",
    "FeatureSplits",
    "FewShot",
    "Logistic",
    "NearestNeighbours",
    "Occlusion",
    "Ridge",
    "Setting",
    "Shifts",
    "ShuffledPatches",
    "few_shot",
    "knn_scores",
    "logistic_head",
    "make_evaluator",
    "parse_evaluators",
    "register",
    "ridge",
    "ridge_head",
    "scores",
]
