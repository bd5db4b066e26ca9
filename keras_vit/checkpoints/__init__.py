"""Loading and saving weights, and making them fit another task."""

from keras_vit.checkpoints.catalogue import find, list_models
from keras_vit.checkpoints.load import load
from keras_vit.checkpoints.resample import resample_patches, resample_positions
from keras_vit.checkpoints.save import save
from keras_vit.checkpoints.transfer import transfer

__all__ = ["find", "list_models", "load", "resample_patches", "resample_positions", "save", "transfer"]
