"""Settings in the configs next to the weights: read with their types, compared with the arrays, and written."""

import reprlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from keras_vit.layers.embedding.patches import pair

# JSON's names of Python's types.
WORDS = {
    bool: "true or false",
    dict: "an object",
    float: "a number",
    int: "an integer",
    list: "a list",
    str: "text",
    tuple: "a list of numbers",
    type(None): "null",
}


def setting(config: Mapping, name: str, *kinds: type) -> Any:
    """config[name] of a JSON config; None if missing or null. ValueError if it has none of the types `kinds`."""
    value = config.get(name)
    if value is None or type(value) in kinds:
        return value
    raise ValueError(
        f'"{name}" in the config should be {" or ".join(WORDS[k] for k in kinds)}, got {reprlib.repr(value)}.'
    )


def constants(config: Mapping, names: tuple[str, str], scale: float = 255.0) -> tuple[tuple, tuple] | None:
    """(mean, std) on the 0..255 scale from a config; None if it has none.

    Args:
        config: from JSON.
        names: its keys of mean and std.
        scale: pixel value of 1 in the config.

    Raises:
        ValueError: if one is missing, they are not one finite number per channel, or a std is not positive.
    """
    mean, std = (setting(config, name, list) for name in names)
    if mean is None and std is None:
        return None
    valid = all(type(value) in (int, float) and abs(value) < 1e6 for value in (*(mean or ()), *(std or ())))
    if not valid or not mean or not std or len(mean) != len(std) or min(std) <= 0:
        raise ValueError(
            f"{names[0]} and {names[1]} in the config should be one number per channel, std positive, got"
            f" {reprlib.repr((mean, std))}."
        )
    return tuple(scale * float(value) for value in mean), tuple(scale * float(value) for value in std)


def section(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """config[name], an object; {} if missing. ValueError for another type."""
    return setting(config, name, dict) or {}


def stated_pair(config: Mapping, name: str) -> tuple | None:
    """config[name], a number or (height, width), as a pair; None if missing. ValueError for anything else."""
    value = setting(config, name, int, list)
    return None if value is None else pair(value, name)


def plain_pair(sides: tuple[int, int]) -> int | list[int]:
    """A number, or [height, width] if they differ."""
    return sides[0] if sides[0] == sides[1] else list(sides)


def check_agreement(rows: Iterable[tuple[str, Any, Any]], where: str = "config.json") -> None:
    """Compares a config with the arrays.

    Args:
        rows: (name in the config, its value or None, the value by the arrays).
        where: the config's name, for messages.

    Raises:
        ValueError: with each difference and both values.
    """
    differences = [
        f"{name} is {reprlib.repr(stated)} in {where}, {actual!r} by the arrays"
        for name, stated, actual in rows
        if stated is not None and stated != actual
    ]
    if differences:
        raise ValueError(
            f"{where} describes a different model than the arrays: {'; '.join(differences)}. Load the weights with"
            " the config that belongs to them, or correct it."
        )


def _setting_at(config: Any, path: str) -> Any:
    """The value at a dotted path of keys, and of numbers in lists; None if missing."""
    for part in path.split("."):
        if isinstance(config, list):
            config = dict(enumerate(config)).get(int(part)) if part.isdecimal() else None
        else:
            config = config.get(part) if isinstance(config, Mapping) else None
    return config


def check_implemented(config: Mapping, implemented: Mapping[str, Any], where: str = "config.json") -> None:
    """Refuses settings of models that are not implemented, which no array shows.

    Args:
        config: from JSON.
        implemented: {key, or dotted path: the only value that is implemented}.
        where: the config's name, for messages.

    Raises:
        ValueError: with each such setting and the value that is implemented.
    """
    stated = {path: _setting_at(config, path) for path in implemented}
    wrong = [
        f"{path}={value!r} (implemented: {implemented[path]!r})"
        for path, value in stated.items()
        if value not in (None, implemented[path])
    ]
    if wrong:
        raise ValueError(f"{where} has settings that are not implemented: {'; '.join(wrong)}.")


def four_blocks(config: Mapping, name: str, least: int, most: int) -> list[int] | None:
    """The four numbers of blocks in config[name], in rising order; None if missing. ValueError for anything else."""
    stated = setting(config, name, list)
    if stated is None:
        return None
    numbers = sorted(set(stated)) if all(type(i) is int for i in stated) else []
    if len(stated) == len(numbers) == 4 and least <= numbers[0] <= numbers[3] <= most:
        return numbers
    raise ValueError(f'"{name}" in the config should be four blocks from {least} to {most}, got {stated[:50]}.')


def model_facts(model: Any, **others: Any) -> dict[str, Any]:
    """What configs state of a model: the fields of its spec, image_size, channels and classes, and `others`."""
    sizes = {"image_size": model.image_size, "channels": model.channels, "classes": model.classes}
    return {**vars(model.spec), **sizes, **others}


_KINDS: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "bool": (bool,),
    "number": (int, float),
    "numbers": (list,),
    "text": (str,),
}


class Settings:
    """A table of a config's settings: in each line a key, the fact that it states, and its kind.

    Facts are fields of the spec, image_size, classes, channels and what else a format has; kinds are those of _KINDS,
    or "pair" for a number or (height, width).
    """

    def __init__(self, text: str) -> None:
        self.rows = [line.split() for line in filter(None, map(str.strip, text.splitlines()))]

    def compared(self, config: Mapping[str, Any], facts: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
        """Rows for `check_agreement`, without those of facts that are None or missing."""

        def stated(key, kind):
            value = stated_pair(config, key) if kind == "pair" else setting(config, key, *_KINDS[kind])
            return tuple(value) if kind == "numbers" and value is not None else value

        return [(key, stated(key, kind), facts[fact]) for key, fact, kind in self.rows if facts.get(fact) is not None]

    def written(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """{key: value} of a config."""
        plain: dict[str, Callable] = {"pair": plain_pair, "numbers": list}
        return {key: plain[kind](facts[fact]) if kind in plain else facts[fact] for key, fact, kind in self.rows}
