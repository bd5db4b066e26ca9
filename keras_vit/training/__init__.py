"""What makes `model.fit` right, and the paper's optimizers, schedules and losses."""

from keras_vit.training.callbacks import EvaluateAverage, MetricsLog
from keras_vit.training.fit import Model
from keras_vit.training.losses import Accuracy, SigmoidCrossEntropy, SoftmaxCrossEntropy
from keras_vit.training.mixing import Mixup
from keras_vit.training.optimizers import AdamW, GlobalGradient, Momentum
from keras_vit.training.saving import Checkpoints
from keras_vit.training.schedules import WarmupSchedule, resolve_steps
from keras_vit.training.strategy import strategy

__all__ = [
    "Accuracy",
    "AdamW",
    "Checkpoints",
    "EvaluateAverage",
    "GlobalGradient",
    "MetricsLog",
    "Mixup",
    "Model",
    "Momentum",
    "SigmoidCrossEntropy",
    "SoftmaxCrossEntropy",
    "WarmupSchedule",
    "resolve_steps",
    "strategy",
]
