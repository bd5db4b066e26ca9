"""Read HBM traffic, estimated cycles and collectives from the text of a program that XLA compiled for a TPU.

`cost_analysis()` counts bytes in any memory. Here only HBM counts: operands and results of the entry computation's
instructions, with asynchronous copies counted once. A layout with S(1), such as {1,0:T(8,128)S(1)}, is in on-chip
memory.
"""

import dataclasses
import math
import re
from collections.abc import Iterator

_BYTES = {
    "pred": 1,
    "s4": 0.5,
    "u4": 0.5,
    "s8": 1,
    "u8": 1,
    "f8e4m3fn": 1,
    "f8e5m2": 1,
    "s16": 2,
    "u16": 2,
    "bf16": 2,
    "f16": 2,
}
_BYTES |= {"s32": 4, "u32": 4, "f32": 4, "s64": 8, "u64": 8, "f64": 8, "c64": 8, "c128": 16, "token": 0}
_ARRAY = re.compile(r"([a-z]\w*)\[([\d,]*)\](?:\{([^}]*)\})?")
_INSTRUCTION = re.compile(
    r"^\s*(?:ROOT )?%(?P<name>[\w.\-]+) = (?P<type>\(.*?\)|\S+) (?P<opcode>[a-z][\w\-]*)\((?P<rest>.*)$"
)
_COMPUTATION = re.compile(r"^(?P<entry>ENTRY )?%(?P<name>[\w.\-]+) .*\{$")
# Instructions that only name values in place.
_FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id"}
_COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "collective-broadcast",
)


@dataclasses.dataclass(frozen=True)
class Instruction:
    """An instruction of a computation.

    Attributes:
        name, opcode: as in the text; asynchronous ones are "copy-start" and "copy-done".
        results: (bytes, whether in HBM) of each array in the result.
        operands: names of the instructions that compute its operands.
        op_name: origin in the traced program, such as "jit(train_step)/jvp(block_00)/mlp/dot_general"; "" if unknown.
        cycles: XLA's estimate, or 0.
        calls: a fusion's computation, or None.
        body: a loop's computation, or None; `trips` is the number of iterations.
    """

    name: str
    opcode: str
    results: tuple[tuple[float, bool], ...]
    operands: tuple[str, ...]
    op_name: str
    cycles: int
    calls: str | None = None
    body: str | None = None
    trips: int = 1

    @property
    def collective(self) -> str | None:
        """Kind of the collective that this instruction is or starts, or None."""
        kind = self.opcode.removesuffix("-start")
        return kind if kind in _COLLECTIVES else None

    @property
    def moved(self) -> float:
        """Bytes moved by an asynchronous copy: the smallest of its arrays, except the flag."""
        sizes = [size for size, _ in self.results if size > 4]
        return min(sizes, default=0.0)


def _arrays(text):
    """(bytes, whether in HBM) of each array in a type."""
    found = []
    for kind, dimensions, layout in _ARRAY.findall(text):
        if kind in _BYTES:
            size = _BYTES[kind] * math.prod(int(d) for d in dimensions.split(",") if d)
            found.append((size, not re.search(r"S\([1-9]\d*\)", layout)))
    return tuple(found)


def _operands(rest):
    """Names in an instruction's brackets, from the text after the opening one."""
    depth = 1
    for i, character in enumerate(rest):
        depth += (character in "([{") - (character in ")]}")
        if not depth:
            return tuple(re.findall(r"%([\w.\-]+)", rest[:i]))
    return ()


def _instruction(line):
    """The Instruction on a line, or None."""
    match = _INSTRUCTION.match(line)
    if not match:
        return None
    rest = match["rest"]
    name = re.search(r'op_name="([^"]*)"', rest)
    cycles = re.search(r'"estimated_cycles":"(\d+)"', rest)
    calls, body = re.search(r"calls=%([\w.\-]+)", rest), re.search(r"body=%([\w.\-]+)", rest)
    trips = re.search(r'"known_trip_count":\{"n":"(\d+)"', rest)
    return Instruction(
        match["name"],
        match["opcode"],
        _arrays(match["type"]),
        _operands(rest),
        name[1] if name else "",
        int(cycles[1]) if cycles else 0,
        calls[1] if calls else None,
        body[1] if body and match["opcode"] == "while" else None,
        int(trips[1]) if trips else 1,
    )


@dataclasses.dataclass(frozen=True)
class Cost:
    """Cost of an instruction over all its runs (`times`): bytes read from and written to HBM, estimated cycles."""

    instruction: Instruction
    hbm: float
    cycles: float
    times: int


class Program:
    """The computations in a compiled program's text; ValueError without an entry computation."""

    def __init__(self, text: str):
        self._computations, self._entry, current = {}, None, None
        for line in text.splitlines():
            start = _COMPUTATION.match(line)
            if start:
                current = self._computations.setdefault(start["name"], {})
                self._entry = start["name"] if start["entry"] else self._entry
            elif current is not None and (instruction := _instruction(line)):
                current[instruction.name] = instruction
        if self._entry is None:
            raise ValueError("Expected the text of a compiled program, got one without an entry computation.")

    def costs(self) -> Iterator[Cost]:
        """Cost of each instruction of the entry computation and its loops."""
        yield from self._costs(self._entry, 1)

    def holds(self, instruction: Instruction, pattern: str) -> bool:
        """Whether an instruction, or one fused into it, comes from an op with a name that matches the pattern."""
        inside = self._computations.get(instruction.calls, {}).values()
        return any(re.search(pattern, each.op_name) for each in (instruction, *inside))

    def _costs(self, name, times):
        here = self._computations[name]
        for instruction in here.values():
            if instruction.body:
                yield from self._costs(instruction.body, times * instruction.trips)
            elif instruction.opcode not in _FREE and not instruction.opcode.endswith("-done"):
                yield Cost(instruction, times * self._hbm(instruction, here), times * instruction.cycles, times)

    def _hbm(self, instruction, here):
        """Bytes that one run of an instruction reads from and writes to HBM."""
        if instruction.opcode.endswith("-start") and not instruction.collective:
            return instruction.moved  # to or from HBM, once
        read = sum(size for name in instruction.operands for size, in_hbm in self._made(name, here) if in_hbm)
        results = instruction.results if not instruction.opcode.endswith("-start") else instruction.results[-1:]
        return read + sum(size for size, in_hbm in results if in_hbm)

    def _made(self, name, here):
        """The arrays of an operand."""
        maker = here.get(name)
        return () if maker is None or maker.opcode == "constant" else maker.results
