"""Write a segmentation model's masks of a source's images, one PNG file each. An interrupted job resumes.

model = keras_vit.load("runs/streets")
source = keras_vit.data.open_source("images:PHOTOS", "train")
keras_vit.inference.predict_masks(model, source, "masks")
"""

import csv
import dataclasses
import io
import json
import os
from typing import Any, ClassVar

from etils import epath

from keras_vit.answers import check_answers
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
from keras_vit.segmentation.segment import Segmenter, names_and_colors

CLASSES = "classes.csv"


def mask_names(names: list[str]) -> list[str]:
    """Mask file names for image names: the path below the images' common folder, ending in .png.

    If two images differ only in their ending, masks keep it: a.jpg.png. Examples without a file get numbers.
    """
    paths = [name if "://" in name else os.path.normpath(name).replace(os.sep, "/") for name in names]
    if not all(path.lower().endswith(ENDINGS) for path in paths):
        return [f"{i:08d}.png" for i in range(len(names))]
    start = len(os.path.commonprefix(paths).rpartition("/")[0])
    paths = [path[start:].lstrip("/") for path in paths]
    stems = [os.path.splitext(path)[0] for path in paths]
    distinct = len(set(stems)) == len(set(paths))
    return [f"{name}.png" for name in (stems if distinct else paths)]


@dataclasses.dataclass(frozen=True)
class MaskFiles:
    """The files of a split's masks, in order.

    Attributes:
        folder: output folder, local or in a bucket.
        split: split, such as "train" or "train[:90%]", which names the folder of the masks.
        names: file names in that folder.
    """

    ending: ClassVar[str] = ".png"
    folder: str
    split: str
    names: tuple[str, ...]

    def path(self, i: int) -> str:
        """Path of mask `i`."""
        return os.path.join(self.folder, file_stem(self.split), self.names[i])

    def missing(self, part: tuple[int, int] = (0, 1)) -> list[int]:
        """Numbers of the missing masks of part (index, count): index, index + count, ..."""
        own = range(part[0], len(self.names), part[1])
        folders = {os.path.dirname(self.path(i)) for i in own}
        there = {str(path) for folder in folders for path in paths_in(folder, end=self.ending)}
        return [i for i in own if str(epath.Path(self.path(i))) not in there]


def class_table(model: Any) -> bytes:
    """A model's classes as CSV: number, name and colour."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["class", "name", "red", "green", "blue"])
    writer.writerows([i, name, *color] for i, (name, color) in enumerate(zip(*names_and_colors(model))))
    return file.getvalue().encode()


def _take_folder(files, description, free):
    """Like `take_folder`, but also rejects a folder in which other files have the masks' names."""
    if not epath.Path(description_path(files.folder, files.split)).exists():
        there = len(files.names) - len(files.missing())
        if there:
            raise ValueError(
                f'"{os.path.join(files.folder, file_stem(files.split))}" contains {there:,} of the files to write, but'
                f" {files.folder} does not record that they are masks of this job. Use another folder, or delete them."
            )
    take_folder(files, json.loads(json.dumps(description)), free=free)


def _description(segmenter, source, split):
    """The origin of the masks in a folder, for JSON."""
    model = segmenter.model
    names, colors = names_and_colors(model)
    return {
        "split": split,
        "rows": source.size,
        "rows_per_file": 1,
        "format": "png",
        "preprocess": preprocessing_text(model),
        "columns": ["mask"],
        "window": [segmenter.window, segmenter.overlap, segmenter.scale, segmenter.flips],
        **fingerprint_of_model(model, ()),
        "model_class_names": list(names),
        "colors": colors,
        "names": digest(source),
    }


def _write(files, segmenter, source, rows, errors):
    """Writes the masks of these rows; returns the number of masks written."""

    def segmented(images):
        return segmenter.of_pixels((image, f"Row {row}") for image, row in images)

    written = 0
    with stage(f"Segmenting {source.name}", len(rows), "images") as work:
        for found, row in answers_by_row(segmented, source, rows, segmenter.model.channels, errors):
            epath.Path(files.path(row)).parent.mkdir(parents=True, exist_ok=True)
            write_bytes(files.path(row), found.png())
            written += 1
            work.advance(1)
    return written


def predict_masks(
    model: Any,
    source: Source,
    folder: str | os.PathLike,
    *,
    split: str = "train",
    window: str = "whole",
    overlap: float = 1 / 3,
    scale: float | None = None,
    flips: bool = False,
    batch_size: int = 8,
    part: tuple[int, int] = (0, 1),
    broken_limit: int | None = None,
    about: dict[str, Any] | None = None,
) -> Report:
    """Writes a mask for every image of a source, FOLDER/SPLIT/NAME.png; skips files that exist.

    A mask has its image's size, class numbers as values, and the classes' colours as its palette, or 16 bits with 255
    classes or more. NAME is the image's path below the images' common folder. FOLDER/classes.csv names the classes.

    Args:
        model: SegmentationModel, created in the scope of its strategy.
        source: data source; its masks, if any, are ignored.
        folder: output folder, local or in a bucket; other splits of the same data can share it.
        split: name of the split in the files.
        window, overlap, scale, flips: as in `SegmentationModel.segment`.
        batch_size: windows per batch.
        part: (index, count) to share work among processes or machines: this one writes masks index, index + count, ...
        broken_limit: largest number of unreadable images, which get no mask, in this part; None for no limit.
        about: further information for the job's JSON file.

    Returns:
        A Report; its files are masks.

    Raises:
        ValueError: another kind of model, masks of another job or other files in the folder, or too many unreadable
            images.
        OSError: the folder is not writable.
    """
    check_part(part)
    check_answers(model, "masks")
    segmenter, about = Segmenter(model, window, overlap, scale, flips, batch_size), about or {}
    folder = os.path.expanduser(os.fspath(folder))
    files = MaskFiles(folder, split, tuple(mask_names(names_at(source, range(source.size)))))
    with owned_part(files, part):
        _take_folder(files, {**_description(segmenter, source, split), **about}, free=tuple(about))
        write_bytes(os.path.join(folder, CLASSES), class_table(model))
        rows, own = files.missing(part), len(range(part[0], len(files.names), part[1]))
        errors = ExampleErrors(source.size if broken_limit is None else broken_limit)
        with errors.raised():
            written = _write(files, segmenter, source, rows, errors)
    return Report(written, (written, own - len(rows), len(files.names)), dict(errors.names))
