"""Say which parts of a ViT made of Keras' own layers, such as keras.io's example, a ViT of this package lacks."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

_POOLING = {"Flatten": "the head reads all tokens, flattened", "Reshape": "the head reads all tokens, reshaped"}


def _layers(config) -> Iterator[dict[str, Any]]:
    """The layers in a model's config, those of nested models too."""
    inner = config.get("config") if isinstance(config, dict) else None
    nested = inner.get("layers") if isinstance(inner, dict) else None
    for layer in nested if isinstance(nested, list) else ():
        yield layer
        yield from _layers(layer)


def setting(config: Mapping[str, Any], name: str) -> Any:
    """A layer's argument; a function's name if it is one."""
    value = config.get(name)
    return value.get("config") if isinstance(value, dict) and value.get("class_name") == "function" else value


def _named(layers):
    names = [str(setting(layer["config"], "name")) for layer in layers]
    return f"{', '.join(names[:3])}{', ...' if len(names) > 3 else ''}"


def missing_parts(config: dict[str, Any]) -> list[str] | None:
    """The parts of a graph of Keras layers that ViT lacks, in words; None if it is not a Transformer.

    Args:
        config: of a Functional or Sequential model.
    """
    layers = [layer for layer in _layers(config) if isinstance(layer, dict) and isinstance(layer.get("config"), dict)]
    kinds = [layer.get("class_name") for layer in layers]
    places = [i for i, kind in enumerate(kinds) if kind == "MultiHeadAttention"]
    if not places:
        return None
    parts = []
    blocks = [layers[start:end] for start, end in zip(places, [*places[1:], len(layers)])]
    dense = [[layer for layer in block if layer["class_name"] == "Dense"] for block in blocks]
    head = dense[-1][2:]
    dense[-1] = dense[-1][:2]
    activated = [
        block[1]
        for block in dense
        if len(block) == 2 and setting(block[1]["config"], "activation") not in ("linear", None)
    ]
    if activated:
        kind = setting(activated[0]["config"], "activation")
        parts.append(f"{kind} after the second dense layer of each MLP ({_named(activated)})")
    if any(len(block) != 2 for block in dense):
        parts.append("blocks with other than two dense layers")
    flat = [layer for layer in blocks[-1] if layer["class_name"] in _POOLING]
    parts += [f"{_POOLING[layer['class_name']]} ({_named([layer])})" for layer in flat]
    if len(head) > 2:
        parts.append(f"{len(head) - 1} hidden layers in the head ({_named(head[:-1])})")
    return parts


def missing_by_shapes(shapes: Mapping[str, tuple[int, ...]]) -> list[str] | None:
    """What `missing_parts` says, as far as weights without a config show it; None if they are not a Transformer's.

    Args:
        shapes: {path in the HDF5 file: shape}.
    """
    blocks = sum(bool(re.search(r"multi_head_attention.*/query(_dense/vars/0|/kernel)", path)) for path in shapes)
    if not blocks:
        return None
    tables = [shape for path, shape in shapes.items() if "embedding" in path and len(shape) == 2]
    dense = [
        shape
        for path, shape in shapes.items()
        if len(shape) == 2 and re.search(r"(^|/)dense(_\d+)?/(vars/0$|.*kernel)", path)
    ]
    parts = []
    if any(kernel[0] == table[0] * table[1] for kernel in dense for table in tables):
        parts.append(_POOLING["Flatten"])
    if len(dense) > 2 * blocks + 2:
        parts.append(f"{len(dense) - 2 * blocks - 1} hidden layers in the head")
    return [*parts, "any activation after the second dense layer of each MLP, which such a file does not show"]


def sentence(parts: list[str]) -> str:
    """For a message: which parts cannot be loaded."""
    return (
        "It is a Transformer of Keras' own layers, as in keras.io's example. A ViT of this package lacks"
        f" {'; '.join(parts)}."
    )
