"""Jobs that write one file for each image of a source, FOLDER/SPLIT/NAME.png. An interrupted job resumes."""

import dataclasses
import json
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from etils import epath

from keras_vit.data import ExampleErrors
from keras_vit.data.sources.base import Source
from keras_vit.data.sources.image_files import ENDINGS
from keras_vit.data.sources.selection import digest, names_at
from keras_vit.inference.by_row import answers_by_row
from keras_vit.inference.fingerprint import fingerprint_of_model
from keras_vit.inference.job import owned_part
from keras_vit.inference.predict import Report, check_part
from keras_vit.inference.shards import description_path, file_stem, take_folder
from keras_vit.io.atomic import write_bytes
from keras_vit.io.paths import paths_in
from keras_vit.io.progress import stage
from keras_vit.prediction.preprocessing import preprocessing_text


def file_names(images: list[str], ending: str = ".png") -> list[str]:
    """Names of the files for images of these names: the path below the images' common folder, with this ending.

    If two images differ only in their ending, files keep it: a.jpg.png. Examples without a file get numbers.
    """
    paths = [name if "://" in name else os.path.normpath(name).replace(os.sep, "/") for name in images]
    if not all(path.lower().endswith(ENDINGS) for path in paths):
        return [f"{i:08d}{ending}" for i in range(len(images))]
    start = len(os.path.commonprefix(paths).rpartition("/")[0])
    paths = [path[start:].lstrip("/") for path in paths]
    stems = [os.path.splitext(path)[0] for path in paths]
    distinct = len(set(stems)) == len(set(paths))
    return [f"{name}{ending}" for name in (stems if distinct else paths)]


@dataclasses.dataclass(frozen=True)
class ImageFiles:
    """The files of a split's images, in order.

    Attributes:
        folder: output folder, local or in a bucket.
        split: split, such as "train" or "train[:90%]", which names the folder of the files.
        names: file names in that folder.
        ending: of the names.
    """

    folder: str
    split: str
    names: tuple[str, ...]
    ending: str

    def path(self, i: int) -> str:
        """Path of file `i`."""
        return os.path.join(self.folder, file_stem(self.split), self.names[i])

    def missing(self, part: tuple[int, int] = (0, 1)) -> list[int]:
        """Numbers of the missing files of part (index, count): index, index + count, ..."""
        own = range(part[0], len(self.names), part[1])
        folders = {os.path.dirname(self.path(i)) for i in own}
        there = {str(path) for folder in folders for path in paths_in(folder, end=self.ending)}
        return [i for i in own if str(epath.Path(self.path(i))) not in there]


def _take_new_folder(files, description, free):
    """Like `take_folder`, but also rejects a folder in which other files have the names of these."""
    if not epath.Path(description_path(files.folder, files.split)).exists():
        there = len(files.names) - len(files.missing())
        if there:
            raise ValueError(
                f'"{os.path.join(files.folder, file_stem(files.split))}" contains {there:,} of the files to write, but'
                f" {files.folder} does not record that they are of this job. Use another folder, or delete them."
            )
    take_folder(files, json.loads(json.dumps(description)), free=free)


def write_image_files(
    model: Any,
    source: Source,
    folder: str | os.PathLike,
    contents: Callable[[Iterator[tuple[np.ndarray, int]]], Iterable[bytes]],
    doing: str,
    description: dict[str, Any],
    *,
    beside: dict[str, bytes] | None = None,
    split: str,
    part: tuple[int, int],
    broken_limit: int | None,
    about: dict[str, Any] | None,
) -> Report:
    """Writes a file for every image of a source; skips those that exist.

    Args:
        model: the model that gives the contents.
        source: data source; its masks, boxes or depths are ignored.
        folder, split, part, broken_limit, about: as in `predict_masks`.
        contents: function from an iterator of (pixels (h, w, c) uint8, row) to one file's bytes per image, in order.
        doing: what it does, to show the progress.
        description: the job's own identity, for JSON; "format" is the ending of the files.
        beside: {name: bytes} of files in the folder that explain the others.

    Returns:
        A Report; each row is a file.

    Raises:
        ValueError, OSError: as `predict_masks`.
    """
    check_part(part)
    about, folder = about or {}, os.path.expanduser(os.fspath(folder))
    ending = f".{description['format']}"
    names = tuple(file_names(names_at(source, range(source.size)), ending))
    files = ImageFiles(folder, split, names, ending)
    description = {
        "split": split,
        "rows": source.size,
        "rows_per_file": 1,
        "preprocess": preprocessing_text(model),
        **fingerprint_of_model(model, ()),
        **description,
        "names": digest(source),
        **about,
    }
    with owned_part(files, part):
        _take_new_folder(files, description, free=tuple(about))
        for name, content in (beside or {}).items():
            write_bytes(os.path.join(folder, name), content)
        rows, own = files.missing(part), len(range(part[0], len(names), part[1]))
        errors, written = ExampleErrors(source.size if broken_limit is None else broken_limit), 0
        with errors.raised(), stage(f"{doing} {source.name}", len(rows), "images") as work:
            for content, row in answers_by_row(contents, source, rows, model.channels, errors):
                epath.Path(files.path(row)).parent.mkdir(parents=True, exist_ok=True)
                write_bytes(files.path(row), content)
                written += 1
                work.advance(1)
    return Report(written, (written, own - len(rows), len(names)), dict(errors.names))
