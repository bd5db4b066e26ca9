"""Which layers of a model to quantise, and what a quantised model can still learn."""

import re
from collections.abc import Callable, Sequence

import keras

from keras_vit.io.suggest import check_known
from keras_vit.layers.convolutions import BottleneckUnit
from keras_vit.layers.dense import LORA_WEIGHTS, Dense
from keras_vit.layers.fake_quantization import check_plain

MODES = ("int8", "int4", "float8")
Filters = str | Sequence[str] | Callable[[keras.layers.Layer], bool] | None


def quantized_layers(model: keras.Model) -> list[keras.layers.Layer]:
    """A model's quantised layers, at any depth."""
    return [
        layer
        for layer in model._flatten_layers()
        if layer.quantization_mode is not None and layer.weights and _is_leaf(layer)
    ]


def _is_leaf(layer):
    return len(layer._flatten_layers()) == 1


def _matches(layer, filters):
    """As in Keras: patterns are searched in the layer's name."""
    if filters is None:
        return True
    if callable(filters):
        return filters(layer)
    return any(re.search(pattern, layer.name) for pattern in ([filters] if isinstance(filters, str) else filters))


def layers_to_quantize(model: keras.Model, mode: str | None, config, filters: Filters) -> list[keras.layers.Layer]:
    """The layers that `model.quantize(mode, config, filters)` quantises: supported by Keras, not yet quantised.

    ValueError for an unsupported mode, or without such a layer.
    """
    mode = getattr(config, "mode", config) or mode
    check_known(mode, "quantize: mode", MODES, "; gptq and awq are for language models")
    check_plain(model, "quantize")
    able = [
        layer
        for layer in model._flatten_layers()
        if type(layer).quantize is not keras.layers.Layer.quantize and _is_leaf(layer)
    ]
    convolutional = any(isinstance(layer, BottleneckUnit) for layer in model._flatten_layers())
    if convolutional and not any(isinstance(layer, Dense) for layer in able):
        raise ValueError(f'quantize: "{model.name}" consists of convolutions, which Keras does not quantise.')
    left = [layer for layer in able if layer.quantization_mode is None]
    if not left:
        state = "is quantised already" if able else "has no dense layers"
        raise ValueError(f'quantize: "{model.name}" {state}.')
    chosen = [layer for layer in left if _matches(layer, filters)]
    if not chosen:
        raise ValueError(
            f"quantize: filters={filters!r} match none of {', '.join(sorted({layer.name for layer in left}))}."
        )
    if mode == "int8" and any(layer.compute_dtype == "float16" for layer in chosen):
        raise ValueError(
            "quantize: int8 needs a compute dtype of float32 or bfloat16, got float16. Load the model with"
            ' dtype="mixed_bfloat16".'
        )
    if mode == "float8" and any(getattr(layer, "lora_enabled", False) for layer in chosen):
        raise ValueError(
            "quantize: float8 does not support LoRA. Merge it first (keras_vit.models.merge_lora), or use int8 or int4."
        )
    return chosen


def check_kernels(model: keras.Model, replicas: int) -> None:
    """Refuses to train a quantised layer's other weights: integers do not learn, and biases alone would learn
    otherwise.

    Args:
        model: about to be trained.
        replicas: of its strategy.

    Raises:
        ValueError: with the layers and the remedy.
    """
    layers = quantized_layers(model)
    integer = [layer for layer in layers if layer.quantization_mode != "float8"]
    wrong = [layer.path for layer in integer if any(w.name not in LORA_WEIGHTS for w in layer.trainable_weights)]
    if wrong:
        raise ValueError(
            f"Layers that are quantised to {integer[0].quantization_mode} do not learn: {', '.join(wrong[:3])}"
            f" ({len(wrong)} in all). Train before you quantise; or train LoRA alone:"
            " keras_vit.models.enable_lora(model, rank=8); or another head alone: vit.with_head(layer), then"
            " keras_vit.models.freeze_all_but_head."
        )
    if len(integer) < len(layers) and (replicas > 1 or model.micro_batches > 1):
        raise ValueError(
            "A model in float8 trains on one device and without micro_batches: its scales are not gradients, and must"
            " not be added up."
        )
