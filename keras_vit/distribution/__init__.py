"""Strategies for training over devices and machines."""

from keras_vit.distribution.strategy import STRATEGIES, Strategy, strategy

__all__ = ["STRATEGIES", "Strategy", "strategy"]
