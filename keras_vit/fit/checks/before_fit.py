"""What `fit` refuses before it begins: data that a model cannot read, models that cannot train as they are set up."""

import collections.abc
import types
import warnings
from typing import Any

import keras

from keras_vit.layers.arguments import is_integer
from keras_vit.layers.normalization import batch_normalizations
from keras_vit.optim.wrappers import averaging, innermost


def check_data(model: Any, x: Any) -> None:
    """Refuses data without examples, an image outside a batch, or images of another shape: ValueError."""
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
    if len(expected) == 3 and shape[-3:] == (expected[-1], *expected[:2]) != expected:
        raise ValueError(
            f"The images have the shape {shape[-3:]}, and the model takes {expected}, channels last: transpose them,"
            " np.moveaxis(x, -3, -1)."
        )
    if len(shape) == len(expected) == 3 and shape[-1] == expected[-1]:
        fix = "batch the dataset: dataset.batch(32)" if is_dataset else "add a batch axis: x[None]"
        raise ValueError(f"The model takes batches of images {expected}, and got one image of shape {shape}: {fix}.")
    differ = any(None not in pair and pair[0] != pair[1] for pair in zip(shape[1:], expected))
    if len(shape) == 4 and len(expected) == 3 and differ:
        raise ValueError(
            f"The images have the shape {shape[1:]}, and the model takes {expected}: resize them, or make or load"
            " the model for them."
        )


def check_readable(model: Any, x: Any, y: Any) -> None:
    """As check_data, and refuses an iterable that fit and evaluate do not read, such as another library's loader."""
    check_data(model, x)
    is_known = isinstance(x, (types.GeneratorType, keras.utils.PyDataset)) or keras.tree.is_nested(x)
    if y is None and hasattr(x, "__iter__") and not (is_known or hasattr(x, "shape") or hasattr(x, "element_spec")):
        raise ValueError(
            "fit and evaluate read arrays, tf.data datasets, generators and keras.utils.PyDatasets, and got a"
            f" {type(x).__name__}. Make it a generator: def batches(): while True: yield from ((np.asarray(x),"
            " np.asarray(y)) for x, y in loader), then fit(batches(), steps_per_epoch=len(loader))."
        )


def check_loaded(model: Any) -> None:
    """Refuses a loaded model if its `compile` failed: Keras considers it compiled."""
    if getattr(model, "compiled", False) and not hasattr(model, "optimizer"):
        raise ValueError(f'"{model.name}" could not be compiled as it was when it was saved: call compile first.')


def _why_frozen(model):
    """Why no weight trains, and the fix."""
    if not model.trainable:
        return (
            "model.trainable is False, whatever its layers' own flags say. Set model.trainable = True, which"
            " unfreezes every layer, and freeze again those that should not train"
        )
    return "every layer of the model is frozen. Set trainable = True on some"


def check_trainable(model: Any) -> None:
    """Refuses to train what cannot train, or not as it is set up."""
    if not is_integer(model.micro_batches) or model.micro_batches < 1:
        raise ValueError(f"model.micro_batches should be a whole number of at least 1, got {model.micro_batches!r}.")
    if model.mixing is not None and not callable(model.mixing):
        raise ValueError(
            "model.mixing should be a training.Mixup, Cutmix, MixupOrCutmix, SceneMixup, Mosaic or None, got"
            f" {model.mixing!r}."
        )
    if not model.trainable_variables and model.variables:
        raise ValueError(f"Nothing would train: {_why_frozen(model)}, then compile again.")
    batch_norms = batch_normalizations(model) if averaging(getattr(model, "optimizer", None)) is not None else []
    if batch_norms:
        raise ValueError(
            f"The optimizer averages the weights, but batch normalisation ({batch_norms[0].name}) keeps statistics of"
            " the weights that train, which do not fit averages. Compile without averages, freeze these layers, or use"
            ' another normalisation: of dense heads by head_options={"norm": "group"}, of a linear head {"norm":'
            ' "layer"}.'
        )
    pure = {str(v.dtype) for v in model.trainable_variables} & {"bfloat16", "float16"}
    if pure:
        warnings.warn(
            f"The weights are {pure.pop()}, too coarse for small updates: training may stand still or diverge. Make"
            ' the model with dtype="mixed_bfloat16", which keeps them in float32.',
            stacklevel=4,
        )
    now = {layer for layer in model._flatten_layers() if layer.trainable}
    if getattr(model, "train_function", None) is not None and now != model.trained_layers:
        changed = sorted(layer.name for layer in now ^ model.trained_layers)
        raise ValueError(
            f"The layers {', '.join(changed[:8])} were frozen or unfrozen after compile: call compile again."
        )


def check_known(model: Any) -> None:
    """Refuses to train weights that the optimizer was not built for, with the remedy that Keras omits."""
    if not getattr(model, "compiled", False) or model.optimizer is None:
        return
    optimizer = innermost(model.optimizer)
    known = {id(v) for v in getattr(optimizer, "_trainable_variables", ())}
    new = [v.path for v in model.trainable_variables if id(v) not in known]
    if optimizer.built and new:
        raise ValueError(
            f"The weights {', '.join(new[:3])}{'...' if new[3:] else ''} are new since compile: call compile again."
        )
