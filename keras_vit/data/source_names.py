"""A source's kind from its path: "PHOTOS" is "folder:PHOTOS". Imports nothing of ours, so that help needs no engine."""

import glob
import os
import re

KINDS = ("folder", "images", "csv", "jsonl", "tfrecord")
_ENDINGS = re.compile(r"\.(?:(csv|tsv)|(jsonl)|(tfrecords?(?:-\d+-of-\d+)?))$", re.IGNORECASE)
_TFDS = "~/tensorflow_datasets"


def _has(folder, pattern):
    return next(glob.iglob(os.path.join(glob.escape(folder), pattern)), None) is not None


def _is_prepared(path, folder):
    """Whether a folder is a dataset that tensorflow-datasets prepared, by any config and version, or named like one."""
    if any(_has(folder, f"{depth}dataset_info.json") for depth in ("", "*/", "*/*/")):
        return True
    prepared = os.path.expanduser(os.path.join(os.environ.get("TFDS_DATA_DIR", _TFDS), path))
    return not os.path.isabs(path) and os.path.isdir(prepared)


def _kind(path, data_dir):
    """The kind of a path, or None for a name of tensorflow-datasets."""
    if ending := _ENDINGS.search(path):
        return ("csv", "jsonl", "tfrecord")[ending.lastindex - 1]
    if "://" in path:  # in a bucket
        return "folder"
    folder = os.path.join(os.path.expanduser(data_dir or ""), os.path.expanduser(path))
    if not os.path.isdir(folder):
        return "folder" if path.startswith(("/", "~", ".")) and not os.path.exists(folder) else None
    if _is_prepared(path, folder):
        return None
    if _has(folder, "*.tfrecord*"):
        return "tfrecord"
    with os.scandir(folder) as entries:
        return "folder" if any(entry.is_dir() and not entry.name.startswith(".") for entry in entries) else "images"


def with_kind(text: str, data_dir: str | os.PathLike | None = None) -> str:
    """A source's text with the kind of its path in front.

    "PHOTOS" becomes "folder:PHOTOS", or "images:PHOTOS" if the folder has no subfolders; "table.csv" becomes
    "csv:table.csv". A text with its kind, "digits" and a name of tensorflow-datasets stay: also where it is the name of
    a folder that tensorflow-datasets prepared.

    Args:
        text: as --data and --config.data.source take it, options after a "?" included.
        data_dir: base of relative paths.
    """
    path = text.partition("?")[0]
    kind, colon, rest = path.partition(":")
    if text == "digits" or not path or (colon and (kind in KINDS or not rest.startswith("//"))):
        return text
    found = _kind(path, None if data_dir is None else os.fspath(data_dir))
    return text if found is None else f"{found}:{text}"
