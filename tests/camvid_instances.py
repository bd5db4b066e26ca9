"""CamVid's cars, pedestrians and bicyclists as objects: each connected component of a class is one, in COCO's form.

    python tests/camvid_instances.py CAMVID FOLDER

CamVid has a class for every pixel and no objects, so two cars that touch are one component here. Components of fewer
than 100 pixels are left out. FOLDER gets the images and instances_train.json and instances_val.json.
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


def write(camvid: pathlib.Path, folder: pathlib.Path) -> None:
    """Writes COCO annotations for CamVid's splits train and val."""
    names = (camvid / "classes.txt").read_text().split()
    categories = [{"id": i, "name": name} for i, name in enumerate(OBJECTS, 1)]
    for split in ("train", "val"):
        shutil.copytree(camvid / split, folder / split, dirs_exist_ok=True)
        images, annotations = [], []
        for number, path in enumerate(sorted((camvid / f"{split}annot").glob("*.png"))):
            classes = np.asarray(Image.open(path))
            height, width = classes.shape
            images.append({"id": number, "file_name": f"{path.stem}.jpg", "height": height, "width": width})
            for label, name in enumerate(OBJECTS):
                parts, count = ndimage.label(classes == names.index(name))
                masks = (parts == i for i in range(1, count + 1))
                for mask in (mask for mask in masks if mask.sum() >= _LEAST):
                    annotations.append(annotation(mask, label, len(annotations) + 1, number))
        content = {"images": images, "annotations": annotations, "categories": categories}
        (folder / f"instances_{split}.json").write_text(json.dumps(content))


if __name__ == "__main__":
    write(*map(pathlib.Path, sys.argv[1:3]))
