"""What makes `model.fit` right, and the paper's optimizers, schedules and losses."""

from keras_vit.training.averaging import StochasticWeightAveraging
from keras_vit.training.callbacks import EvaluateAverage, MetricsLog, swap_averages
from keras_vit.training.fit import Model
from keras_vit.training.lookahead import Lookahead
from keras_vit.training.losses import Accuracy, SigmoidCrossEntropy, SoftmaxCrossEntropy
from keras_vit.training.mixing import Cutmix, Mixup, MixupOrCutmix
from keras_vit.training.optimizers import AdamW, GlobalGradient, Momentum
from keras_vit.training.radam import RectifiedAdam
from keras_vit.training.saving import Checkpoints
from keras_vit.training.schedules import WarmupSchedule, resolve_steps
from keras_vit.training.strategy import strategy

__all__ = [
    "Accuracy",
    "AdamW",
    "Checkpoints",
    "Cutmix",
    "EvaluateAverage",
    "GlobalGradient",
    "Lookahead",
    "MetricsLog",
    "Mixup",
    "MixupOrCutmix",
    "Model",
    "Momentum",
    "RectifiedAdam",
    "SigmoidCrossEntropy",
    "SoftmaxCrossEntropy",
    "StochasticWeightAveraging",
    "WarmupSchedule",
    "resolve_steps",
    "strategy",
    "swap_averages",
]
