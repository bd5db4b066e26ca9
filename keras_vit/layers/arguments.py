"""Arguments of layers and specs as plain Python values: numpy's numbers become Python's, other kinds are errors."""

import inspect
import math
import numbers
import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from keras_vit.io.suggest import check_known

# Names and values of arguments in files of version 0.4 and before, and today's.
_FORMER = {
    ("gelu", "erf"): ("mlp_activation", "gelu"),
    ("gelu", "tanh"): ("mlp_activation", "gelu_tanh"),
    ("mlp_form", "gelu"): ("mlp_form", "plain"),
    ("form", "gelu"): ("form", "plain"),
}


def as_named_now(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a layer or model of this or an earlier version under today's names."""
    return dict(
        _FORMER.get((name, value), (name, value)) if isinstance(value, str) else (name, value)
        for name, value in arguments.items()
    )


def constructor_arguments(layer: type) -> dict[str, Any]:
    """{name: default} of a constructor's named arguments; inspect.Parameter.empty for required ones."""
    _, *parameters = inspect.signature(layer.__init__).parameters.values()  # type: ignore[misc]
    return {each.name: each.default for each in parameters if each.kind is not each.VAR_KEYWORD}


def _plain(value):
    """A numpy scalar or 0-d array as a Python number, string or bool; anything else stays."""
    return (
        value.item() if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and not value.ndim) else value
    )


def is_integer(value) -> bool:
    """Whether `value` is an integer, Python's or numpy's. True and False are not."""
    return isinstance(_plain(value), numbers.Integral) and not isinstance(_plain(value), bool)


def integer(value, what: str, least: int = 1) -> int:
    """`value` as an int.

    Args:
        value: integer, Python's or numpy's.
        what: the argument's name, for the error.
        least: smallest valid value.

    Raises:
        ValueError: if it is not an integer (224.0 and True are not) or is too small.
    """
    if not is_integer(value) or value < least:
        kind = {1: "a positive integer", 0: "an integer of 0 or more"}.get(least, f"an integer of {least} or more")
        raise ValueError(f"{what} must be {kind}, got {value!r}.")
    return int(value)


def number(value, what: str, least: float | None = None) -> int | float:
    """`value` as a finite int or float; ValueError, naming `what`, if it is not a number or below `least`."""
    value = _plain(value)
    if not isinstance(value, numbers.Real) or isinstance(value, bool) or not math.isfinite(value):
        raise ValueError(f"{what} must be a number, got {value!r}.")
    if least is not None and value < least:
        raise ValueError(f"{what} must be {least} or more, got {value!r}.")
    return value if isinstance(value, (int, float)) else float(value)


def rate(value, what: str) -> float:
    """A dropout rate as a float; ValueError, naming `what`, unless it is a number in [0, 1)."""
    share = number(value, what)
    if not 0.0 <= share < 1.0:
        raise ValueError(f"{what} must be in [0, 1), got {value!r}.")
    return float(share)


def flag(value, what: str) -> bool:
    """`value`, a bool, 0 or 1, as a bool; ValueError, naming `what`, for anything else, such as "no" or None."""
    if not isinstance(_plain(value), numbers.Integral) or value not in (0, 1):
        raise ValueError(f"{what} must be True or False, got {value!r}.")
    return bool(value)


def choice(value, what: str, valid: Iterable[str]) -> str:
    """`value`, one of the names `valid`; ValueError, naming `what`, with the nearest name and all of them."""
    check_known(value, what, valid)
    return str(value)


def integers(value, what: str, example: tuple) -> tuple[int, ...]:
    """Positive integers in a tuple, list or array (n,), as a tuple of ints; ValueError with `what` and the example."""
    if not isinstance(value, (list, tuple, np.ndarray)) or not all(is_integer(n) and n > 0 for n in value):
        raise ValueError(f"{what} must be positive integers, such as {example}, got {value!r}.")
    return tuple(int(n) for n in value)


def per_channel(value, what: str) -> int | float | tuple:
    """A number, or one per channel in a tuple, list or array (c,), as a number or tuple; ValueError, naming `what`."""
    value = _plain(value)
    if isinstance(value, (list, tuple)) or (isinstance(value, np.ndarray) and value.ndim == 1):
        if not len(value):
            raise ValueError(f"{what} must be a number, or one per channel, got {value!r}.")
        return tuple(number(v, what) for v in value)
    return number(value, what)


def setting(name: str, *choices: str) -> str:
    """The environment variable `name`, one of the choices, by default the first; ValueError for any other value."""
    return choice(os.environ.get(name, choices[0]), f"{name}: value", choices)
