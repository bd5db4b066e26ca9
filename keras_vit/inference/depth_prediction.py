"""Write a depth model's maps of a source's images, one file each. An interrupted job resumes.

model = keras_vit.load("runs/rooms")
source = keras_vit.data.open_source("images:PHOTOS", "train")
keras_vit.inference.predict_depths(model, source, "depths")
"""

import os
from typing import Any

from etils import epath

from keras_vit.answers import check_answers
from keras_vit.data import ExampleErrors
from keras_vit.data.sources.base import Source
from keras_vit.data.sources.selection import digest, names_at
from keras_vit.depth.depth_map import MILLIMETRES, maps_of_pixels
from keras_vit.inference.by_row import answers_by_row
from keras_vit.inference.fingerprint import fingerprint_of_model
from keras_vit.inference.job import owned_part
from keras_vit.inference.mask_prediction import MaskFiles, mask_names, take_new_folder
from keras_vit.inference.predict import Report, check_part
from keras_vit.io.atomic import write_bytes
from keras_vit.io.progress import stage
from keras_vit.prediction.preprocessing import preprocessing_text


def _description(model, source, split, ending):
    """The origin of the maps in a folder, for JSON."""
    return {
        "split": split,
        "rows": source.size,
        "rows_per_file": 1,
        "format": ending[1:],
        "preprocess": preprocessing_text(model),
        "columns": ["depth"],
        "kind": model.kind,
        **fingerprint_of_model(model, ()),
        "names": digest(source),
    }


def predict_depths(
    model: Any,
    source: Source,
    folder: str | os.PathLike,
    *,
    split: str = "train",
    batch_size: int = 8,
    part: tuple[int, int] = (0, 1),
    broken_limit: int | None = None,
    about: dict[str, Any] | None = None,
) -> Report:
    """Writes a depth map for every image of a source, FOLDER/SPLIT/NAME.png; skips files that exist.

    A map has its image's size. Metric depths up to 65.5 m are 16-bit PNG files of millimetres; those of a model with a
    larger `max_depth`, and relative ones, are NumPy files of float32, NAME.npy.

    Args:
        model: DepthModel, created in the scope of its strategy.
        source: data source; its depths, if any, are ignored.
        folder, split, part, broken_limit, about: as in `predict_masks`.
        batch_size: images per batch.

    Returns:
        A Report; its files are maps.

    Raises:
        ValueError: another kind of model, maps of another job or other files in the folder, or too many unreadable
            images.
        OSError: the folder is not writable.
    """
    check_part(part)
    check_answers(model, "depth")
    about, folder = about or {}, os.path.expanduser(os.fspath(folder))
    in_png = model.kind == "metric" and model.max_depth * 1000 <= MILLIMETRES
    ending = ".png" if in_png else ".npy"
    names = tuple(name.removesuffix(".png") + ending for name in mask_names(names_at(source, range(source.size))))
    files = MaskFiles(folder, split, names, ending)
    with owned_part(files, part):
        take_new_folder(files, {**_description(model, source, split, ending), **about}, free=tuple(about))
        rows, own = files.missing(part), len(range(part[0], len(names), part[1]))
        errors = ExampleErrors(source.size if broken_limit is None else broken_limit)

        def maps(images):
            return maps_of_pixels(model, (image for image, _ in images), batch_size)

        written = 0
        with errors.raised(), stage(f"Estimating the depth of {source.name}", len(rows), "images") as work:
            for found, row in answers_by_row(maps, source, rows, model.channels, errors):
                epath.Path(files.path(row)).parent.mkdir(parents=True, exist_ok=True)
                write_bytes(files.path(row), found.png() if in_png else found.npy())
                written += 1
                work.advance(1)
    return Report(written, (written, own - len(rows), len(names)), dict(errors.names))
