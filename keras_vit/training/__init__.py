"""keras_vit.Model, with a `fit` that is correct under every strategy, and optimizers, schedules, losses and mixing."""

from keras_vit.optim import (
    AdamW,
    GlobalGradient,
    Lookahead,
    Momentum,
    Muon,
    RectifiedAdam,
    StochasticWeightAveraging,
    WarmupSchedule,
)
from keras_vit.optim.wrappers import EvaluateAverage, swap_averages
from keras_vit.training.contrastive import PairAccuracy, SigmoidContrastive, SoftmaxContrastive
from keras_vit.training.detection_losses import DenseDetectionLoss
from keras_vit.training.distillation import (
    Agreement,
    HardDistillation,
    SoftDistillation,
    StudentAccuracy,
    TeacherAccuracy,
)
from keras_vit.training.grouped_prediction import GroupedSetPredictionLoss
from keras_vit.training.losses import Accuracy, SigmoidCrossEntropy, SoftmaxCrossEntropy
from keras_vit.training.mask_classification import MaskClassificationLoss
from keras_vit.training.masked_losses import MaskedAccuracy, MaskedCrossEntropy, MaskedSquaredError
from keras_vit.training.mixing import Cutmix, Mixup, MixupOrCutmix
from keras_vit.training.model import Model
from keras_vit.training.prediction.preprocessing import Preprocessing
from keras_vit.training.region_losses import RegionLoss
from keras_vit.training.scene_mixing import Mosaic, SceneMixup
from keras_vit.training.segmentation_losses import (
    DiceLoss,
    FocalLoss,
    SegmentationCrossEntropy,
    SegmentationLoss,
    pixel_class_weights,
)
from keras_vit.training.segmentation_scores import SegmentationScores
from keras_vit.training.self_distillation import DINOLoss, TeacherEntropy
from keras_vit.training.set_prediction import SetPredictionLoss

__all__ = [
    "DINOLoss",
    "Accuracy",
    "AdamW",
    "Agreement",
    "Cutmix",
    "DenseDetectionLoss",
    "DiceLoss",
    "EvaluateAverage",
    "FocalLoss",
    "GlobalGradient",
    "GroupedSetPredictionLoss",
    "HardDistillation",
    "Lookahead",
    "MaskClassificationLoss",
    "MaskedAccuracy",
    "MaskedCrossEntropy",
    "MaskedSquaredError",
    "Mixup",
    "MixupOrCutmix",
    "Model",
    "Momentum",
    "Mosaic",
    "Muon",
    "PairAccuracy",
    "Preprocessing",
    "RectifiedAdam",
    "RegionLoss",
    "SceneMixup",
    "SegmentationCrossEntropy",
    "SegmentationLoss",
    "SegmentationScores",
    "SetPredictionLoss",
    "SigmoidContrastive",
    "SigmoidCrossEntropy",
    "SoftDistillation",
    "SoftmaxContrastive",
    "SoftmaxCrossEntropy",
    "StochasticWeightAveraging",
    "StudentAccuracy",
    "TeacherAccuracy",
    "TeacherEntropy",
    "WarmupSchedule",
    "pixel_class_weights",
    "swap_averages",
]
