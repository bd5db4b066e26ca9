"""Evaluators of trained models and frozen features, by name, and their functions.

Names are imported on first use: a run needs only its own evaluators.
"""

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
from keras_vit.io.lazy import attach

_NAMES = {
    "AveragePrecision": "keras_vit.evaluation.average_precision",
    "Calibration fit_temperature": "keras_vit.evaluation.calibration",
    "Classification": "keras_vit.evaluation.classification_scores",
    "Detection": "keras_vit.evaluation.detection_scores",
    "Embedder FeatureEvaluator FeatureSplits": "keras_vit.evaluation.features",
    "Instances": "keras_vit.evaluation.instance_scores",
    "Mapped": "keras_vit.evaluation.imagenet.mapped",
    "Panoptic": "keras_vit.evaluation.panoptic_scores",
    "PanopticQuality": "keras_vit.evaluation.panoptic_quality",
    "Real real_accuracy": "keras_vit.evaluation.imagenet.real",
    "NearestNeighbours knn_scores": "keras_vit.evaluation.knn",
    "PseudoLabels confident pseudo_labels": "keras_vit.evaluation.labelling",
    "Logistic Ridge logistic_head ridge ridge_head scores": "keras_vit.evaluation.linear_probe",
    "LossAndMetrics": "keras_vit.evaluation.loss_and_metrics",
    "Reconstructions": "keras_vit.evaluation.reconstructions",
    "Reliability": "keras_vit.evaluation.reliability",
    "Retrieval": "keras_vit.evaluation.retrieval",
    "Corruptions": "keras_vit.evaluation.robustness.corruptions",
    "Occlusion Shifts ShuffledPatches": "keras_vit.evaluation.robustness.changed_patches",
    "Samples": "keras_vit.evaluation.samples",
    "Segmentation": "keras_vit.evaluation.segmentation_scores",
    "FewShot few_shot": "keras_vit.evaluation.shots",
}
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
    *" ".join(_NAMES).split(),
]
__getattr__ = attach(__name__, _NAMES)
