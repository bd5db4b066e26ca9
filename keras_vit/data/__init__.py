"""Sources of images, the preprocessing vocabulary, and batches of them. Knows no model."""

from keras_vit.data.arrays import from_arrays
from keras_vit.data.broken import Broken
from keras_vit.data.opening import open_source
from keras_vit.data.pipeline import evaluation_batches, training_batches
from keras_vit.data.preprocess import parse

__all__ = ["Broken", "evaluation_batches", "from_arrays", "open_source", "parse", "training_batches"]
