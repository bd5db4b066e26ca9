"""The paper's optimizers, optimizer wrappers, and learning-rate schedules."""

from keras_vit.optim.muon import Muon
from keras_vit.optim.optimizers import AdamW, GlobalGradient, Momentum
from keras_vit.optim.rectified_adam import RectifiedAdam
from keras_vit.optim.schedules import WarmupSchedule
from keras_vit.optim.wrappers import Lookahead, StochasticWeightAveraging

__all__ = [
    "AdamW",
    "GlobalGradient",
    "Lookahead",
    "Momentum",
    "Muon",
    "RectifiedAdam",
    "StochasticWeightAveraging",
    "WarmupSchedule",
]
