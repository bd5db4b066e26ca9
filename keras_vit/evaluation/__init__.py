"""Evaluators of trained models and of frozen features, by name, and the functions that they use."""

from keras_vit.evaluation.calibration import Calibration, fit_temperature
from keras_vit.evaluation.classification import Classification
from keras_vit.evaluation.features import Embedder, FeatureEvaluator, FeatureSplits
from keras_vit.evaluation.few_shot import FewShot, few_shot
from keras_vit.evaluation.imagenet.mapped import Mapped
from keras_vit.evaluation.imagenet.real import Real, real_accuracy
from keras_vit.evaluation.knn import NearestNeighbours, knn_scores
from keras_vit.evaluation.linear import Logistic, Ridge, logistic_head, ridge, ridge_head, scores
from keras_vit.evaluation.pseudo_labels import PseudoLabels, confident, pseudo_labels
from keras_vit.evaluation.reconstructions import Reconstructions
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
from keras_vit.evaluation.reliability import Reliability
from keras_vit.evaluation.robustness.corruptions import Corruptions
from keras_vit.evaluation.robustness.patches import Occlusion, Shifts, ShuffledPatches
from keras_vit.evaluation.samples import Samples

__all__ = [
    "EVALUATORS",
    "Calibration",
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
    "Mapped",
    "NearestNeighbours",
    "Occlusion",
    "PseudoLabels",
    "Real",
    "Reconstructions",
    "Reliability",
    "Ridge",
    "Samples",
    "Setting",
    "Shifts",
    "ShuffledPatches",
    "confident",
    "few_shot",
    "fit_temperature",
    "knn_scores",
    "logistic_head",
    "make_evaluator",
    "parse_evaluators",
    "pseudo_labels",
    "real_accuracy",
    "register",
    "ridge",
    "ridge_head",
    "scores",
]
