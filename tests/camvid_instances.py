"""CamVid's cars, pedestrians and bicyclists as objects: each connected component of a class is one, in COCO's forms.

    python tests/camvid_instances.py CAMVID FOLDER

CamVid has a class for every pixel and no objects, so two cars that touch are one component here. FOLDER gets the
images; instances_train.json and instances_val.json, without components of fewer than 100 pixels; panoptic_train.json
and panoptic_val.json with their PNGs, in which the other eight classes are stuff and such components are void.
"""

import json
import pathlib
import shutil
import sys

import numpy as np
from instance_scenes import annotation
from PIL import Image
from scipy import ndimage

_LEAST = 100  # pixels
OBJECTS = ("Car", "Pedestrian", "Bicyclist")


def _components(mask):
    """The connected components of a mask (h, w) that are large enough, as masks."""
    parts, count = ndimage.label(mask)
    found = (parts == i for i in range(1, count + 1))
    return [part for part in found if part.sum() >= _LEAST]


def _segment(mask, number, category):
    """An entry of COCO's segments_info."""
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    box = [columns[0], rows[0], columns[-1] + 1 - columns[0], rows[-1] + 1 - rows[0]]
    own = {"id": number, "category_id": category, "iscrowd": 0, "area": int(mask.sum())}
    return {**own, "bbox": [int(value) for value in box]}


def write(camvid: pathlib.Path, folder: pathlib.Path) -> None:
    """Writes COCO's annotations for CamVid's splits train and val."""
    names = (camvid / "classes.txt").read_text().split()
    things = [{"id": i, "name": name} for i, name in enumerate(OBJECTS, 1)]
    categories = [{"id": i, "name": name, "isthing": int(name in OBJECTS)} for i, name in enumerate(names, 1)]
    for split in ("train", "val"):
        shutil.copytree(camvid / split, folder / split, dirs_exist_ok=True)
        (folder / f"panoptic_{split}").mkdir(exist_ok=True)
        images, annotations, scenes = [], [], []
        for image, path in enumerate(sorted((camvid / f"{split}annot").glob("*.png"))):
            classes = np.asarray(Image.open(path))
            height, width = classes.shape
            images.append({"id": image, "file_name": f"{path.stem}.jpg", "height": height, "width": width})
            numbers, segments = np.zeros((height, width), "uint8"), []
            for category, name in enumerate(names, 1):
                mask = classes == category - 1
                parts = _components(mask) if name in OBJECTS else [mask] * bool(mask.any())
                for part in parts:
                    segments.append(_segment(part, len(segments) + 1, category))
                    numbers[part] = len(segments)
                    if name in OBJECTS:
                        label = OBJECTS.index(name)
                        annotations.append(annotation(part, label, len(annotations) + 1, image))
            colors = np.stack([numbers, 0 * numbers, 0 * numbers], -1)  # a segment's number is its red
            Image.fromarray(colors).save(folder / f"panoptic_{split}" / path.name)
            scenes.append({"image_id": image, "file_name": path.name, "segments_info": segments})
        for form, found, kinds in (("instances", annotations, things), ("panoptic", scenes, categories)):
            content = {"images": images, "annotations": found, "categories": kinds}
            (folder / f"{form}_{split}.json").write_text(json.dumps(content))


if __name__ == "__main__":
    write(*map(pathlib.Path, sys.argv[1:3]))
