"""Sources by name: what --config.data.source and --data take. A new kind is one row here and a file of its own."""

import difflib
import re

from keras_vit.data.digits import digits
from keras_vit.data.folder import folder
from keras_vit.data.table import table
from keras_vit.data.tfds import tfds
from keras_vit.data.tfrecord import tfrecord

# rest of the text, split, data_dir, buffer -> the source
_KINDS = {
    "folder": lambda rest, split, data_dir, buffer: folder(rest, split, data_dir),
    "csv": lambda rest, split, data_dir, buffer: table("csv", rest, split, data_dir),
    "jsonl": lambda rest, split, data_dir, buffer: table("jsonl", rest, split, data_dir),
    "tfrecord": tfrecord,
}
_VALID = '"digits", "folder:PATH", "csv:PATH", "jsonl:PATH", "tfrecord:PATH", or a tensorflow-datasets name'
_VERSION = re.compile(r"[\d*]+\.[\d*]+\.[\d*]+|experimental_latest")


def open_source(text, split, data_dir=None, buffer=10_000):
    """The source that `text` names.

    Args:
        text: "digits"; "folder:PATH"; "csv:PATH" or "jsonl:PATH"; "tfrecord:PATH", a folder or a glob; or a tensorflow-datasets name,
            "cifar10", "cifar10:3.0.2". Options stand behind a "?": "csv:PATH?label=breed".
        split: "train", "train[:90%]"...
        data_dir: where relative paths begin, and where tensorflow-datasets' prepared data is; None for the working directory and
            tensorflow-datasets' own place. Paths may lie in a bucket: gs://...
        buffer: records in the shuffle buffer of sources that are read in order.

    Raises:
        FileNotFoundError, ValueError: for an unknown kind; else as the source says.
    """
    kind, colon, rest = text.partition(":")
    if text == "digits":
        return digits(split)
    if kind in _KINDS:
        if not rest:
            raise ValueError(f'"{text}" names no path. Write "{kind}:PATH".')
        return _KINDS[kind](rest, split, data_dir, buffer)
    if colon and not _VERSION.fullmatch(rest.partition("?")[0]):
        close = difflib.get_close_matches(kind, _KINDS, n=1)
        near = f' Did you mean "{close[0]}:"?' if close else ""
        raise ValueError(f'"{text}" is no source: there is no kind "{kind}".{near} Valid: {_VALID} ("cifar10:3.0.2").')
    return tfds(text, split, data_dir, buffer)
