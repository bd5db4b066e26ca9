"""Evaluators of trained models and of frozen features, by name, and the functions that they use.

A name is imported when it is first used: a run needs only its own evaluators.
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
]

_NAMES = {
    "calibration": ("Calibration", "fit_temperature"),
    "classification": ("Classification",),
    "features": ("Embedder", "FeatureEvaluator", "FeatureSplits"),
    "imagenet.mapped": ("Mapped",),
    "imagenet.real": ("Real", "real_accuracy"),
    "knn": ("NearestNeighbours", "knn_scores"),
    "labelling": ("PseudoLabels", "confident", "pseudo_labels"),
    "linear": ("Logistic", "Ridge", "logistic_head", "ridge", "ridge_head", "scores"),
    "reconstructions": ("Reconstructions",),
    "reliability": ("Reliability",),
    "robustness.corruptions": ("Corruptions",),
    "robustness.patches": ("Occlusion", "Shifts", "ShuffledPatches"),
    "samples": ("Samples",),
    "shots": ("FewShot", "few_shot"),
}


def __getattr__(name: str) -> Any:
    for module, names in _NAMES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
