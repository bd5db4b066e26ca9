"""A config's training state: frozen layers, micro_batches, mixing, activation and fake quantisation."""

import warnings
from typing import Any

import keras

from keras_vit.fit.mixing import Neighbours

KEY = "training"  # of a model's config
ACTIVATIONS = ("softmax", "sigmoid")  # from logits to probabilities


def _frozen(layer, path=()):
    """The paths, tuples of names, of the outermost frozen layers in a layer; the empty path is the layer itself.

    Not inputs: they have no weights, and their names depend on the models that were built before.
    """
    if isinstance(layer, keras.layers.InputLayer):
        return []
    if not layer.trainable:
        return [path]
    children = layer._flatten_layers(include_self=False, recursive=False)
    return [found for child in children for found in _frozen(child, (*path, child.name))]


def _registered(name):
    """The mixing of this package with this name; None for another."""
    found = keras.saving.get_registered_object(f"keras_vit>{name}")
    return found if isinstance(found, type) and issubclass(found, Neighbours) else None


def _mixing(mixing):
    if mixing is None or _registered(type(mixing).__name__) is type(mixing):
        return mixing and {"name": type(mixing).__name__, **mixing.get_config()}
    warnings.warn(
        f"The mixing {mixing!r} is not saved with the model: only those of keras_vit.training are.", stacklevel=2
    )
    return None


def _fake_quantization(model):
    """The paths of layers with fake quantisation, those with one input together: [["a", "b"], ["c"]]."""
    if not any("fake_quantizer" in vars(layer) for layer in model._flatten_layers()):
        return []  # without loading a module that few models need
    from keras_vit.layers.fake_quantization import groups

    return groups(model)


def to_config(model: keras.Model) -> dict[str, Any]:
    """{KEY: the state of `model` as JSON}; {} if all is at its default."""
    state = {
        "frozen": ["/".join(path) for path in _frozen(model)],
        "micro_batches": model.micro_batches if model.micro_batches != 1 else None,
        "mixing": _mixing(model.mixing),
        "activation": model.activation,
        "fake_quantization": _fake_quantization(model),
    }
    state = {name: value for name, value in state.items() if value not in (None, [])}
    return {KEY: state} if state else {}


def restore(model: keras.Model, state: Any) -> None:
    """Sets the state from `to_config`, its value under KEY or None, on a new model; ValueError if it does not fit."""
    if state is None:
        return
    try:
        frozen, micro_batches, mixing = state.get("frozen", []), state.get("micro_batches", 1), state.get("mixing")
        if type(micro_batches) is not int or micro_batches < 1:
            raise ValueError(f"micro_batches={micro_batches!r}")
        if state.get("activation") not in (None, *ACTIVATIONS):
            raise ValueError(f"activation={state['activation']!r}")
        if mixing is not None:
            options = dict(mixing)
            model.mixing = _registered(options.pop("name"))(**options)
        if state.get("fake_quantization"):
            from keras_vit.layers.fake_quantization import attach_groups

            attach_groups(model, state["fake_quantization"])
        layers = [_find(model, path) for path in frozen if not _is_input(path)]  # also of fake quantisation
    except (AttributeError, KeyError, StopIteration, TypeError, ValueError) as error:
        raise ValueError(f'The model\'s config has a "{KEY}" that this model cannot have: {error!r}.') from None
    model.micro_batches, model.activation = micro_batches, state.get("activation")
    for layer in layers:
        # A layer from a config may be frozen without the layers in it, and setting the same value again has no effect.
        layer.trainable = True
        layer.trainable = False


def _is_input(path):
    """Whether a path is an input, which releases up to 0.4 listed: "image", or "left_image" of a model "left"."""
    return path == "image" or path.endswith("_image")


def _find(model, path):
    """The layer at a path such as "block_00/attention"; the model itself for ""."""
    layer = model
    for name in filter(None, path.split("/")):
        layer = next(
            child for child in layer._flatten_layers(include_self=False, recursive=False) if child.name == name
        )
    return layer
