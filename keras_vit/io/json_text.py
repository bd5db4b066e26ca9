"""JSON that people can read and that stays small: a key a line, a list of numbers or names on one line."""

import json
from typing import Any


def json_text(content: Any, indent: str = "") -> str:
    """`content` as JSON text; what JSON has no form for becomes its str.

    Every key of a dict has a line of its own, and so has every element of a list of lists or dicts; other lists take
    one line.
    """
    inner = indent + "  "
    if isinstance(content, dict) and content:
        names = [json.dumps(key if isinstance(key, str) else json.dumps(key)) for key in content]
        lines = [f"{inner}{name}: {json_text(value, inner)}" for name, value in zip(names, content.values())]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    if isinstance(content, (list, tuple)) and any(isinstance(part, (dict, list, tuple)) for part in content):
        lines = [inner + json_text(part, inner) for part in content]
        return "[\n" + ",\n".join(lines) + f"\n{indent}]"
    return json.dumps(content, default=str)
