"""Evaluators of trained models and frozen features, by name, and their functions.

Names are imported on first use: a run needs only its own evaluators.
"""

import importlib
from typing import Any

from keras_vit.evaluation.registry import (
    EVALUATORS,
    Chart,
    Evaluation,
    Evaluator,
    Setting,
    find_evaluator,
    make_evaluator,
    parse_evaluators,
    register,
)

_NAMES = {  # by module
    "average_precision": "AveragePrecision",
    "calibration": "Calibration fit_temperature",
    "classification": "Classification",
    "detection": "Detection",
    "features": "Embedder FeatureEvaluator FeatureSplits",
    "imagenet.mapped": "Mapped",
    "imagenet.real": "Real real_accuracy",
    "knn": "NearestNeighbours knn_scores",
    "labelling": "PseudoLabels confident pseudo_labels",
    "linear": "Logistic Ridge logistic_head ridge ridge_head scores",
    "loss_and_metrics": "LossAndMetrics",
    "reconstructions": "Reconstructions",
    "reliability": "Reliability",
    "retrieval": "Retrieval",
    "robustness.corruptions": "Corruptions",
    "robustness.patches": "Occlusion Shifts ShuffledPatches",
    "samples": "Samples",
    "segmentation": "Segmentation",
    "shots": "FewShot few_shot",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = [
    "EVALUATORS",
    "Chart",
    "Evaluation",
    "Evaluator",
    "Setting",
    "find_evaluator",
    "make_evaluator",
    "parse_evaluators",
    "register",
    *_MODULES,
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
