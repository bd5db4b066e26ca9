"""Class names from a label map next to records of objects, as TensorFlow's object detection and Roboflow write it.

item {
  name: "/m/01g317"
  id: 1
  display_name: "Person"
}
"""

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from keras_vit.io.paths import read_text

_ENDING = ".pbtxt"
_ITEM = re.compile(r"item\s*\{(.*?)\}", re.DOTALL)
_FIELD = re.compile(r"""\b(name|id|display_name)\s*:\s*(?:"([^"]*)"|'([^']*)'|(\d+))""")


def _read(path):
    """Reads {label as text: its names, the one to show first} from a label map."""
    names = {}
    for item in _ITEM.findall(read_text(path)):
        fields = {key: double or single or number for key, double, single, number in _FIELD.findall(item)}
        if "id" in fields:
            shown = [fields[key] for key in ("display_name", "name") if fields.get(key)]
            names[fields["id"]] = shown or [fields["id"]]
    return names


def with_label_map(found: Mapping[str, Any], files: Sequence[str]) -> dict[str, Any]:
    """Adds the names and labels of the label map in the folder of `files` to what `count_objects` found in them.

    Raises:
        ValueError: if the folder has several label maps, or one that contradicts the records.
    """
    folder = os.path.dirname(files[0])
    maps = [os.path.join(folder, name) for name in sorted(tf.io.gfile.listdir(folder)) if name.endswith(_ENDING)]
    if len(maps) > 1:
        raise ValueError(f'"{folder}" has several label maps: {", ".join(maps)}. Keep one, or pass ?classes=FILE.')
    names = _read(maps[0]) if maps else {}
    wrong = next((label for label, name in found["names"].items() if name not in names.get(label, [name])), None)
    if wrong is not None:
        raise ValueError(
            f'"{maps[0]}" calls label {wrong} "{names[wrong][0]}", but the records call it "{found["names"][wrong]}".'
            " Use the map that was exported with them, or pass ?classes=FILE."
        )
    shown = {label: both[0] for label, both in names.items()}
    return {**found, "labels": sorted({*found["labels"], *map(int, names)}), "names": {**found["names"], **shown}}


def check_same_names(pattern: str, known: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Raises ValueError if a label has one name in the records of train and another in those of a split."""
    both = known["names"].keys() & found["names"].keys()
    label = next((label for label in sorted(both, key=int) if known["names"][label] != found["names"][label]), None)
    if label is not None:
        raise ValueError(
            f'The records of "{pattern}" call label {label} "{known["names"][label]}" in train and'
            f' "{found["names"][label]}" in another split. Export all splits with one label map, or pass ?classes=FILE.'
        )
