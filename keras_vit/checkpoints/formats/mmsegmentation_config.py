"""mmsegmentation's config, Python text in a checkpoint's `meta`, read as data and written."""

import ast
from collections.abc import Mapping
from typing import Any

WHERE = "the config in the checkpoint"
_LONGEST = 2**20  # characters


def _value(node: ast.expr) -> Any:
    """A literal, or a call of dict; None for anything else. Tuples become lists."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict":
        return {keyword.arg: _value(keyword.value) for keyword in node.keywords if keyword.arg}
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values)
        return {key.value: _value(value) for key, value in pairs if isinstance(key, ast.Constant)}
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_value(item) for item in node.elts]
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


def parse_settings(text: str) -> dict[str, Any]:
    """{name: value} of the assignments in a config's text, which is not run; {} for anything but a config."""
    try:
        body = ast.parse(text).body if len(text) < _LONGEST else []
        assigned = [(node.targets[0], node.value) for node in body if isinstance(node, ast.Assign)]
        return {target.id: _value(value) for target, value in assigned if isinstance(target, ast.Name)}
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}


def format_settings(settings: Mapping[str, Any]) -> str:
    """A config's text, which mmengine's Config.fromstring reads."""
    return "".join(f"{name} = {value!r}\n" for name, value in settings.items())
