"""Small files of COCO, LabelMe and YOLO, and the masks that are drawn from them."""

import json
import os

import numpy as np
import tensorflow as tf
from PIL import Image

from keras_vit.data.open import open_source

SIZE = 8, 10  # height, width
SQUARE = [2, 1, 5, 1, 5, 4, 2, 4]  # 3 x 3 pixels
INNER = [3, 2, 4, 2, 4, 3, 3, 3]  # 1 pixel of it
NAN = float("nan")


def picture(path, size=SIZE, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((*size, 3), 90, "uint8")).save(path, **options)


def text(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))


def annotation(number=1, image=1, category=1, segmentation=(SQUARE,), **others):
    segmentation = list(segmentation) if isinstance(segmentation, tuple) else segmentation
    return {"id": number, "image_id": image, "category_id": category, "segmentation": segmentation, **others}


def coco_content(annotations, images=("a.jpg",), categories=((1, "cat"), (3, "dog")), size=SIZE):
    entries = [{"id": i, "file_name": name, "height": size[0], "width": size[1]} for i, name in enumerate(images, 1)]
    return {
        "images": entries,
        "annotations": annotations,
        "categories": [{"id": number, "name": name} for number, name in categories],
    }


def coco_folder(folder, annotations, **options):
    picture(folder / "a.jpg")
    text(folder / "_annotations.coco.json", coco_content(annotations, **options))
    return folder


def shape(points=((2, 1), (5, 1), (5, 4), (2, 4)), label="cat", kind="polygon", **others):
    return {"label": label, "points": [list(point) for point in points], "shape_type": kind, **others}


def labelme_content(shapes, image="a.jpg", size=SIZE, **others):
    sizes = {"imageHeight": size[0], "imageWidth": size[1]}
    return {"version": "5.5.0", "flags": {}, "shapes": shapes, "imagePath": image, "imageData": None, **sizes, **others}


def labelme_folder(folder, shapes, **options):
    picture(folder / "a.jpg")
    text(folder / "a.json", labelme_content(shapes, **options))
    return folder


def yolo_folder(folder, lines, names="[cat, dog]"):
    picture(folder / "train" / "images" / "a.jpg")
    text(folder / "train" / "labels" / "a.txt", lines)
    text(folder / "data.yaml", f"train: ../train/images\nnc: 2\nnames: {names}\n")
    return folder


def fractions(points, size=SIZE):
    return " ".join(str(value / size[1 - i % 2]) for i, value in enumerate(points))


def opened(folder, split="train", options=""):
    return open_source(f"masks:{folder}{options}", split)


def masks(source):
    """{file name: mask (h, w)}."""
    found = {
        os.path.basename(source.example_name(i)): source.read(tf.constant(i, tf.int64)) for i in range(source.size)
    }
    assert all(example["mask"].dtype == example["void"].dtype for example in found.values())
    return {name: example["mask"].numpy()[..., 0] for name, example in found.items()}


def expected(*boxes, size=SIZE, background=0):
    """A mask of rectangles (top, left, bottom, right, value), later ones on top."""
    mask = np.full(size, background)
    for top, left, bottom, right, value in boxes:
        mask[top:bottom, left:right] = value
    return mask
