"""Write a segmentation model's masks of a source's images, one PNG file each. An interrupted job resumes.

model = keras_vit.load("runs/streets")
source = keras_vit.data.open_source("images:PHOTOS", "train")
keras_vit.inference.predict_masks(model, source, "masks")
"""

import csv
import io
import os
from typing import Any

from keras_vit.answers import check_answers
from keras_vit.data.sources.base import Source
from keras_vit.inference.image_files import write_image_files
from keras_vit.inference.predict import Report
from keras_vit.segmentation.segment import Segmenter, names_and_colors

CLASSES = "classes.csv"


def class_table(model: Any) -> bytes:
    """A model's classes as CSV: number, name and colour."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["class", "name", "red", "green", "blue"])
    writer.writerows([i, name, *color] for i, (name, color) in enumerate(zip(*names_and_colors(model))))
    return file.getvalue().encode()


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
    check_answers(model, "masks")
    segmenter = Segmenter(model, window, overlap, scale, flips, batch_size)
    names, colors = names_and_colors(model)
    description = {
        "format": "png",
        "columns": ["mask"],
        "window": [segmenter.window, segmenter.overlap, segmenter.scale, segmenter.flips],
        "model_class_names": list(names),
        "colors": colors,
    }

    def masks(images):
        return (found.png() for found in segmenter.of_pixels((image, f"Row {row}") for image, row in images))

    where = {"split": split, "part": part, "broken_limit": broken_limit, "about": about}
    beside = {CLASSES: class_table(model)}
    return write_image_files(model, source, folder, masks, "Segmenting", description, beside=beside, **where)
