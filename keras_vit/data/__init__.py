"""Sources of examples, the preprocessing vocabulary, and batches. Independent of any model."""

from keras_vit.io.missing import tensorflow_missing

if error := tensorflow_missing(
    "Reading data (keras_vit.data, evaluation, inference, runs and tasks)",
    "Without it, train and evaluate on arrays: model.fit(images, labels).",
):
    raise error

from keras_vit.data.any_aspect import to_patches
from keras_vit.data.batches import evaluation_batches, image_and_label, training_batches
from keras_vit.data.errors import ExampleErrors
from keras_vit.data.instances import pack_masks
from keras_vit.data.objects import pack_objects
from keras_vit.data.open import open_source
from keras_vit.data.ops.op_registry import parse
from keras_vit.data.palette import fit_palette, nearest_colors, sample_pixels
from keras_vit.data.sources.arrays import from_arrays

__all__ = [
    "ExampleErrors",
    "evaluation_batches",
    "fit_palette",
    "from_arrays",
    "image_and_label",
    "nearest_colors",
    "open_source",
    "pack_masks",
    "pack_objects",
    "parse",
    "sample_pixels",
    "to_patches",
    "training_batches",
]
