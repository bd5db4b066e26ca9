"""keras_vit.Model, with a `fit` that is correct under every strategy, and optimizers, schedules, losses and mixing."""

from keras_vit.classification.distillation_losses import (
    Agreement,
    HardDistillation,
    SoftDistillation,
    StudentAccuracy,
    TeacherAccuracy,
)
from keras_vit.classification.mixup import Cutmix, Mixup, MixupOrCutmix
from keras_vit.depth.depth_losses import DepthL1, DepthScores, ScaleInvariantLogLoss
from keras_vit.detection.dense_loss import DenseDetectionLoss
from keras_vit.detection.grouped_loss import GroupedSetPredictionLoss
from keras_vit.detection.region_loss import RegionLoss
from keras_vit.detection.scene_mixing import Mosaic, SceneMixup
from keras_vit.detection.set_loss import SetPredictionLoss
from keras_vit.fit.losses import Accuracy, SigmoidCrossEntropy, SoftmaxCrossEntropy
from keras_vit.fit.model import Model
from keras_vit.image_text.contrastive_losses import PairAccuracy, SigmoidContrastive, SoftmaxContrastive
from keras_vit.instances.instance_loss import GroupedInstanceLoss, InstanceLoss
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
from keras_vit.prediction.preprocessing import Preprocessing
from keras_vit.pretraining.dino_loss import DINOLoss, TeacherEntropy
from keras_vit.pretraining.masked_losses import MaskedAccuracy, MaskedCrossEntropy, MaskedSquaredError
from keras_vit.segmentation.mask_loss import MaskClassificationLoss
from keras_vit.segmentation.pixel_losses import (
    DiceLoss,
    FocalLoss,
    SegmentationCrossEntropy,
    SegmentationLoss,
    pixel_class_weights,
)
from keras_vit.segmentation.scores import SegmentationScores

__all__ = [
    "DINOLoss",
    "Accuracy",
    "AdamW",
    "Agreement",
    "Cutmix",
    "DenseDetectionLoss",
    "DepthL1",
    "DepthScores",
    "DiceLoss",
    "EvaluateAverage",
    "FocalLoss",
    "GlobalGradient",
    "GroupedInstanceLoss",
    "GroupedSetPredictionLoss",
    "HardDistillation",
    "InstanceLoss",
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
    "ScaleInvariantLogLoss",
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
