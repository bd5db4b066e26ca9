"""A spec's fields as a table: valid values, meaning, and what another value changes.

A row is the metadata of a dataclass field. `field` makes fields with a default; others are written out, so that type
checkers see that they are required:

    depth: int = dataclasses.field(metadata=row(POSITIVE, "Number of blocks.", WEIGHTS))
    registers: int = field(0, COUNT, "Number of learned tokens after the class token.", WEIGHTS)

Checks, errors, the docstring, the types of keyword arguments (overrides.py) and docs/reference/model_fields.md come
from it. Rules for several fields together are in the spec's `__post_init__`, after `make_plain`.
"""

import dataclasses
import functools
import inspect
import re
import textwrap
import typing
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from keras_vit.layers.arguments import choice, flag, integer, is_integer, number, per_channel, rate
from keras_vit.layers.embedding.patches import pair

# What another value of a field changes in a trained model: its weights, or nothing it computes.
WEIGHTS = "weights"
NOTHING = "nothing"


@dataclasses.dataclass(frozen=True)
class Kind:
    """The valid values of a field.

    Attributes:
        plain: function (value, name) -> plain Python value; ValueError if invalid.
        words: the values in words.
        choices: their names, if the field takes one of several.
        accepts: annotation of a keyword argument, if wider than the field's own.
    """

    plain: Callable[[Any, str], Any]
    words: str = ""
    choices: Collection[str] = ()
    accepts: str | None = None


def one_of(choices: Collection[str]) -> Kind:
    """One of several names, read from a table when a value is checked."""
    return Kind(functools.partial(choice, valid=choices), choices=choices)


def at_least(least: int) -> Kind:
    """An integer of at least `least`."""
    return Kind(functools.partial(integer, least=least), f"an integer of {least} or more")


def _epsilon(value, name):
    if not 0 < number(value, name) < 1:
        raise ValueError(f"{name} must be above 0 and below 1, got {value!r}.")
    return number(value, name)


def _per_block(value, name):
    if isinstance(value, (list, tuple, np.ndarray)):
        return tuple(integer(n, name, least=0) for n in value)
    return integer(value, name, least=0)


def _blocks(value, name):
    values = [value] if is_integer(value) else value
    if not isinstance(values, (list, tuple, range, np.ndarray)):
        raise ValueError(f"{name} should be numbers of blocks, such as (2, 5, 8, 11), got {value!r}.")
    return tuple(sorted({integer(i, name, least=0) for i in values}))


POSITIVE = Kind(integer, "a positive integer")
COUNT = at_least(0)
FLAG = Kind(flag, "True or False")
NUMBER = Kind(number, "a number")
NOT_NEGATIVE = Kind(functools.partial(number, least=0), "a number of 0 or more")
AT_LEAST_1 = Kind(functools.partial(number, least=1), "a number of 1 or more")
EPSILON = Kind(_epsilon, "a number above 0 and below 1")
RATE = Kind(rate, "a number in [0, 1)")
PAIR = Kind(pair, "a positive integer or a pair (height, width)", accepts="int | Sequence[int]")
PER_CHANNEL = Kind(per_channel, "a number, or one per channel")
PER_BLOCK = Kind(_per_block, "an integer of 0 or more, or one per block")
BLOCKS = Kind(_blocks, "numbers of blocks", accepts="Sequence[int]")


def row(kind: Kind, meaning: str, change: str = "") -> dict[str, Any]:
    """The metadata of a field.

    Args:
        kind: valid values; None too, if the field's annotation has it.
        meaning: a sentence or two.
        change: what another value changes, WEIGHTS or NOTHING; "" if the same weights then compute something else.
    """
    return {"kind": kind, "meaning": meaning, "change": change}


def field(default: Any, kind: Kind, meaning: str, change: str = "") -> Any:
    """A dataclass field with a default and a row; other arguments as in `row`."""
    return dataclasses.field(default=default, metadata=row(kind, meaning, change))


def rows(form: type) -> dict[str, dataclasses.Field]:
    """{name: field} of the fields of a spec class that have a row."""
    return {field.name: field for field in dataclasses.fields(form) if "kind" in field.metadata}


def named(form: type, change: str) -> tuple[str, ...]:
    """The names of the fields with this `change`."""
    return tuple(name for name, field in rows(form).items() if field.metadata["change"] == change)


def plain(field: dataclasses.Field, value: Any) -> Any:
    """A field's value as plain Python, since numpy's would not go into JSON; ValueError if invalid."""
    optional = type(None) in typing.get_args(field.type)
    return None if value is None and optional else field.metadata["kind"].plain(value, field.name)


def make_plain(spec: Any) -> None:
    """Checks the fields of a frozen dataclass under construction, and makes them plain values."""
    for name, field in rows(type(spec)).items():
        object.__setattr__(spec, name, plain(field, getattr(spec, name)))


def takes(field: dataclasses.Field) -> str:
    """A field's valid values in words."""
    kind, none = field.metadata["kind"], type(None) in typing.get_args(field.type)
    words = kind.words or ", ".join(f'"{name}"' for name in kind.choices)
    return f"{words}, or None" if none else words


def default(field: dataclasses.Field) -> str:
    """A field's default as source text, or "the variant's"."""
    return "the variant's" if field.default is dataclasses.MISSING else repr(field.default).replace("'", '"')


def documented(form: type) -> type:
    """A class decorator that adds the fields to the docstring."""
    lines = []
    for name, field in rows(form).items():
        text = f"{name}: {takes(field)}; by default {default(field)}. {field.metadata['meaning']}"
        lines += textwrap.wrap(text, 116, initial_indent=" " * 4, subsequent_indent=" " * 8, break_on_hyphens=False)
    form.__doc__ = "\n".join([inspect.cleandoc(form.__doc__ or ""), "", "Attributes:", *lines])
    return form


def markdown(form: type) -> str:
    """The fields as a table for docs/reference/model_fields.md."""
    lines = ["| field | takes | default | meaning |", "|-|-|-|-|"]
    for name, field in rows(form).items():
        quoted = re.sub(r'("\w+")', r"`\1`", takes(field))
        lines.append(f"| `{name}` | {quoted} | `{default(field)}` | {field.metadata['meaning']} |")
    return "\n".join(lines).replace("`the variant's`", "the variant's")


def typed_dict(name: str, fields: Mapping[str, dataclasses.Field], base: str = "TypedDict", doc: str = "") -> str:
    """The source of a TypedDict of optional keyword arguments."""
    lines = [f"class {name}({base}, total=False):", f'    """{doc}"""', ""]
    for field in fields.values():
        own = field.type.__name__ if type(field.type) is type else str(field.type)
        own = re.sub(r"tuple\[(\w+), [^\]]*\]", r"Sequence[\1]", own)
        lines.append(f"    {field.name}: {field.metadata['kind'].accepts or own}")
    return "\n".join(lines)
