"""Facts that training code writes next to a state dict: class names, image size, normalisation and heads."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from keras_vit.checkpoints.formats.parsed import ParsedCheckpoint

# {lower-case key in a file: ours}.
_KEYS = {
    **dict.fromkeys(("classes", "class_names", "classnames", "label_names", "labels"), "class_names"),
    **dict.fromkeys(("class_to_idx", "label2id", "class_to_id"), "class_numbers"),
    **dict.fromkeys(("image_size", "img_size", "input_size"), "image_size"),
    **dict.fromkeys(("mean", "image_mean", "img_mean"), "mean"),
    **dict.fromkeys(("std", "image_std", "img_std"), "std"),
    **dict.fromkeys(("heads", "num_heads", "n_heads", "nhead", "num_attention_heads"), "heads"),
}
_SECTIONS = ("args", "config", "cfg", "hparams", "hyper_parameters", "model_args", "model_config", "model_kwargs")
_UNIT = 3  # a standard deviation up to this is one of values 0..1 or of standardised ones, not of pixels 0..255


def _found(notes: Mapping[str, Any], depth: int = 2) -> Iterator[tuple[str, Any]]:
    """(our key, value) of the known keys, those next to the arrays first."""
    for key, value in notes.items():
        if str(key).lower() in _KEYS:
            yield _KEYS[str(key).lower()], value
    for name in _SECTIONS:
        if depth and isinstance(notes.get(name), dict):
            yield from _found(notes[name], depth - 1)


def _is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _size(value):
    """Pixels or (height, width) from 224, [224, 224] or [3, 224, 224]; None for anything else."""
    if isinstance(value, list) and len(value) == 3 and value[0] in (1, 3):
        value = value[1:]
    sides = value if isinstance(value, list) else [value, value]
    return tuple(sides) if len(sides) == 2 and all(type(side) is int and 0 < side < 2**16 for side in sides) else None


def _constants(found):
    """{"mean", "std"} on the 0..255 scale, {} unless both are numbers, one or one per channel."""
    values = [found.get(name) for name in ("mean", "std")]
    values = [value if isinstance(value, list) else [value] for value in values]
    if len({len(value) for value in values}) != 1 or not all(map(_is_number, sum(values, []))):
        return {}
    if not values[1] or min(values[1]) <= 0:
        return {}
    scale = 255.0 if max(values[1]) <= _UNIT else 1.0
    rows = [tuple(scale * float(x) for x in value) for value in values]
    return dict(zip(("mean", "std"), (row if len(row) > 1 else row[0] for row in rows)))


def arguments_in(notes: Mapping[str, Any]) -> dict[str, Any]:
    """{argument of `load`: value} that the notes state in a known form; others are left to the user."""
    found: dict[str, Any] = {}
    for name, value in _found(notes):
        if value is not None:
            found.setdefault(name, value)
    result = _constants(found)
    if (size := _size(found.get("image_size"))) is not None:
        result["image_size"] = size
    if type(found.get("heads")) is int and found["heads"] > 0:
        result["heads"] = found["heads"]
    return result


def described(parsed: ParsedCheckpoint, notes: Mapping[str, Any]) -> ParsedCheckpoint:
    """A parsed checkpoint with the class names in the notes, if it has none and they are as many as its classes."""
    if parsed.class_names is not None or parsed.classes is None:
        return parsed
    for name, value in _found(notes):
        if name == "class_numbers" and isinstance(value, dict) and all(type(n) is int for n in value.values()):
            value = sorted(value, key=value.get) if sorted(value.values()) == list(range(len(value))) else None
        if isinstance(value, list) and len(value) == parsed.classes and len({*map(str, value)}) == len(value):
            if all(isinstance(label, str) for label in value):
                return dataclasses.replace(parsed, class_names=tuple(value))
    return parsed
