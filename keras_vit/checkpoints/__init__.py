"""Loading and saving weights, and making them fit another task."""

from keras_vit.checkpoints.load import load
from keras_vit.checkpoints.resample import resample_positions
from keras_vit.checkpoints.transfer import transfer

__all__ = ["load", "resample_positions", "transfer"]
