"""Load, save and adapt models."""

from keras_vit.checkpoints.fetch.catalogue import Published, find, list_models
from keras_vit.checkpoints.load import load
from keras_vit.checkpoints.resample import resample_patches, resample_positions
from keras_vit.checkpoints.save import save
from keras_vit.checkpoints.transfer import transfer

__all__ = ["Published", "find", "list_models", "load", "resample_patches", "resample_positions", "save", "transfer"]
