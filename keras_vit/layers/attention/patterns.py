"""Attention patterns of a ViT, written as text: a row per pattern.

| pattern | patches attend to |
|-|-|
| "global" | all patches |
| "window(r)" | the patches of their window, r x r (ViTDet, arXiv 2203.16527) |
| "axial" | those of their row, then, in the second half of a block, of their column (arXiv 2010.11929, appendix D.6) |
| "strided", "strided(l)" | the l patches before and after, and every l-th; l is a row by default (arXiv 1904.10509) |
| "fixed(l, c)" | the patches of their line of l, row by row, and the last c of every line (arXiv 1904.10509) |
| "local(k)" | the k x k patches around them (arXiv 1906.05909) |

With `global=(2, 5)`, as in "window(14, global=(2, 5, 8, 11))", the blocks of these numbers attend to all. In all
patterns, the tokens before the patches (class token, registers) attend to all tokens, and all attend to them.
"""

import dataclasses
import re
from collections.abc import Callable

from keras_vit.io.suggest import did_you_mean


@dataclasses.dataclass(frozen=True)
class Pattern:
    """A row: one way to put patches in groups, a class of patch_groups.py.

    Attributes:
        arguments: names of its integers.
        optional: how many of them may be left out.
        problem: function from these integers to an error, or None.
    """

    arguments: tuple[str, ...] = ()
    optional: int = 0
    problem: Callable[..., str | None] = lambda *_: None


def _fixed_problem(length, last):
    return f"c must be at most l={length}, got {last}" if last > length else None


def _local_problem(size):
    return f"k must be odd and at least 3, got {size}" if size < 3 or not size % 2 else None


# Of one attention.
PATTERNS = {
    "window": Pattern(("r",)),
    "strided": Pattern(("l",), optional=1),
    "fixed": Pattern(("l", "c"), problem=_fixed_problem),
    "local": Pattern(("k",), problem=_local_problem),
    "rows": Pattern(),
    "columns": Pattern(),
}
# Of a model: "axial" has rows and columns in each block.
NAMES = ("global", "axial", *(name for name in PATTERNS if name not in ("rows", "columns")))
_CALL = re.compile(r"\s*(\w+)\s*(?:\(([^()]*(?:\([\d\s,]*\))?)[\s,]*\))?\s*")
_GLOBAL = re.compile(r"(?:^|,)\s*global\s*=\s*(\([\d\s,]*\)|\d+)\s*$")


@dataclasses.dataclass(frozen=True)
class Attention:
    """An attention pattern: its name, its numbers, and the numbers of the blocks that attend to all."""

    name: str
    numbers: tuple[int, ...] = ()
    global_blocks: tuple[int, ...] = ()

    def __str__(self):
        inside = [str(number) for number in self.numbers]
        inside += [f"global={self.global_blocks}"] if self.global_blocks else []
        return f"{self.name}({', '.join(inside)})" if inside else self.name

    def of_block(self, i: int) -> str | None:
        """The pattern of block number i, or of an axial block's first half; None for attention among all."""
        if self.name == "global" or i in self.global_blocks:
            return None
        return "rows" if self.name == "axial" else str(dataclasses.replace(self, global_blocks=()))


def usage(name: str) -> str:
    """How a pattern is written, such as "window(r)"."""
    arguments = PATTERNS[name].arguments if name in PATTERNS else ()
    return f"{name}({', '.join(arguments)})" if arguments else name


def parse(text: str, what: str, names: tuple[str, ...] = NAMES) -> Attention:
    """An attention pattern from its text.

    Args:
        text: such as "window(14, global=(2, 5, 8, 11))".
        what: the argument's name, for the error.
        names: valid names.

    Raises:
        ValueError: for an unknown pattern, or wrong numbers.
    """
    found = _CALL.fullmatch(text) if isinstance(text, str) else None
    if found is None or found[1] not in names:
        hint = did_you_mean(found[1], names) if found else ""
        raise ValueError(f"{what} must be one of {', '.join(map(usage, names))}, got {text!r}.{hint}")
    name, inside = found[1], found[2] or ""
    whole = _GLOBAL.search(inside)
    inside = inside[: whole.start()] if whole else inside
    blocks = tuple(sorted({int(i) for i in re.findall(r"\d+", whole[1])})) if whole else ()
    parts = [part.strip() for part in inside.split(",")] if inside.strip() else []
    problem = _problem(name, parts, bool(blocks))
    if problem:
        raise ValueError(f'{what}="{text}": {problem}.')
    return Attention(name, tuple(map(int, parts)), blocks)


def _problem(name, parts, has_blocks):
    """The error in the arguments of a pattern, or None."""
    row = PATTERNS.get(name)
    if row is None or not row.arguments:
        return f'"{name}" takes no arguments' if parts or has_blocks else None
    most, least = len(row.arguments), len(row.arguments) - row.optional
    if not least <= len(parts) <= most or not all(part.isdecimal() and int(part) for part in parts):
        return f"write {usage(name)} with positive integers, and global=(...) after them for blocks that attend to all"
    return row.problem(*map(int, parts))


def attention_text(value: str, what: str) -> str:
    """A model's attention pattern in its canonical spelling; ValueError as in `parse`."""
    return str(parse(value, what))


def pattern_text(value: str, what: str) -> str:
    """The pattern of one attention in its canonical spelling; ValueError as in `parse`."""
    return str(parse(value, what, tuple(PATTERNS)))
