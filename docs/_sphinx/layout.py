"""What the pages of the generated reference share."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table; cells keep their bars."""
    lines = [head, ["-"] * len(head), *rows]
    return "\n".join("| " + " | ".join(re.sub(r"(?<!\\)\|", r"\\|", str(cell)) for cell in row) + " |" for row in lines)
