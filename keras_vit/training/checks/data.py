"""Refuses data that a model cannot read."""

import collections.abc
import types
from typing import Any

import keras


def check_data(model: Any, x: Any) -> None:
    """Refuses data without examples, or images of another shape than the model's: ValueError with both."""
    if isinstance(x, (list, tuple)) and len(x) != len(model.inputs):
        raise ValueError(
            f"The data is a {type(x).__name__} of {len(x)}, and the model has {len(model.inputs)} input(s). Put"
            " images into one array: np.stack(x)."
        )
    read_by_keras = isinstance(x, types.GeneratorType) or hasattr(x, "element_spec")
    if isinstance(x, collections.abc.Iterator) and not read_by_keras:
        raise ValueError(
            f"Keras accepts generators but no other iterators, got a {type(x).__name__}. Make it one: (batch for"
            " batch in data)."
        )
    is_dataset = hasattr(x, "element_spec") and hasattr(x, "scan")  # distributed datasets are opaque
    arrays = keras.tree.flatten(x) if isinstance(x, (dict, list, tuple)) else [x]  # one per input
    empty = not is_dataset and any(getattr(array, "shape", ())[:1] == (0,) for array in arrays)
    if empty or (is_dataset and int(x.cardinality()) == 0):
        raise ValueError("The data is empty: it has no examples.")
    images = keras.utils.unpack_x_y_sample_weight(x.element_spec)[0] if is_dataset else x
    shape, expected = tuple(getattr(images, "shape", None) or ()), (*(model.image_size or ()), model.channels)
    differ = any(None not in pair and pair[0] != pair[1] for pair in zip(shape[1:], expected))
    if len(shape) == 4 and len(expected) == 3 and differ:
        raise ValueError(
            f"The images have the shape {shape[1:]}, and the model takes {expected}: resize them, or make or load"
            " the model for them."
        )
