"""What makes `model.fit` right, and the paper's optimizers, schedules and losses."""

from keras_vit.training.callbacks import Checkpoints, EvaluateAverage, MetricsLog
from keras_vit.training.fit import Model
from keras_vit.training.losses import Accuracy, SigmoidCrossEntropy, SoftmaxCrossEntropy
from keras_vit.training.mixing import Mixup
from keras_vit.training.optimizers import AdamW, Momentum
from keras_vit.training.schedules import WarmupSchedule, resolve_steps

__all__ = [
    "Accuracy",
    "AdamW",
    "Checkpoints",
    "EvaluateAverage",
    "MetricsLog",
    "Mixup",
    "Model",
    "Momentum",
    "SigmoidCrossEntropy",
    "SoftmaxCrossEntropy",
    "WarmupSchedule",
    "resolve_steps",
]
