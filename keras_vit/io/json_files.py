"""Reads JSON files, and writes readable JSON."""

import json
import os
from typing import Any

from etils import epath

from keras_vit.io.paths import os_errors


def read_json(path: str | os.PathLike, fix: str = "") -> dict[str, Any]:
    """The object in a JSON file, local or in a bucket.

    Args:
        path: of the file.
        fix: a sentence for the message: how to fix a broken file.

    Raises:
        ValueError: naming the file, if it is empty, broken or not an object.
        OSError: if it cannot be read.
    """
    try:
        with os_errors():
            content = json.loads(epath.Path(path).read_bytes())
    except ValueError as error:  # invalid JSON or UTF-8
        raise ValueError(f"{path} is not valid JSON: {error}. {fix}".rstrip()) from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} contains a {type(content).__name__}, but an object is expected. {fix}".rstrip())
    return content


def json_text(content: Any, indent: str = "") -> str:
    """`content` as JSON text; what JSON cannot express becomes its str.

    Each key of a dict, and each element of a list of lists or dicts, has its own line; other lists take one line.
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
