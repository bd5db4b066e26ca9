"""The Python blocks of pages: those that run, and the reasons of the others."""

import pathlib
import re
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent
_BLOCK = re.compile(r"(?:^<!-- not run: ([^>]+) -->\n)?^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A block of code.

    Attributes:
        place: "docs/data.md, line 191".
        code: str.
        reason: why no test runs it, from the comment above it, `<!-- not run: needs a network -->`; None if one does.
    """

    place: str
    code: str
    reason: str | None

    def run(self, names: dict) -> None:
        """Executes it in a namespace; a block that is not run is compiled."""
        compiled = compile(self.code, self.place, "exec")
        if not self.reason:
            exec(compiled, names)


def blocks(path: pathlib.Path, smaller: dict[str, str] | None = None) -> list[Block]:
    """The blocks of a page in order, with the keys of `smaller` replaced by its values wherever they are."""
    text, found = path.read_text(), []
    for match in _BLOCK.finditer(text):
        line = text.count("\n", 0, match.start(2))
        code = match[2]
        for whole, part in (smaller or {}).items():
            code = code.replace(whole, part)
        found.append(Block(f"{path.relative_to(ROOT)}, line {line}", code, match[1]))
    return found
