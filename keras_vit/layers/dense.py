"""Keras' Dense in the backend's fastest form, quantised or with LoRA (arXiv 2106.09685), and layers built on it.

Such a layer's config has two optional entries:
    "quantization": {path: "int8", "int4" or "float8", or the config of a keras.quantizers.QuantizationConfig}
    "lora": {path: (rank, alpha)}
A path is the layers' names from the outermost to the dense layer, "attention/query".
"""

import contextlib
import gc
import json
from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from keras_vit.layers.arguments import as_named_now
from keras_vit.layers.backend import affine
from keras_vit.layers.registration import serializable

LORA_WEIGHTS = ("lora_kernel_a", "lora_kernel_b")


@contextlib.contextmanager
def kernels_deleted_quickly():
    """A context for replacing many kernels without scanning older objects in garbage collections.

    Keras collects garbage at each kernel, which takes most of the time: a tenth of a second and more with TensorFlow.
    """
    if gc.get_freeze_count():  # a freeze by the user could not be distinguished afterwards
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@serializable
class Dense(keras.layers.Dense):
    """keras.layers.Dense on tokens: (b, n, c) -> (b, n, units).

    Quantised, it computes as Keras' own. With LoRA, kernel and bias are frozen, however `trainable` is set, and a file
    keeps the two matrices: Keras would add them to the kernel and continue from two zero matrices, which never learn.
    """

    def call(self, inputs, training=None):
        bias = ops.convert_to_tensor(self.bias) if self.use_bias else None
        if not self.lora_enabled:
            return affine(inputs, ops.convert_to_tensor(self.kernel), bias, self.activation)
        y = affine(inputs, ops.convert_to_tensor(self._kernel), bias)
        # (b, n, c) -> (b, n, rank) -> (b, n, d)
        x = ops.matmul(ops.matmul(inputs, self.lora_kernel_a), self.lora_kernel_b)
        return self.activation(y + ops.cast(self.lora_alpha / self.lora_rank, x.dtype) * x)

    def quantize(self, mode=None, type_check=True, config=None):
        # Keras refuses subclasses, which might compute something else; this one does not.
        super().quantize(mode, type_check=False, config=config)

    @property
    def trainable(self):
        return keras.layers.Dense.trainable.fget(self)

    @trainable.setter
    def trainable(self, value):
        keras.layers.Dense.trainable.fset(self, value)
        if getattr(self, "lora_enabled", False):
            self._freeze_all_but_lora()

    def _freeze_all_but_lora(self):
        for weight in self.weights:
            weight.trainable = self.trainable and weight.name in LORA_WEIGHTS

    def enable_lora(self, rank, lora_alpha=None, a_initializer="he_uniform", b_initializer="zeros"):
        super().enable_lora(rank, lora_alpha, a_initializer, b_initializer)
        self._freeze_all_but_lora()

    def merge_lora(self):
        """Adds LoRA's product to the kernel, requantised if quantised, and drops LoRA; ValueError if there is none."""
        if not self.lora_enabled:
            raise ValueError(f'Dense "{self.path}" has no LoRA to merge.')
        merged = {}
        super().save_own_variables(merged)  # with the sum as kernel
        if self.quantization_mode is None:  # Keras rounds the sum to the compute dtype
            product = ops.matmul(ops.convert_to_tensor(self.lora_kernel_a), ops.convert_to_tensor(self.lora_kernel_b))
            merged["0"] = ops.convert_to_tensor(self._kernel) + ops.cast(
                product * (self.lora_alpha / self.lora_rank), self._kernel.dtype
            )
        del self.lora_kernel_a, self.lora_kernel_b
        self.lora_enabled, self.lora_rank, self.lora_alpha = False, None, None
        super().load_own_variables(merged)
        keras.layers.Dense.trainable.fset(self, self.trainable)  # kernel and bias follow the layer again

    @contextlib.contextmanager
    def _as_without_lora(self):
        enabled, self.lora_enabled = self.lora_enabled, False
        try:
            yield
        finally:
            self.lora_enabled = enabled

    def save_own_variables(self, store):
        with self._as_without_lora():
            super().save_own_variables(store)
        if self.lora_enabled:
            for name in LORA_WEIGHTS:
                store[name] = getattr(self, name)

    def load_own_variables(self, store):
        if not self.lora_enabled:
            return super().load_own_variables(store)
        if LORA_WEIGHTS[0] in store.keys():
            with self._as_without_lora():
                super().load_own_variables(store)
            for name in LORA_WEIGHTS:
                getattr(self, name).assign(store[name])
            return None
        start = ops.convert_to_numpy(self.lora_kernel_a)
        super().load_own_variables(store)  # sets both matrices to zeros
        self.lora_kernel_a.assign(start)
        return None


def inner_layers(layer: keras.layers.Layer, prefix: str = "") -> dict[str, keras.layers.Layer]:
    """{path: layer} of all layers inside `layer`, at any depth."""
    found: dict[str, keras.layers.Layer] = {}
    for part in layer._flatten_layers(include_self=False, recursive=False):
        path = prefix + part.name
        found |= {path: part, **inner_layers(part, f"{path}/")}
    return found


def _options(config):
    """The options of a keras.quantizers config as text, for comparison."""
    return json.dumps({name: getattr(value, "__dict__", value) for name, value in vars(config).items()}, sort_keys=True)


def _quantization(dense):
    """A layer's quantisation: the mode alone if its other options are Keras' defaults."""
    config = dense.quantization_config
    if config is None or _options(config) == _options(type(config)()):
        return dense.quantization_mode
    return keras.saving.serialize_keras_object(config)


def dense_config(layer: keras.layers.Layer) -> dict[str, Any]:
    """The entries "quantization" and "lora" of a layer's config; {} if all its dense layers are plain."""
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
    """Applies the two config entries inside a built layer; LoRA freezes the rest. ValueError for a wrong path."""
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
    """Sets `trainable` of a layer and everything inside; Keras on TensorFlow ignores an unchanged value."""
    layer.trainable = not value
    layer.trainable = value


def train_lora_alone(layer: keras.layers.Layer) -> None:
    """Freezes a layer except for its dense layers' LoRA."""
    set_trainable(layer, any(isinstance(part, Dense) and part.lora_enabled for part in layer._flatten_layers()))
    for weight in layer.weights:
        weight.trainable = layer.trainable and weight.name in LORA_WEIGHTS


def freeze_quantized(layer: keras.layers.Layer) -> None:
    """Freezes quantised layers without LoRA: integers do not learn, and biases alone would learn something else."""
    for part in layer._flatten_layers():
        if part.quantization_mode is not None and not getattr(part, "lora_enabled", False):
            part.trainable = False


class ComposedLayer(keras.layers.Layer):
    """The base of layers with dense layers inside; their configs restore quantisation and LoRA.

    A subclass calls `restore_dense` at the end of `build`.
    """

    def __init__(self, quantization: Mapping[str, Any] | None = None, lora: Mapping[str, Any] | None = None, **kwargs):
        super().__init__(**kwargs)
        self._quantization = quantization  # until built; then the dense layers know
        self._lora = lora

    @classmethod
    def from_config(cls, config):
        return super().from_config(as_named_now(config))

    def restore_dense(self):
        """Quantises the dense layers named in the config, and adds LoRA."""
        apply_dense_config(self, self._quantization, self._lora)
        if self._lora:
            train_lora_alone(self)
        self._quantization = self._lora = None

    def get_config(self):
        given = (("quantization", self._quantization), ("lora", self._lora))
        return {**super().get_config(), **{name: value for name, value in given if value}, **dense_config(self)}
