"""Advice for a path without annotations of boxes: other tools' own formats, archives, a folder one level too high."""

import os
import re
from collections.abc import Callable

import tensorflow as tf

from keras_vit.data.annotations import files
from keras_vit.data.annotations.foreign_tables import foreign_table
from keras_vit.data.annotations.form import Layout

_ARCHIVES = (".zip", ".tar", ".tgz", ".gz", ".7z", ".rar")
_TRIED = 3  # files of an ending
_FOLDERS = 20
# {ending: {pattern in a file's first characters: what the file is, and what to do}}
_FOREIGN = {
    ".xml": {r"<annotations[\s>]": 'CVAT\'s own XML. Export the task as "COCO 1.0"'},
    ".json": {
        r'"rectanglelabels"|"from_name"': "Label Studio's own JSON. Export the project as COCO or YOLO",
        r'"shape_attributes"': "a project of VGG Image Annotator. Export its annotations as COCO",
        r'"classTitle"|"geometryType"': "Supervisely's own JSON. Export the project as COCO",
        r'"coordinates"\s*:': "CreateML's JSON. Export the dataset as COCO",
    },
    ".tfrecord": {"": "a TFRecord. Open its folder as tfrecord:FOLDER"},
}


def _foreign(root):
    """A sentence about the first file in a format that does not open, or ""."""
    for end, kinds in _FOREIGN.items():
        for path in [root] if root.lower().endswith(end) else files.below(root, end)[:_TRIED]:
            start = files.start_of(path)
            found = next((kind for pattern, kind in kinds.items() if re.search(pattern, start)), None)
            if found:
                return f'"{path}" is {found}.'
    return ""


def _inner(root, find):
    """A sentence about the first folder in `root` with annotations, or ""."""
    for name in files.names_in(root)[:_FOLDERS]:
        place = os.path.join(root, name)
        if not tf.io.gfile.isdir(place):
            continue
        try:
            layout = find(place)
        except ValueError:
            continue
        if layout is not None:
            return f'Its folder "{name}" has {layout.format} annotations: open "{place}".'
    return ""


def advice(root: str, find: Callable[[str], Layout | None]) -> str:
    """A sentence that says how to open what is at `root`, or "".

    Args:
        root: folder or file without annotations that open.
        find: from a folder to the layout of its annotations, or None.
    """
    if root.lower().endswith(_ARCHIVES):
        return "Unpack it, and open the folder."
    return _inner(root, find) or _foreign(root) or foreign_table(root)
