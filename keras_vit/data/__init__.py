"""Sources of examples, the preprocessing vocabulary, and batches. Knows no model."""

from keras_vit.data.batches import evaluation_batches, image_and_label, training_batches
from keras_vit.data.errors import ExampleErrors
from keras_vit.data.open import open_source
from keras_vit.data.ops.text import parse
from keras_vit.data.sources.arrays import from_arrays

__all__ = ["ExampleErrors", "evaluation_batches", "from_arrays", "image_and_label", "open_source", "parse", "training_batches"]
