"""The cache folder: downloads, and facts about files that are slow to compute."""

import hashlib
import json
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from absl import logging

from keras_vit.io.atomic import write_bytes
from keras_vit.io.paths import in_threads


def cache_folder(cache: str | os.PathLike | None = None) -> pathlib.Path:
    """The cache folder: `cache`, else $KERAS_VIT_CACHE, else $XDG_CACHE_HOME/keras_vit, else ~/.cache/keras_vit."""
    if cache is None:
        home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        cache = os.environ.get("KERAS_VIT_CACHE") or os.path.join(home, "keras_vit")
    return pathlib.Path(cache).expanduser()


def cached_answer(question: str, paths: Sequence[str], answer: Callable[[], Any]) -> Any:
    """answer(), or its cached result for this question and these files, if none has changed.

    Args:
        question: any text.
        paths: of the files; compares lengths and modification times.
        answer: a function without arguments that returns JSON data.
    """
    import tensorflow as tf  # imported here: models load without it on JAX

    stats = in_threads(tf.io.gfile.stat, paths)
    key = json.dumps([question, *([path, stat.length, stat.mtime_nsec] for path, stat in zip(paths, stats))])
    path = cache_folder() / "scanned" / (hashlib.sha256(key.encode()).hexdigest()[:24] + ".json")
    try:
        return json.loads(path.read_text())
    except (OSError, json.JSONDecodeError):
        result = answer()
    try:
        write_bytes(path, json.dumps(result).encode())
    except OSError as error:
        logging.warning("%s cannot be written (%s): the files will be read again next time.", path, error)
    return result
