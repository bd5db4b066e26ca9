"""A sweep's grid: text to points, {config key: value}.

"optimizer.learning_rate=1e-3,3e-3;model.dropout=0,0.1" has four points. Commas inside brackets belong to a value. A bar
separates grids that run one after the other: "model.depth=2,8|model.width=32,128" varies one key at a time.
"""

import ast
import dataclasses
import itertools
import re

from keras_vit.io.suggest import did_you_mean_key
from keras_vit.models import families
from keras_vit.runs.config_keys import OPEN, check_not_off, is_evaluator, is_packaged_task, literal, remove_key, set_key
from keras_vit.runs.prepare import check

OWN = "own"  # --sweep without a grid: the config's grid


@dataclasses.dataclass(frozen=True)
class Grid:
    """The points of a sweep; parts: {config key: values} of each part."""

    parts: tuple

    @property
    def keys(self):
        """The config keys of all parts."""
        return list(dict.fromkeys(key for part in self.parts for key in part))

    def points(self):
        """Each point as {key: value}, the last key of a part varying fastest."""
        return [dict(zip(part, point)) for part in self.parts for point in itertools.product(*part.values())]

    def short(self, key):
        """The last word of a key, or the whole key where that is ambiguous."""
        last = key.split(".")[-1]
        return last if [other.split(".")[-1] for other in self.keys].count(last) == 1 else key

    def name(self, point):
        """A directory name: "learning_rate=0.001,dropout=0.1"."""
        return re.sub(r"[^\w.,=+-]+", "-", ",".join(f"{self.short(key)}={value}" for key, value in point.items()))


def _parts(text):
    """A grid's parts. A bar that no "key=" follows belongs to a preprocessing text."""
    return [part.strip() for part in re.split(r"\|(?=\s*[A-Za-z_]\w*(?:\.\w+)*\s*=)", text) if part.strip()]


def _split(text, separator):
    """`text` split at the separators outside brackets."""
    depth, parts = 0, [""]
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character == separator and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


def _place(config, key):
    """(ConfigDict with `key`'s last part, None if yet to be created, that part, its type); ValueError if unknown."""
    *folders, last = key.split(".")
    # Spec fields are checked here; evaluators, task options and custom models check their keys when they are made.
    section = key.partition(".")[0]
    of_specs = families.fields()  # valid keys of config.model, set or not
    parts, any_key = [], section in OPEN and (section != "model" or not is_packaged_task(config.task))
    for part in (*folders, last):
        parts.append(part)
        valid = list(config.keys()) if hasattr(config, "keys") else []
        if parts[:-1] == ["model"]:
            valid = [*valid, *(name for name in of_specs if name not in valid)]
        if part not in valid and any_key and len(parts) > 1:
            return None, last, object
        if part not in valid:
            hint = did_you_mean_key(part, valid, config)
            raise ValueError(f'The sweep\'s {key}: the config has no "{part}" there.{hint} Valid: {", ".join(valid)}.')
        if parts != [*folders, last]:
            config = config[part]
    value_type = config.get_type(last) if last in config else object
    if value_type is object and last in of_specs:
        value_type = of_specs[last].type
    return config, last, value_type


def _value(text, key, value_type):
    """`text` as a value of the type, None for "None"; ValueError names the type."""
    check_not_off(key, text, value_type)
    if text == "None":
        return None
    try:
        if value_type is bool:
            return {"true": True, "false": False}[text.lower()]
        if value_type in (int, float, str):
            return value_type(text)
        return literal(text) if value_type is object else ast.literal_eval(text)
    except (KeyError, ValueError, SyntaxError):
        name = getattr(value_type, "__name__", str(value_type))
        raise ValueError(f'The sweep\'s {key}="{text}": expected a value of type {name}.') from None


def _line(text, config):
    """(key, values) of "optimizer.learning_rate=1e-3,3e-3"."""
    key, equals, tail = text.partition("=")
    key = key.strip()
    if not equals or not _split(tail, ","):
        raise ValueError(
            f'"{text}" is not a valid sweep. Write for example "optimizer.learning_rate=1e-3,3e-3;model.dropout=0,0.1".'
        )
    *_, value_type = _place(config, key)
    return key, [_value(value, key, value_type) for value in _split(tail, ",")]


def _check_points(grid, config):
    """Refuses, before any point runs, points that a run would refuse without data; ValueError names the point."""
    for point in grid.points():
        try:
            check(at(config, point))
        except ValueError as error:
            raise ValueError(f"The sweep's point {grid.name(point)}: {error}") from None


def at(config, point):
    """A copy of the config with the point's values; None removes an evaluator."""
    config = config.copy_and_resolve_references()
    for key, value in point.items():
        place, last, _ = _place(config, key)  # refuses unknown keys
        if value is None and is_evaluator(key) and place is not None and last in place:
            remove_key(config, key.split("."))
        else:
            set_key(config, key.split("."), value)
    return config


def parse_grid(text, config):
    """The Grid that `text` describes, with values of the config's types.

    Raises:
        ValueError: for malformed text, an unknown or repeated key, a wrong type, equal names, or an invalid point.
    """
    parts = [[_line(line, config) for line in _split(part, ";")] for part in _parts(text)]
    for keys in ([key for key, _ in lines] for lines in parts):
        again = [key for i, key in enumerate(keys) if key in keys[:i]]
        if again:
            raise ValueError(
                f'The sweep "{text}" has {again[0]} twice in a part. List all of its values at once, "{again[0]}=A,B",'
                " or put a bar between two parts."
            )
    grid = Grid(tuple(dict(lines) for lines in parts if lines))
    names = [grid.name(point) for point in grid.points()]
    twice = sorted({name for name in names if names.count(name) > 1})
    if not grid.parts or twice:
        raise ValueError(f'The sweep "{text}" ' + (f"has {', '.join(twice)} twice." if twice else "is empty."))
    _check_points(grid, config)
    return grid
