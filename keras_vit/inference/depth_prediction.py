"""Write a depth model's maps of a source's images, one file each. An interrupted job resumes.

model = keras_vit.load("runs/rooms")
source = keras_vit.data.open_source("images:PHOTOS", "train")
keras_vit.inference.predict_depths(model, source, "depths")
"""

import os
from typing import Any

from keras_vit.answers import check_answers
from keras_vit.data.sources.base import Source
from keras_vit.depth.depth_map import MILLIMETRES, maps_of_pixels
from keras_vit.inference.image_files import write_image_files
from keras_vit.inference.predict import Report


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
    check_answers(model, "depth")
    in_png = model.kind == "metric" and model.max_depth * 1000 <= MILLIMETRES
    description = {"format": "png" if in_png else "npy", "columns": ["depth"], "kind": model.kind}

    def maps(images):
        found = maps_of_pixels(model, (image for image, _ in images), batch_size)
        return (depth.png() if in_png else depth.npy() for depth in found)

    where = {"split": split, "part": part, "broken_limit": broken_limit, "about": about}
    return write_image_files(model, source, folder, maps, "Estimating the depth of", description, **where)
