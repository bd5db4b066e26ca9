"""Layers with dense layers inside, and what their configs say of these: which are quantised, and which carry LoRA.

A config has two entries for it, each only where there is something to say:
    "quantization": {path: "int8", "int4" or "float8", or the config of a keras.quantizers.QuantizationConfig}
    "lora": {path: (rank, alpha)}
A path is the names of the layers from the outermost to the dense layer, "attention/query".
"""

import json
from collections.abc import Mapping
from typing import Any

import keras

from keras_vit.layers.dense.dense import LORA_WEIGHTS, Dense, kernels_deleted_quickly


def inner_layers(layer: keras.layers.Layer, prefix: str = "") -> dict[str, keras.layers.Layer]:
    """{path: layer} of all layers inside `layer`, at any depth."""
    found = {}
    for part in layer._flatten_layers(include_self=False, recursive=False):
        path = prefix + part.name
        found |= {path: part, **inner_layers(part, f"{path}/")}
    return found


def _options(config):
    """The options of a keras.quantizers config as text, to be compared."""
    return json.dumps({name: getattr(value, "__dict__", value) for name, value in vars(config).items()}, sort_keys=True)


def _quantization(dense):
    """How a layer is quantised: the mode alone where its other options are Keras' defaults."""
    config = dense.quantization_config
    if config is None or _options(config) == _options(type(config)()):
        return dense.quantization_mode
    return keras.saving.serialize_keras_object(config)


def dense_config(layer: keras.layers.Layer) -> dict[str, Any]:
    """The entries "quantization" and "lora" of a layer's config; {} where all of its dense layers are plain."""
    inner = {path: part for path, part in inner_layers(layer).items() if isinstance(part, keras.layers.Dense)}
    quantization = {path: _quantization(part) for path, part in inner.items() if part.quantization_mode is not None}
    lora = {
        path: (part.lora_rank, part.lora_alpha)
        for path, part in inner.items()
        if isinstance(part, Dense) and part.lora_enabled
    }
    return {name: value for name, value in (("quantization", quantization), ("lora", lora)) if value}


def apply_dense_config(
    layer: keras.layers.Layer, quantization: Mapping[str, Any] | None, lora: Mapping[str, Any] | None
) -> None:
    """Makes the dense layers inside a built layer what the two entries of its config say; LoRA then freezes the rest of
    the layer.

    Raises:
        ValueError: for a path that leads to no dense layer.
    """
    if not quantization and not lora:
        return
    inner = inner_layers(layer)
    wrong = [
        path for path in {**(quantization or {}), **(lora or {})} if not isinstance(inner.get(path), keras.layers.Dense)
    ]
    if wrong:
        raise ValueError(
            f'"{layer.name}" has no dense layers {wrong[:5]} ({len(wrong)}), which its config says are quantised or'
            " have LoRA."
        )
    with kernels_deleted_quickly():
        for path, how in (quantization or {}).items():
            if isinstance(how, str):
                inner[path].quantize(how)
            else:
                inner[path].quantize(config=keras.saving.deserialize_keras_object(how))
    for path, (rank, alpha) in (lora or {}).items():
        inner[path].enable_lora(rank, alpha)


def set_trainable(layer: keras.layers.Layer, value: bool) -> None:
    """Sets `trainable` of a layer and of everything inside. Keras on TensorFlow does nothing where the layer itself has
    this value already.
    """
    layer.trainable = not value
    layer.trainable = value


def train_lora_alone(layer: keras.layers.Layer) -> None:
    """Freezes what a layer holds, except the LoRA of its dense layers."""
    set_trainable(layer, any(isinstance(part, Dense) and part.lora_enabled for part in layer._flatten_layers()))
    for weight in layer.weights:
        weight.trainable = layer.trainable and weight.name in LORA_WEIGHTS


def freeze_quantized(layer: keras.layers.Layer) -> None:
    """Freezes the layers inside that are quantised, unless they have LoRA: integers do not learn, and biases alone
    would learn something else.
    """
    for part in layer._flatten_layers():
        if part.quantization_mode is not None and not getattr(part, "lora_enabled", False):
            part.trainable = False


class ComposedLayer(keras.layers.Layer):
    """The base of layers with dense layers inside: they come back from their configs quantised and with LoRA, as they
    were.

    A subclass calls `restore_dense` at the end of `build`.
    """

    def __init__(self, quantization: Mapping[str, Any] | None = None, lora: Mapping[str, Any] | None = None, **kwargs):
        super().__init__(**kwargs)
        self._quantization = quantization  # until it is built; then the dense layers themselves know
        self._lora = lora

    def restore_dense(self):
        """Quantises the dense layers that the config names, and gives them LoRA."""
        apply_dense_config(self, self._quantization, self._lora)
        if self._lora:
            train_lora_alone(self)
        self._quantization = self._lora = None

    def get_config(self):
        given = (("quantization", self._quantization), ("lora", self._lora))
        return {**super().get_config(), **{name: value for name, value in given if value}, **dense_config(self)}
