"""Read a pickle as data: nothing in it is imported or called.

Python's pickle.Unpickler imports whatever a file names and calls it. Here the opcodes are interpreted: containers and
plain values become themselves, names become `Name`, and every other object an inert `Thing`.
"""

import dataclasses
from collections.abc import Callable
from pickletools import anyobject, genops, opcodes
from typing import Any, BinaryIO

from keras_vit.checkpoints.formats.recognise import LONGEST_NAME

_EMPTY = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_LIST": list,
    "EMPTY_SET": list,
    "EMPTY_TUPLE": tuple,
    "EMPTY_DICT": dict,
}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_PUT = ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE")
_GET = ("GET", "BINGET", "LONG_BINGET")
_CONSTANTS = {code.name for code in opcodes if code.arg and code.stack_after not in ([], [anyobject])}


@dataclasses.dataclass(eq=False)
class Name:
    """A class or function that a pickle names, such as "torch.FloatStorage"."""

    name: str


@dataclasses.dataclass(eq=False, repr=False)
class Thing:
    """An object that is not created.

    Attributes:
        name: of its class, or of the function that would make it.
        arguments: of that class or function.
        items: {text: value}, if it is filled like a dict.
        state: what its attributes would be set from, or None.
    """

    name: str
    arguments: tuple = ()
    items: dict[str, Any] = dataclasses.field(default_factory=dict)
    state: Any = None


def _fill(target, flat):
    """Adds alternating keys and values to a dict, or to a Thing in its place; keys other than text are left out."""
    pairs = {key: value for key, value in zip(flat[::2], flat[1::2], strict=True) if isinstance(key, str)}
    (target.items if isinstance(target, Thing) else target).update(pairs)


def _extend(target, values):
    """Adds values to a list; a Thing in its place ignores them."""
    if not isinstance(target, Thing):
        target.extend(values)


def _make(function, arguments, makers):
    """The object of a call: by one of ours for the name, or a Thing."""
    if not isinstance(function, Name):
        return Thing("unknown")
    maker = makers.get(function.name)
    if maker is None:
        return Thing(function.name, arguments if isinstance(arguments, tuple) else ())
    return maker(*arguments)


def read_pickle(file: BinaryIO, makers: dict[str, Callable], resolve: Callable[[Any], Any] | None = None) -> Any:
    """The value of the pickle at the file's position, which moves behind it.

    Args:
        file: of a pickle of protocol 2 or later.
        makers: {"module.name": function}. Replacements for functions named in the file; others become Things.
        resolve: persistent id -> value; None if there should be no such ids.

    Raises:
        ValueError, TypeError, LookupError, AttributeError: for a damaged pickle, or an instruction no checkpoint needs.
    """
    stack, below, memo = [], [], {}  # below: the stacks below each mark

    def above_mark():
        nonlocal stack
        values, stack = stack, below.pop()
        return values

    for opcode, argument, _ in genops(file):
        code = opcode.name
        if code == "STOP":
            return stack.pop()
        if code in _CONSTANTS:
            stack.append(argument)
        elif code in _EMPTY:
            stack.append(_EMPTY[code]())
        elif code in _TUPLES:
            count = _TUPLES[code]
            stack[-count:] = [tuple(stack[-count:])]
        elif code in _PUT:
            memo[len(memo) if argument is None else argument] = stack[-1]
        elif code in _GET:
            stack.append(memo[argument])
        elif code == "MARK":
            below.append(stack)
            stack = []
        elif code in ("TUPLE", "FROZENSET"):
            values = above_mark()
            stack.append(tuple(values))
        elif code in ("APPENDS", "ADDITEMS"):
            values = above_mark()
            _extend(stack[-1], values)
        elif code == "APPEND":
            _extend(stack[-2], [stack.pop()])
        elif code == "SETITEMS":
            values = above_mark()
            _fill(stack[-1], values)
        elif code == "SETITEM":
            value, key = stack.pop(), stack.pop()
            _fill(stack[-1], [key, value])
        elif code == "GLOBAL":
            stack.append(Name(argument.replace(" ", ".", 1)))
        elif code == "STACK_GLOBAL":
            name, module = stack.pop(), stack.pop()
            if len(name) + len(module) > LONGEST_NAME:
                raise ValueError(f"a class has a name of more than {LONGEST_NAME} characters")
            stack.append(Name(f"{module}.{name}"))
        elif code in ("REDUCE", "NEWOBJ", "NEWOBJ_EX"):
            if code == "NEWOBJ_EX":
                stack.pop()  # named arguments
            arguments, function = stack.pop(), stack.pop()
            stack.append(_make(function, arguments, makers))
        elif code == "BUILD":
            state = stack.pop()
            if isinstance(stack[-1], Thing):
                stack[-1].state = state
        elif code == "BINPERSID" and resolve is not None:
            stack.append(resolve(stack.pop()))
        elif code == "POP_MARK":
            above_mark()
        elif code == "POP":
            stack.pop()
        elif code not in ("PROTO", "FRAME"):
            raise ValueError(f"its pickle has the instruction {code}, which weights do not need")
    raise ValueError("its pickle has no end")
