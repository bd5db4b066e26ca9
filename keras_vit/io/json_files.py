"""Reading JSON files, and writing JSON that people can read."""

import json
import os
from typing import Any

from etils import epath

from keras_vit.io.paths import os_errors


def read_json(path: str | os.PathLike, mend: str = "") -> dict[str, Any]:
    """The object in a JSON file, local or in a bucket.

    Args:
        path: of the file.
        mend: a sentence that says what to do about a broken file, for the message.

    Raises:
        ValueError: if the file is empty, broken or holds something other than an object, naming the file.
        OSError: if it cannot be read.
    """
    try:
        with os_errors():
            content = json.loads(epath.Path(path).read_bytes())
    except ValueError as error:  # JSON or UTF-8
        raise ValueError(f"{path} is not valid JSON: {error}. {mend}".rstrip()) from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}, and an object is expected. {mend}".rstrip())
    return content


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
