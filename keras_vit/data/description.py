"""dataset.json, which stands beside TFRecord files and says all that a run must know before it reads them.

    {"name": "photos", "class_names": ["cat", "dog"], "features": {"image": "image/encoded", "label": "image/class/label"},
     "first_label": 0, "splits": {"train": {"photos-train-00000-of-00002.tfrecord": 500, ...}, ...}}

`features` are the keys of the examples, `first_label` the label of the first class, `splits` the records of each file.
"""

import dataclasses
import json
import os

import tensorflow as tf

from keras_vit.data.paths import read_text

NAME = "dataset.json"
FEATURES = {"image": "image/encoded", "label": "image/class/label"}  # the keys that tf-slim's TFRecords have


@dataclasses.dataclass(frozen=True)
class Description:
    """What dataset.json holds; see above."""

    name: str
    class_names: tuple
    features: dict = dataclasses.field(default_factory=lambda: dict(FEATURES))
    first_label: int = 0
    splits: dict = dataclasses.field(default_factory=dict)


def read_description(folder):
    """The Description in `folder`; None if it has none.

    Raises:
        ValueError: for a dataset.json that is not one.
    """
    path = os.path.join(folder, NAME)
    if not tf.io.gfile.exists(path):
        return None
    try:
        held = Description(**json.loads(read_text(path)))
        sizes = [size for files in held.splits.values() for size in files.values()]
        if not set(FEATURES) <= set(held.features) or not all(type(n) is int for n in [held.first_label, *sizes]):
            raise TypeError(f"features {held.features}, first_label {held.first_label!r}, or no integer for a file's records")
    except (TypeError, AttributeError, json.JSONDecodeError) as error:
        raise ValueError(f'"{path}" does not describe TFRecord files ({error}). Write it again with trainers.prepare.') from None
    return dataclasses.replace(held, class_names=tuple(held.class_names))


def write_description(folder, description):
    """Puts dataset.json in place, all at once."""
    path = os.path.join(folder, NAME)
    text = json.dumps(dataclasses.asdict(description), indent=1, ensure_ascii=False)
    with tf.io.gfile.GFile(path + ".partial", "w") as file:
        file.write(text + "\n")
    tf.io.gfile.rename(path + ".partial", path, overwrite=True)
