"""Read a pickle as data: nothing in it is imported or called.

Python's pickle.Unpickler imports whatever a file names and calls it. Here the opcodes are interpreted: containers and
plain values become themselves, names become `Name`, and every other object an inert `Thing`.
"""

import dataclasses
from collections.abc import Callable
from pickletools import anyobject, genops, opcodes
from typing import Any, BinaryIO

from keras_vit.checkpoints.formats.name_map import LONGEST_NAME

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
        state: the source of its attributes, or None.
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


class _Machine:
    """The pickle machine: a stack, the stacks below each mark, and a memo."""

    def __init__(self, makers, resolve):
        self.makers, self.resolve = makers, resolve
        self.stack, self.below, self.memo = [], [], {}

    def do(self, code, argument):
        """Carries out one instruction; ValueError for one that no checkpoint needs."""
        if code in _CONSTANTS:
            self.stack.append(argument)
        elif code in _EMPTY:
            self.stack.append(_EMPTY[code]())
        elif code in _TUPLES:
            count = _TUPLES[code]
            self.stack[-count:] = [tuple(self.stack[-count:])]
        elif code in _PUT:
            self.memo[len(self.memo) if argument is None else argument] = self.stack[-1]
        elif code in _GET:
            self.stack.append(self.memo[argument])
        elif code == "GLOBAL":
            self.stack.append(Name(argument.replace(" ", ".", 1)))
        elif code == "BINPERSID" and self.resolve is not None:
            self.stack.append(self.resolve(self.stack.pop()))
        elif code in _OPERATIONS:
            _OPERATIONS[code](self)
        elif code not in ("PROTO", "FRAME"):
            raise ValueError(f"its pickle has the instruction {code}, which weights do not need")

    def mark(self):
        self.below.append(self.stack)
        self.stack = []

    def above_mark(self):
        """Removes the values above the last mark, and returns them."""
        values, self.stack = self.stack, self.below.pop()
        return values

    def pop(self):
        return self.stack.pop()

    def collect(self):
        values = self.above_mark()
        self.stack.append(tuple(values))

    def append(self):
        _extend(self.stack[-2], [self.stack.pop()])

    def appends(self):
        values = self.above_mark()
        _extend(self.stack[-1], values)

    def set_item(self):
        value, key = self.stack.pop(), self.stack.pop()
        _fill(self.stack[-1], [key, value])

    def set_items(self):
        values = self.above_mark()
        _fill(self.stack[-1], values)

    def name(self):
        name, module = self.stack.pop(), self.stack.pop()
        if len(name) + len(module) > LONGEST_NAME:
            raise ValueError(f"a class has a name of more than {LONGEST_NAME} characters")
        self.stack.append(Name(f"{module}.{name}"))

    def call(self):
        arguments, function = self.stack.pop(), self.stack.pop()
        self.stack.append(_make(function, arguments, self.makers))

    def call_with_names(self):
        self.stack.pop()  # named arguments
        self.call()

    def build(self):
        state = self.stack.pop()
        if isinstance(self.stack[-1], Thing):
            self.stack[-1].state = state


# {opcode without an argument: what it does}.
_OPERATIONS = {
    "MARK": _Machine.mark,
    "POP": _Machine.pop,
    "POP_MARK": _Machine.above_mark,
    "TUPLE": _Machine.collect,
    "FROZENSET": _Machine.collect,
    "APPEND": _Machine.append,
    "APPENDS": _Machine.appends,
    "ADDITEMS": _Machine.appends,
    "SETITEM": _Machine.set_item,
    "SETITEMS": _Machine.set_items,
    "STACK_GLOBAL": _Machine.name,
    "REDUCE": _Machine.call,
    "NEWOBJ": _Machine.call,
    "NEWOBJ_EX": _Machine.call_with_names,
    "BUILD": _Machine.build,
}


def read_pickle(file: BinaryIO, makers: dict[str, Callable], resolve: Callable[[Any], Any] | None = None) -> Any:
    """The value of the pickle at the file's position, which moves behind it.

    Args:
        file: of a pickle of protocol 2 or later.
        makers: {"module.name": function}. Replacements for functions named in the file; others become Things.
        resolve: persistent id -> value; None if there should be no such ids.

    Raises:
        ValueError, TypeError, LookupError, AttributeError: for a damaged pickle, or an instruction no checkpoint needs.
    """
    machine = _Machine(makers, resolve)
    for opcode, argument, _ in genops(file):
        if opcode.name == "STOP":
            return machine.pop()
        machine.do(opcode.name, argument)
    raise ValueError("its pickle has no end")
