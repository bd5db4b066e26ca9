"""Opens a source by name, as in --config.data.source and --data. A new kind is one row here and one file."""

import os
import re

from keras_vit.data.annotations.box_source import boxes
from keras_vit.data.annotations.instance_source import instances
from keras_vit.data.records.read import tfrecord
from keras_vit.data.source_names import with_kind
from keras_vit.data.sources.base import Source
from keras_vit.data.sources.depth_files import depths
from keras_vit.data.sources.digits import digits
from keras_vit.data.sources.folder import folder, images
from keras_vit.data.sources.masks import masks
from keras_vit.data.sources.table import table
from keras_vit.data.sources.tfds import tfds
from keras_vit.io.suggest import did_you_mean

# rest of the text, split, data_dir, buffer -> the source
_KINDS = {
    "folder": lambda rest, split, data_dir, buffer: folder(rest, split, data_dir),
    "images": lambda rest, split, data_dir, buffer: images(rest, split, data_dir),
    "masks": lambda rest, split, data_dir, buffer: masks(rest, split, data_dir),
    "boxes": lambda rest, split, data_dir, buffer: boxes(rest, split, data_dir),
    "instances": lambda rest, split, data_dir, buffer: instances(rest, split, data_dir),
    "depth": lambda rest, split, data_dir, buffer: depths(rest, split, data_dir),
    "csv": lambda rest, split, data_dir, buffer: table("csv", rest, split, data_dir),
    "jsonl": lambda rest, split, data_dir, buffer: table("jsonl", rest, split, data_dir),
    "tfrecord": tfrecord,
}
_FOLDERS = ("folder", "images", "masks", "boxes", "instances", "depth")
_VALID = (
    'a path, "digits", "folder:PATH", "images:PATH", "masks:PATH", "boxes:PATH", "instances:PATH",'
    ' "depth:PATH", "csv:PATH", "jsonl:PATH", "tfrecord:PATH", or a name of tensorflow-datasets'
)
_VERSION = re.compile(r"[\d*]+\.[\d*]+\.[\d*]+|experimental_latest")


def open_source(text: str, split: str, data_dir: str | os.PathLike | None = None, buffer: int = 10_000) -> Source:
    """The source that `text` names.

    Args:
        text: str. "digits"; "folder:PATH"; "images:PATH", without classes; "masks:PATH", with class masks;
            "boxes:PATH", with boxes of objects; "instances:PATH", with their outlines; "depth:PATH", with depth maps;
            "csv:PATH" or "jsonl:PATH"; "tfrecord:PATH", a folder or a glob; or a tensorflow-datasets name, "cifar10",
            "cifar10:3.0.2".
            source_names.py infers the kind of a path without one. Options follow a "?": "csv:PATH?label=breed".
        split: str. "train", "train[:90%]"...
        data_dir: str. Base of relative paths and folder of prepared tensorflow-datasets; None for the working directory
            and tensorflow-datasets' default. Paths may be in a bucket: gs://...
        buffer: int. Size of the shuffle buffer of sources read in order, in records.

    Raises:
        FileNotFoundError, ValueError: for an unknown kind, or raised by the source.
    """
    text = with_kind(text, data_dir)
    kind, colon, rest = text.partition(":")
    if text == "digits":
        return digits(split)
    if kind in _KINDS:
        if not rest:
            raise ValueError(f'"{text}" has no path. Write "{kind}:PATH".')
        if rest.partition("?")[0] == "PATH":  # the placeholder in packaged configs
            what = "folder" if kind in _FOLDERS else "file"
            raise ValueError(f'"{text}" is a placeholder: write {kind}: and the path of your {what}.')
        return _KINDS[kind](rest, split, data_dir, buffer)
    if colon and not _VERSION.fullmatch(rest.partition("?")[0]):
        near = did_you_mean(f"{kind}:", [f"{name}:" for name in _KINDS])
        raise ValueError(f'"{text}": unknown kind of source "{kind}".{near} Valid: {_VALID} ("cifar10:3.0.2").')
    return tfds(text, split, data_dir, buffer)
