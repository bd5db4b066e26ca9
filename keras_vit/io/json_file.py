"""Reading JSON files."""

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
