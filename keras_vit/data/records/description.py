"""dataset.json, which describes the TFRecord files next to it.

    {"name": "photos", "class_names": ["cat", "dog"],
     "features": {"image": "image/encoded", "label": "image/class/label"},
     "first_label": 0, "splits": {"train": {"photos-train-00000-of-00002.tfrecord": 500, ...}, ...},
     "bytes": {"photos-train-00000-of-00002.tfrecord": 60213870, ...}}

`features` are the examples' keys, `first_label` is the first class's label, `splits` gives the records per file, and
`bytes` each file's length, which reveals damage; files from version 0.3 and earlier lack it. Segmentation records have
the features image and mask; masks are PNGs of class numbers and void (data/sources/masks.py), and `colors`, optional,
are the class colours. Detection records have image, boxes and labels; `most_objects` is the largest number of objects
in an image, by split. Records of instances also have masks, COCO's compressed run lengths, and `stuff`, the classes
that are not objects. Records of texts have image and text.
"""

import dataclasses
import json
import os

import tensorflow as tf

from keras_vit.data.splits import canonical
from keras_vit.io.atomic import write_bytes
from keras_vit.io.paths import read_text

NAME = "dataset.json"
FEATURES = {"image": "image/encoded", "label": "image/class/label"}  # tf-slim's keys
FEATURES_OF_BOXES = {  # keys of TensorFlow's object detection
    "image": "image/encoded",
    "boxes": "image/object/bbox",
    "labels": "image/object/class/label",
}
FEATURES_OF_INSTANCES = {**FEATURES_OF_BOXES, "masks": "image/object/mask"}
FEATURES_OF_MASKS = {"image": "image/encoded", "mask": "image/segmentation/class/encoded"}  # DeepLab's
FEATURES_OF_TEXTS = {"image": "image/encoded", "text": "image/caption"}  # im2txt's
_FORMS = (FEATURES, FEATURES_OF_MASKS, FEATURES_OF_BOXES, FEATURES_OF_INSTANCES, FEATURES_OF_TEXTS)


@dataclasses.dataclass(frozen=True)
class Description:
    """The contents of dataset.json, as described above."""

    name: str
    class_names: tuple
    features: dict = dataclasses.field(default_factory=lambda: dict(FEATURES))
    first_label: int = 0
    splits: dict = dataclasses.field(default_factory=dict)
    bytes: dict = dataclasses.field(default_factory=dict)
    colors: tuple | None = None
    most_objects: dict | None = None
    stuff: tuple | None = None

    def match_split(self, split: str) -> str | None:
        """Returns `split` as spelled here, such as "validation" for "val"; None if it is missing."""
        if split in self.splits:
            return split
        return next((name for name in self.splits if canonical(name) == canonical(split)), None)


def read_description(folder: str) -> Description | None:
    """Reads the Description in `folder`; None without a dataset.json.

    Raises:
        ValueError: if dataset.json is malformed.
    """
    path = os.path.join(folder, NAME)
    if not tf.io.gfile.exists(path):
        return None
    try:
        description = Description(**json.loads(read_text(path)))
        sizes = [size for files in [*description.splits.values(), description.bytes] for size in files.values()]
        complete = any(set(keys) <= set(description.features) for keys in _FORMS)
        if not complete or not all(type(n) is int for n in [description.first_label, *sizes]):
            raise TypeError(
                f"features {description.features}, first_label {description.first_label!r}, or a record count that is"
                " not an integer"
            )
    except (TypeError, AttributeError, json.JSONDecodeError) as error:
        raise ValueError(
            f'"{path}" does not describe TFRecord files ({error}). Write it again with keras-vit prepare.'
        ) from None
    colors = None if description.colors is None else tuple(map(tuple, description.colors))
    return dataclasses.replace(description, class_names=tuple(description.class_names), colors=colors)


def write_description(folder: str, description: Description) -> None:
    """Writes dataset.json atomically."""
    values = {key: value for key, value in dataclasses.asdict(description).items() if value is not None}
    text = json.dumps(values, indent=1, ensure_ascii=False)
    write_bytes(os.path.join(folder, NAME), f"{text}\n".encode())
