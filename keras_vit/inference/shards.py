"""The files of a job: their rows, which of them exist, and a check that all belong to the same job.

A folder contains a job per split: train-00000-of-00005.parquet and so on, each complete from the moment it appears, and
_train.json, the job's description. Table readers skip names that begin with "_".
"""

import dataclasses
import json
import os
import re
from collections.abc import Mapping
from typing import Any

from etils import epath

from keras_vit.io.atomic import write_bytes
from keras_vit.io.json_files import read_json
from keras_vit.io.lock import alone
from keras_vit.io.paths import paths_in

RESULTS = "_coco.json"  # ending of a detector's results, beside the descriptions

# Keys of every description.
_KEYS = ("split", "rows", "rows_per_file", "format", "preprocess", "columns", "weights", "names")
_LATER = ("architecture", "model_class_names", "activation")  # absent from descriptions of earlier versions


def file_stem(split: str) -> str:
    """First part of a split's file names: "train[:90%]" -> "train_to_90pct"."""
    return re.sub(r"[^\w.\-]+", "_", split.replace(":", "_to_").replace("%", "pct")).strip("_").replace("__", "_")


@dataclasses.dataclass(frozen=True)
class Shards:
    """The files of a split's rows, in order.

    Attributes:
        folder: output folder, local or in a bucket.
        split: split, such as "train" or "train[:90%]".
        ending: suffix of file names, such as ".parquet".
        size: number of rows.
        rows: largest number of rows per file.
    """

    folder: str
    split: str
    ending: str
    size: int
    rows: int

    @property
    def count(self) -> int:
        """Number of files."""
        return -(-self.size // self.rows)

    def path(self, i: int) -> str:
        """Path of file `i`."""
        return os.path.join(self.folder, f"{file_stem(self.split)}-{i:05d}-of-{self.count:05d}{self.ending}")

    def range(self, i: int) -> range:
        """Rows of file `i`."""
        return range(i * self.rows, min((i + 1) * self.rows, self.size))

    def missing(self, part: tuple[int, int] = (0, 1)) -> list[int]:
        """Numbers of the missing files of part (index, count): index, index + count, ..."""
        index, count = part
        there = {path.name for path in paths_in(self.folder, end=self.ending)}
        return [i for i in range(index, self.count, count) if os.path.basename(self.path(i)) not in there]


def description_path(folder: str, split: str) -> str:
    """Path of the JSON file that describes a split's job."""
    return os.path.join(folder, f"_{file_stem(split)}.json")


def _read_description(path):
    """A job's description from its JSON file."""
    fix = "Restore it, or write the rows again to another folder."
    content = read_json(path, fix)
    missing = [key for key in _KEYS if key not in content]
    if missing:
        raise ValueError(f'"{path}" does not describe a job of keras-vit predict: it has no {missing[0]}. {fix}')
    return content


def read_descriptions(folder: str) -> list[dict[str, Any]]:
    """Descriptions of all jobs in the folder, from their JSON files; ValueError for an invalid file."""
    paths = [path for path in paths_in(folder, "_", ".json") if not path.name.endswith(RESULTS)]
    return [_read_description(path) for path in paths]


# {key: (difference in words, key with the name)}
_CHECKSUMS = {
    "weights": ("other weights", "model"),
    "architecture": ("another architecture", "model"),
    "names": ("other images", "data"),
}


def _short(value):
    """repr of a value, truncated to 200 characters."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _difference(key, before, given):
    """The change of a description's `key`, in words."""
    if key in _CHECKSUMS:
        what, name = _CHECKSUMS[key]
        return f"{what}, of {before.get(name, 'unknown')}, now of {given.get(name, 'unknown')}"
    return f"{key} {_short(before.get(key))}, now {_short(given.get(key))}"


def take_folder(shards: Shards, description: Mapping[str, Any], free: tuple[str, ...] = ()) -> None:
    """Writes the job's description, or checks that the folder's files belong to the same job.

    Args:
        shards: the job's files.
        description: the job's identity, for JSON.
        free: keys of the description that may differ.

    Raises:
        ValueError: the files belong to another job; the message lists the differences.
    """
    epath.Path(shards.folder).mkdir(parents=True, exist_ok=True)
    with alone(shards.folder):  # parts of several jobs may start together
        path = epath.Path(description_path(shards.folder, shards.split))
        fix = "Use another folder, or delete this one."
        given = json.loads(json.dumps(description))
        if path.exists():
            before = _read_description(path)
            unknown = [key for key in _LATER if key in given and key not in before]
            # A key in only one of them means other answers, which differ in the columns.
            in_one = {key for key in _LATER if (key in given) != (key in before)}
            compared = sorted({*before, *given} - {*free, *in_one})
            differs = [key for key in compared if before.get(key) != given.get(key)]
            if differs:
                words = "; ".join(_difference(key, before, given) for key in differs)
                raise ValueError(f'"{shards.folder}" contains rows of another job: {words}. {fix}')
            if unknown and shards.missing():
                raise ValueError(
                    f'"{shards.folder}" was started by an earlier version of keras_vit, which did not record the'
                    f" {', '.join(unknown)} of its model, so rows of different models might be mixed. {fix}"
                )
            return
        stray = [file.name for file in paths_in(shards.folder, f"{file_stem(shards.split)}-", shards.ending)]
        if stray:
            raise ValueError(f'"{shards.folder}" contains {min(stray)}, but no {path.name} that describes it. {fix}')
        write_bytes(path, json.dumps(given, indent=1, ensure_ascii=False).encode())
