"""Checks the entries of a .keras file's config on quantised or LoRA dense layers, before anything is built."""

from collections.abc import Mapping
from typing import Any

import keras

_MODES = ("int8", "int4", "float8")
_LONGEST_HISTORY = 2**16  # values; Keras' own length is 1024
# Building them runs only their own code; GPTQ and AWQ take data.
QUANTIZERS = (
    keras.quantizers.AbsMaxQuantizer,
    keras.quantizers.Float8QuantizationConfig,
    keras.quantizers.Int4QuantizationConfig,
    keras.quantizers.Int8QuantizationConfig,
)


def check(config: Mapping[str, Any], values: int, where: str) -> None:
    """Checks the entries "quantization" and "lora" of a config.

    Args:
        config: of a layer or a model; most have neither.
        values: the file's number of values, an upper bound for LoRA's matrices.
        where: names the config, for messages.

    Raises:
        ValueError: for an entry that this package does not write.
    """
    quantization, lora = config.get("quantization") or {}, config.get("lora") or {}
    for name, entry, is_valid in (("quantization", quantization, _is_quantization), ("lora", lora, _is_lora)):
        if not isinstance(entry, dict) or not all(map(is_valid, entry.values())):
            raise ValueError(f"{where}: {name} should say how each dense layer is adapted, so it was altered.")
    if sum(2 * rank for rank, _ in lora.values()) > values:
        raise ValueError(f"{where} describes a LoRA of higher rank than its file has values.")


def _is_quantization(how):
    return how in _MODES if isinstance(how, str) else isinstance(how, dict) and "class_name" in how


def check_object(node: Mapping[str, Any], where: str) -> None:
    """Checks a serialised quantisation or dtype policy: its quantisers, and the factors by which arrays grow.

    Raises:
        ValueError: for an impossible value.
    """
    numbers = node["config"] if isinstance(node.get("config"), dict) else {}
    block, history = numbers.get("block_size"), numbers.get("amax_history_length", 1)
    if node["class_name"] == "Int4QuantizationConfig" and not (
        block is None or (type(block) is int and (block > 0 or block == -1))
    ):
        raise ValueError(f"{where}: block_size should be a positive integer, -1 or null, got {block!r}.")
    quantizers = [numbers.get(name) for name in ("weight_quantizer", "activation_quantizer")]
    if any(quantizer is not None and not isinstance(quantizer, dict) for quantizer in quantizers):
        raise ValueError(f"{where}: a quantisation should name its quantisers as objects, got {quantizers}.")
    if node["class_name"] == "QuantizedFloat8DTypePolicy" and not (
        type(history) is int and 0 < history <= _LONGEST_HISTORY
    ):
        raise ValueError(f"{where}: amax_history_length should be at most {_LONGEST_HISTORY}, got {history!r}.")


def _is_lora(adapter):
    if not isinstance(adapter, (list, tuple)) or len(adapter) != 2:
        return False
    rank, alpha = adapter
    return type(rank) is int and rank > 0 and type(alpha) in (int, float) and abs(alpha) < 2**31


def is_packed(config: Mapping[str, Any]) -> bool:
    """Whether some kernels are int4, two per value of the file."""
    return any(_mode(how) == "int4" for how in (config.get("quantization") or {}).values())


def _mode(how):
    return how if isinstance(how, str) else {"Int4QuantizationConfig": "int4"}.get(how["class_name"])
